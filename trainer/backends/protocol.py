"""What the trainer asks of a backend: scored token rows in, new weights and their results out.

One batch is one optimizer step, named by its `batch_hash`. Submitting the same hash again never trains
twice: it joins the running job or returns the recorded result, so a trainer that crashed just submits again.

Errors: `RejectedError` when asking again gives the same answer (wrong base version, unusable configuration, a
step that failed for a reason in its data), `UnavailableError` when it may not (no answer, server restarting,
disk full).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from rollbus.schemas.errors import RejectedError, RollbusError, UnavailableError
from rollbus.trainer.train_config import TrainConfig

JobState = Literal["pending", "running", "completed", "failed", "canceled"]
"""As the values of the NeMo harness' `TrainingStatusEnum`."""

TERMINAL_STATES: frozenset[JobState] = frozenset({"completed", "failed", "canceled"})


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """One generation: the exact tokens of the prompt and those sampled, packed as by `schemas.tokens`."""

    prompt_token_ids: bytes
    """Little-endian int32: the whole prompt of this turn, earlier turns included where it contained them."""
    completion_token_ids: bytes
    """Little-endian int32: what was sampled, the stop token included if it was."""
    logprobs: bytes
    """Little-endian float32, one per completion token: log-prob under the policy that sampled it."""
    policy_version: int
    history: int = 0
    """Turns with the same number belong to one growing token sequence; another number starts a new one."""
    temperature: float = 1.0
    """At which it was sampled; other than 1 only with processed log-probs."""
    logprob_mode: Literal["raw", "processed"] = "raw"
    """Of the model itself, or of the distribution at that temperature: then the trainer divides its logits by it."""
    source: str = ""
    """Name of the producer that recorded it; turns of one source agree with the model, or differ from it, together."""
    advantage: float | None = None
    """Of each token sampled here; None is the trajectory's."""
    token_advantages: tuple[float, ...] = ()
    """Of each token sampled here by itself, as distillation makes them; empty takes `advantage` for all."""
    hint: str = ""
    """What would have helped here, in a user's words; for `TrainConfig.distill` alone."""


