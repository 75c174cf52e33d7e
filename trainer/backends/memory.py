"""A backend without a model: batches in, "weights" out that are a hash of everything they were trained on.

It ships with the package, so that a pipeline can be tried and tested without ART. Two runs that trained the same
batches in the same order on the same bases have the same weights, and only those. With a folder it keeps a
journal over restarts.
"""

import asyncio
import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from rollbus.schemas.errors import RejectedError, ServiceError, UnavailableError
from rollbus.trainer.backends.appending import append_line, whole_lines
from rollbus.trainer.backends.jobs import JobBackend
from rollbus.trainer.backends.protocol import (
    Capabilities,
    TrainRequest,
    TrainResult,
    TrainTrajectory,
    Version,
    Versions,
)
from rollbus.trainer.backends.wire import from_json, to_json

JOURNAL_NAME = "journal.jsonl"
BASE_WEIGHTS = "base"

Fault = Callable[[str, TrainRequest], None]
"""Called at `update` (before the weights change) and `updated` (after the journal has them); may raise."""


@dataclass(slots=True)
class _Weights:
    """What outlives the process: results by batch hash, and the tree of versions."""

    results: dict[str, TrainResult] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=lambda: {0: BASE_WEIGHTS})
    versions: dict[int, tuple[int | None, str | None]] = field(default_factory=lambda: {0: (None, None)})
    head: int = 0
    serving: int = 0


class MemoryBackend(JobBackend):
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
        super().__init__(model)
        self._journal = folder / JOURNAL_NAME if folder else None
        self._step_s = step_s
        self._fault = fault or (lambda point, request: None)
        self._max_sequence_tokens = max_sequence_tokens
        self._weights = _Weights()
        if self._journal is not None:
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            for entry in map(json.loads, whole_lines(self._journal)):
                self._apply(entry)

    def weights(self, version: int) -> str:
        """Return the digest that takes the place of a version's weights."""
        return self._weights.digests[version]

    async def is_healthy(self) -> bool:
        """Return True: there is nothing to break."""
        return True

    async def capabilities(self) -> Capabilities:
        """Return what a trainer should know."""
        return Capabilities(
            "memory", self._model, self._max_sequence_tokens, True, None, prepares=True, serves_on_request=True
        )

    async def prepare(self, request: TrainRequest) -> None:
        """Do nothing: this backend sends nothing."""

    async def versions(self) -> Versions:
        """Return every version since the base."""
        known = tuple(
            Version(version, parent, batch_hash, _checkpoint(version), loaded=True)
            for version, (parent, batch_hash) in sorted(self._weights.versions.items())
        )
        return Versions(self._weights.head, self._weights.serving, known)

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        """Serve a version; with `rollback` also train from it."""
        if version not in self._weights.versions:
            raise RejectedError(f"version {version} of {self._model!r} does not exist")
        self._record({"kind": "promoted", "version": version, "rollback": rollback})

    async def close(self) -> None:
        """Wait for the update in progress."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def kill(self) -> None:
        """End like a killed process: only the journal remains."""
        self.cancel_tasks()
        self._fault = _refuse_to_go_on

    def recorded(self, batch_hash: str) -> TrainResult | None:
        """Return the result, if its weights are still among the head's ancestors: a batch rolled back trains again."""
        result = self._weights.results.get(batch_hash)
        version: int | None = self._weights.head
        while result is not None and version is not None:
            if version == result.version:
                return result
            version = self._weights.versions[version][0]
        return None

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

    def check_request(self, request: TrainRequest) -> None:
        """Refuse a batch for another base, and numbers that are not finite."""
        if request.base_version != self._weights.head:
            raise RejectedError(
                f"batch {request.batch_hash} is for base version {request.base_version}, "
                f"but the model has moved on to {self._weights.head}"
            )
        for trajectory in request.trajectories:
            if not (math.isfinite(trajectory.advantage) and math.isfinite(trajectory.reward)):
                raise RejectedError(f"trajectory {trajectory.trajectory_id}: its reward or advantage is not finite")

    def _update(self, request: TrainRequest) -> TrainResult:
        self.check_request(request)
        self._fault("update", request)
        result, digest = _train(request, self._weights)
        self._record({"kind": "trained", "result": to_json(result), "digest": digest})
        self._fault("updated", request)
        return result

    def _record(self, entry: dict[str, object]) -> None:
        """Write the journal first, then apply: what was not written did not happen."""
        if self._journal is not None:
            append_line(self._journal, json.dumps(entry, sort_keys=True).encode())
        self._apply(entry)

    def _apply(self, entry: dict[str, object]) -> None:
        weights = self._weights
        match entry:
            case {"kind": "promoted", "version": int(version), "rollback": bool(rollback)}:
                weights.serving = version
                weights.head = version if rollback else weights.head
            case {"kind": "trained", "result": dict(body), "digest": str(digest)}:
                result = from_json(TrainResult, body)
                weights.results[result.batch_hash] = result
                if result.state == "completed":
                    weights.digests[result.version] = digest
                    weights.versions[result.version] = (result.base_version, result.batch_hash)
                    weights.head = result.version


def _refuse_to_go_on(point: str, request: TrainRequest) -> None:
    raise UnavailableError(f"the backend was killed before batch {request.batch_hash} was {point}")


def _train(request: TrainRequest, weights: _Weights) -> tuple[TrainResult, str]:
    """Chain a digest of the batch's content to that of its base."""
    trained = [each for each in request.trajectories if each.turns and each.advantage != 0]
    dropped = {each.trajectory_id: "no_signal" for each in request.trajectories if not (each.turns and each.advantage)}
    base = request.base_version
    if not trained:
        return TrainResult(request.batch_hash, base, base, "skipped", (), dropped, {}, ""), ""
    chain = hashlib.sha256(weights.digests[base].encode())
    chain.update(request.batch_hash.encode())
    for trajectory in trained:
        chain.update(_content(trajectory))
    version = max(weights.versions) + 1
    sampled = sum(len(turn.completion_token_ids) // 4 for each in trained for turn in each.turns)
    metrics = {"loss": 0.0, "tokens": float(sampled)}
    ids = tuple(each.trajectory_id for each in trained)
    result = TrainResult(request.batch_hash, base, version, "completed", ids, dropped, metrics, _checkpoint(version))
    return result, chain.hexdigest()


def _content(trajectory: TrainTrajectory) -> bytes:
    parts = [trajectory.trajectory_id.encode(), repr(trajectory.advantage).encode()]
    for turn in trajectory.turns:
        parts += [turn.prompt_token_ids, turn.completion_token_ids, turn.logprobs]
    return b"\x1f".join(parts)


def _checkpoint(version: int) -> str:
    return f"memory/{version:04d}"
