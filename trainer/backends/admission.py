"""The last check of a batch before it trains: which trajectories can be trained, why the others cannot, and the result.

A batch is refused whole where the recorded log-probs of one source are too far from the model's own: what is computed
again, and how, is each backend's; what is said of it is here.

Pure. The trainer's own door has refused most of this already; other clients submit too. ART would train on it in
silence, fail the whole call, or write weights full of NaN.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from rollbus.trainer.backends.model_settings import LEAST_TEMPERATURE
from rollbus.trainer.backends.protocol import TrainRequest, TrainResult, TrainTrajectory, TurnTokens
from rollbus.trainer.backends.sequences import group_trajectories

ROUNDING = 1e-9
"""Rewards of a group that differ by no more than this share of their size are equal: they differ by rounding."""
NOISE = 1e-6
"""Advantages no larger than this come from rounding, divided by a tiny deviation."""
KERNEL_NATS = 0.01
"""Nats by which two kernels may differ in one token's log-prob."""
ROUNDING_NATS = 0.125
"""Nats by which one token's log-prob in bfloat16 may be off: the distance of two logits between 16 and 32."""
CERTAIN = 2.0
"""Standard errors of such a mean, beyond which it is not chance."""
CUT_NATS = 2.3
"""A server that leaves tokens out keeps more than a tenth of the probability: exp(−2.3)."""
UNKNOWN_CAUSE = (
    "the server may have served other weights than this version, read another prompt (a chat template of its own), cut "
    "the distribution (top_p, top_k), or reported log-probs of another kind; ask it for the same prompt and compare"
)


@dataclass(frozen=True, slots=True)
class Limits:
    max_tokens: int
    vocabulary: int
    lineage: frozenset[int] | None = None
    """Versions the base descends from, itself included; None checks nothing."""


@dataclass(frozen=True, slots=True)
class Admitted:
    trajectories: tuple[TrainTrajectory, ...]
    dropped: dict[str, str]
    """Trajectory id → reason code."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a source is from the model, over the turns that were computed again."""

    source: str
    version: int
    difference: float
    """Mean of |recorded − own log-prob|, in nats a token."""
    tokens: int

    @property
    def rounding(self) -> float:
        """What rounding may add to the mean of so few tokens, in nats."""
        return CERTAIN * ROUNDING_NATS / math.sqrt(self.tokens)

    def is_beyond(self, most: float) -> bool:
        """Say whether the source differs by more than that, and by more than rounding explains."""
        return not self.difference <= most + self.rounding  # NaN is not agreement


def compare_logprobs(source: str, version: int, differences: Sequence[float]) -> Agreement:
    """Return what recorded − own log-probs of a source's tokens say, at least one of them."""
    return Agreement(source, version, math.fsum(map(abs, differences)) / len(differences), len(differences))


def admit(request: TrainRequest, limits: Limits, *, temperatures: bool = True) -> Admitted:
    """Split the batch; `temperatures` is False if the update does not know any.

    Groups are judged after their members: one whose rewards are all equal has no signal.
    """
    dropped: dict[str, str] = {}
    candidates: list[TrainTrajectory] = []
    given, distill = request.config.advantages == "given", request.config.distill
    by_hints_alone = distill is not None and not distill.reward_weight
    for trajectory in request.trajectories:
        if (reason := _find_refusal(trajectory, limits, tempered=given and temperatures)) is not None:
            dropped[trajectory.trajectory_id] = reason
        elif by_hints_alone and not any(turn.hint for turn in trajectory.turns):
            dropped[trajectory.trajectory_id] = DropReason.NO_SIGNAL
        else:
            candidates.append(trajectory)
    silent = {
        group
        for group, members in group_trajectories(candidates).items()
        if not by_hints_alone and _lacks_signal(members, given=given)
    }
    for trajectory in candidates:
        if trajectory.group_id in silent:
            dropped[trajectory.trajectory_id] = DropReason.NO_SIGNAL
    return Admitted(tuple(candidate for candidate in candidates if candidate.group_id not in silent), dropped)


def make_result(
    request: TrainRequest, admitted: Admitted, version: int, metrics: Mapping[str, float], checkpoint: str
) -> TrainResult:
    """Return the result of a batch that made a version."""
    return TrainResult(
        request.batch_hash,
        request.base_version,
        version,
        "completed",
        trained_ids=tuple(trajectory.trajectory_id for trajectory in admitted.trajectories),
        dropped=admitted.dropped,
        metrics={**metrics, "trajectories_trained": float(len(admitted.trajectories))},
        checkpoint=checkpoint,
    )