@dataclass(frozen=True, slots=True)
class TrainTrajectory:
    trajectory_id: str
    group_id: str
    advantage: float
    """As computed by grouping; applied to every sampled token of the trajectory, but for turns that have their own."""
    reward: float
    """For metrics, and for `advantages="art"`."""
    turns: tuple[TurnTokens, ...]
    """May be empty where the backend `trains_text`."""

    @property
    def has_turn_advantages(self) -> bool:
        """Whether some turn has an advantage of its own, or its tokens have."""
        return any(turn.advantage is not None or turn.token_advantages for turn in self.turns)

    @property
    def advantages(self) -> tuple[float, ...]:
        """Return the advantage of each turn, or of its tokens; the trajectory's if there is none."""
        return tuple(
            advantage for turn in self.turns for advantage in turn.token_advantages or (self.advantage_of(turn),)
        ) or (self.advantage,)

    def advantage_of(self, turn: TurnTokens) -> float:
        """Return the advantage of a turn's sampled tokens."""
        return self.advantage if turn.advantage is None else turn.advantage

    def token_advantages_of(self, turn: TurnTokens) -> tuple[float, ...]:
        """Return the advantage of each token that a turn sampled."""
        return turn.token_advantages or (self.advantage_of(turn),) * (len(turn.completion_token_ids) // 4)


@dataclass(frozen=True, slots=True)
class TrainRequest:
    batch_hash: str
    run_id: str
    model: str
    base_version: int
    """Weights this batch is to be applied to; refused if the model has moved on."""
    trajectories: tuple[TrainTrajectory, ...]
    config: TrainConfig = field(default_factory=TrainConfig)
    most_difference: float | None = None
    """Refuse the batch where a source's recorded log-probs differ by more from the model's own, in nats a token."""
    serve: bool = False
    """Serve the new version, as `promote` would, before the job ends. If that fails the job has failed, although the
    version exists: `journal` has the result."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    batch_hash: str
    base_version: int
    version: int
    """New weights; equal to `base_version` when skipped."""
    state: Literal["completed", "skipped"]
    trained_ids: tuple[str, ...]
    dropped: Mapping[str, str]
    """Trajectory id → reason code, for each one of the request that was not trained."""
    metrics: Mapping[str, float]
    checkpoint: str
    """Directory of the weights in Hugging Face layout, as the server names it; empty when skipped."""


@dataclass(frozen=True, slots=True)
class JobStatus:
    batch_hash: str
    state: JobState
    progress: float = 0.0
    """0 to 1."""
    message: str = ""
    retriable: bool = False
    """Of a failed job: whether submitting it again can help."""

    def to_error(self) -> RollbusError:
        """Return the error that a failed or canceled job ended with."""
        if self.state == "canceled":
            return RejectedError(f"batch {self.batch_hash} was canceled: {self.message}")
        kind = UnavailableError if self.retriable else RejectedError
        return kind(f"batch {self.batch_hash} failed: {self.message}")


@dataclass(frozen=True, slots=True)
class WeightsVersion:
    """One directory of weights."""

    version: int
    parent: int | None
    batch_hash: str | None
    """The batch that made it; None for the base model."""
    checkpoint: str
    loaded: bool
    """Answers requests for `name@version` now."""


@dataclass(frozen=True, slots=True)
class Versions:
    head: int
    """What the next batch must name as its base."""
    serving: int
    """The version that answers requests for the bare model name."""
    known: tuple[WeightsVersion, ...]


@dataclass(frozen=True, slots=True)
class Capabilities:
    backend: str
    """`memory`, `art-local`, `art-server`, `tinker`, `art-serverless`."""
    model: str
    max_sequence_tokens: int
    """Longest prompt and completion together that can be trained or served."""
    deterministic: bool
    """The same base and batch give the same weights, bit for bit."""
    inference_url: str | None
    """OpenAI-compatible endpoint, ending in /v1; None if it serves nothing."""
    rolls_back: bool = True
    """False if only the newest version can be trained on."""
    prepares: bool = False
    """A batch may be sent ahead by `prepare`, so that `submit` has little left to bring."""
    serves_on_request: bool = False
    """It honours `TrainRequest.serve`."""
    distills: bool = False
    """It computes log-probs under a prompt with a hint, so it honours `TrainConfig.distill`; others refuse it."""
    trains_text: bool = False
    """It trains on messages: members need neither tokens and log-probs nor rewards that differ."""
    rollback_remedy: str = ""
    """What to do instead of a roll-back, where it does not roll back; empty where checkpoints can be moved away."""


@runtime_checkable
class Backend(Protocol):
    """What every backend answers; one contract suite runs against all of them."""

    async def is_healthy(self) -> bool:
        """Whether a batch submitted now would be taken up. Never raises."""
        ...

    async def capabilities(self) -> Capabilities: ...

    async def prepare(self, request: TrainRequest) -> None:
        """Take the batch that is submitted next, of any base; nothing is trained, queued or recorded.

        The backend may forget it at any time: `submit` works without it.
        """
        ...

    async def submit(self, request: TrainRequest) -> str:
        """Queue the batch and return its job id, its hash. A hash already known is not trained again.

        art-server: client → server → local → session → torch_service → update.Learner.step
        """
        ...

    async def status(self, batch_hash: str) -> JobStatus:
        """RejectedError for a hash that was never submitted."""
        ...

    async def wait(self, batch_hash: str, poll_interval_s: float = 0.5) -> TrainResult:
        """The result when the job ends; of a failed or canceled one the error it ended with."""
        ...

    async def cancel(self, batch_hash: str) -> JobStatus:
        """A pending job is canceled; a running one runs to its end (half an update is not an update)."""
        ...

    async def journal(self, batch_hash: str) -> TrainResult | None:
        """The durable result of this batch, from any earlier submission; None if it never finished."""
        ...

    async def versions(self) -> Versions: ...

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        """Serve `version` to requests for the bare name; with `rollback` the next batch starts there."""
        ...

    async def close(self) -> None: ...
