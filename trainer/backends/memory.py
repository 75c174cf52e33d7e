"""A backend without a model: batches in, "weights" out that are a hash of everything they were trained on.

It ships with the package, so that a pipeline can be tried and tested without ART. Two runs that trained the same
batches in the same order on the same bases have the same weights, and only those. With a folder it keeps a
journal over restarts.
"""

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path

from rollbus.schemas.errors import ServiceError, UnavailableError
from rollbus.trainer.backends.durable.journaled import JournaledBackend
from rollbus.trainer.backends.protocol import Capabilities, TrainRequest, TrainResult, TrainTrajectory

Fault = Callable[[str, TrainRequest], None]
"""Called at `update` (before the weights change) and `updated` (after the journal has them); may raise."""


class MemoryBackend(JournaledBackend):
    """Fulfils `Backend`; `fault` and `step_s` let a test break it and slow it down."""

    def __init__(
        self,
        *,
        model: str = "agent",
        folder: Path | None = None,
        step_s: float = 0.0,
        fault: Fault | None = None,
        max_sequence_tokens: int = 4096,
    ) -> None:
        super().__init__(model, folder, base_checkpoint=_checkpoint(0))
        self._step_s = step_s
        self._fault = fault or (lambda point, request: None)
        self._max_sequence_tokens = max_sequence_tokens

    def weights(self, version: int) -> str:
        """Return the digest that takes the place of a version's weights."""
        return self.weights_tree.digests[version]

    async def capabilities(self) -> Capabilities:
        """Return what a trainer should know."""
        return Capabilities(
            "memory", self._model, self._max_sequence_tokens, True, None, prepares=True, serves_on_request=True
        )

    def kill(self) -> None:
        """End like a killed process: only the journal remains."""
        self.cancel_tasks()
        self._fault = _refuse_to_go_on

    async def train(self, request: TrainRequest) -> None:
        """Pretend to train for `step_s`; any error of a fault may be tried again."""
        await asyncio.sleep(self._step_s)
        try:
            result = self._update(request)
        except ServiceError:
            raise
        except Exception as error:
            raise UnavailableError(f"the update of batch {request.batch_hash} failed: {error!r}") from error
        if request.serve and result.state == "completed":
            await self.promote(result.version)

    def _update(self, request: TrainRequest) -> TrainResult:
        self.check_request(request)
        if request.config.distill is not None:
            raise UnavailableError("a backend without a model has no log-probs, so it cannot `distill`")
        self._fault("update", request)
        result, digest = self._train(request)
        self.record_result(result, digest)
        self._fault("updated", request)
        return result

    def _train(self, request: TrainRequest) -> tuple[TrainResult, str]:
        """Chain a digest of the batch's content to that of its base."""
        trained = [trajectory for trajectory in request.trajectories if trajectory.turns and any(trajectory.advantages)]
        dropped = {
            trajectory.trajectory_id: "no_signal"
            for trajectory in request.trajectories
            if not (trajectory.turns and any(trajectory.advantages))
        }
        base = request.base_version
        if not trained:
            return TrainResult(request.batch_hash, base, base, "skipped", (), dropped, {}, ""), ""
        chain = hashlib.sha256(self.weights_tree.digests[base].encode())
        chain.update(request.batch_hash.encode())
        for trajectory in trained:
            chain.update(_content(trajectory))
        version = self.next_version()
        sampled = sum(
            len(turn.completion_token_ids) // 4 for trained_trajectory in trained for turn in trained_trajectory.turns
        )
        metrics = {"loss": 0.0, "tokens": float(sampled)}
        ids = tuple(trained_trajectory.trajectory_id for trained_trajectory in trained)
        result = TrainResult(
            request.batch_hash, base, version, "completed", ids, dropped, metrics, _checkpoint(version)
        )
        return result, chain.hexdigest()


def _refuse_to_go_on(point: str, request: TrainRequest) -> None:
    raise UnavailableError(f"the backend was killed before batch {request.batch_hash} was {point}")


def _content(trajectory: TrainTrajectory) -> bytes:
    parts = [trajectory.trajectory_id.encode(), repr(trajectory.advantage).encode()]
    for turn in trajectory.turns:
        if turn.advantage is not None:
            parts.append(repr(turn.advantage).encode())
        parts += [turn.prompt_token_ids, turn.completion_token_ids, turn.logprobs]
    return b"\x1f".join(parts)


def _checkpoint(version: int) -> str:
    return f"memory/{version:04d}"