def make_skipped_result(request: TrainRequest, admitted: Admitted) -> TrainResult:
    """Return the result of a batch of which nothing could be trained."""
    base = request.base_version
    return TrainResult(request.batch_hash, base, base, "skipped", (), admitted.dropped, metrics={}, checkpoint="")


def _find_refusal(trajectory: TrainTrajectory, limits: Limits, *, tempered: bool = True) -> str | None:
    """Return the reason code why this trajectory cannot be trained, if there is one.

    `tempered` is False if the update cannot divide logits by a temperature: ART's own packing does not carry it.
    """
    if not trajectory.turns:
        return DropReason.NO_TURNS
    if not all(map(math.isfinite, (trajectory.reward, trajectory.advantage, *trajectory.advantages))):
        return DropReason.REJECTED_BY_BACKEND
    for turn in trajectory.turns:
        if (reason := _find_turn_refusal(turn, limits)) is not None:
            return reason
        if turn.temperature != 1 and not (tempered and _temperature_fits(turn)):
            return DropReason.TEMPERATURE
    return None


def _temperature_fits(turn: TurnTokens) -> bool:
    return turn.logprob_mode == "processed" and LEAST_TEMPERATURE <= turn.temperature < math.inf


def _find_turn_refusal(turn: TurnTokens, limits: Limits) -> str | None:
    if any(len(data) % 4 for data in (turn.prompt_token_ids, turn.completion_token_ids, turn.logprobs)):
        return DropReason.UNTRAINABLE
    prompt, completion = decode_token_ids(turn.prompt_token_ids), decode_token_ids(turn.completion_token_ids)
    logprobs = decode_logprobs(turn.logprobs)
    if not prompt or not completion or len(completion) != len(logprobs):
        return DropReason.UNTRAINABLE
    if turn.token_advantages and len(turn.token_advantages) != len(completion):
        return DropReason.UNTRAINABLE
    if len(prompt) + len(completion) > limits.max_tokens:
        return DropReason.OVERLONG
    if not _ids_fit(prompt, limits.vocabulary) or not _ids_fit(completion, limits.vocabulary):
        return DropReason.UNTRAINABLE
    if not all(math.isfinite(value) and value <= 0 for value in logprobs):
        return DropReason.UNTRAINABLE
    if limits.lineage is not None and turn.policy_version not in limits.lineage:
        return DropReason.OFF_LINEAGE
    return None


def _ids_fit(token_ids: Sequence[int], vocabulary: int) -> bool:
    return min(token_ids) >= 0 and max(token_ids) < vocabulary


def _lacks_signal(group: list[TrainTrajectory], *, given: bool) -> bool:
    """Whether no member has an advantage, or only rounding separates them.

    Members with equal rewards may share a given advantage: it was computed with members that were dropped since.
    """
    advantages = [advantage for member in group for advantage in member.advantages]
    if given and max(map(abs, advantages)) <= NOISE:
        return True
    if given and any(member.has_turn_advantages for member in group):
        return False  # equal rewards may come of turns that earned differently
    rewards = [member.reward for member in group]
    size = max(1.0, *(abs(reward) for reward in rewards))
    if len(group) > 1 and max(rewards) - min(rewards) <= ROUNDING * size:
        return not given or max(advantages) - min(advantages) > NOISE
    return False


def describe_disagreement(agreement: Agreement, cause: str, *, most: float) -> str:
    """Say who differs, by how much, why that may be, and what to do."""
    return (
        f"turns that producer {agreement.source or '(none)'!r} recorded from version {agreement.version} have "
        f"log-probs that differ from the model's own by {agreement.difference:.3g} a token (mean of {agreement.tokens} "
        f"tokens, at most {most:g} is taken, and {agreement.rounding:.2g} for rounding): {cause}. Nothing was trained. "
        "`trainer: most_difference:` sets the bound, 0 none"
    )


def name_cut(temperature: float) -> str:
    """Say that tokens were left out before one was sampled."""
    return (
        f"at temperature {temperature:g} each is as high as the model's own or higher, so the server left tokens out "
        "(top_p, top_k, min_p or a grammar), as vLLM does by a model's generation_config.json unless it runs with "
        "`--generation-config vllm`"
    )


def is_cut(differences: Sequence[float]) -> bool:
    """Return whether recorded − own log-probs are those of a server that left tokens out: what is left only gains."""
    return min(differences) >= -KERNEL_NATS and KERNEL_NATS < max(differences) <= CUT_NATS
