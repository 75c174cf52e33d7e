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
from rollbus.trainer.appending import append_line, whole_lines
from rollbus.trainer.backends.protocol import (
    Capabilities,
    JobState,
    JobStatus,
    TrainRequest,
    TrainResult,
    TrainTrajectory,
    Version,
    Versions,
)
from rollbus.trainer.backends.wire import result_from_json, result_to_json

JOURNAL_NAME = "journal.jsonl"
BASE_WEIGHTS = "base"

Fault = Callable[[str, TrainRequest], None]
"""Called at `update` (before the weights change) and `updated` (after the journal has them); may raise."""


@dataclass(slots=True)
class _Job:
    state: JobState = "pending"
    error: Exception | None = None
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Weights:
    """What outlives the process: results by batch hash, and the tree of versions."""

    results: dict[str, TrainResult] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=lambda: {0: BASE_WEIGHTS})
    versions: dict[int, tuple[int | None, str | None]] = field(default_factory=lambda: {0: (None, None)})
    head: int = 0
    serving: int = 0


class MemoryBackend:
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
        self._model = model
        self._journal = folder / JOURNAL_NAME if folder else None
        self._step_s = step_s
        self._fault = fault or (lambda point, request: None)
        self._max_sequence_tokens = max_sequence_tokens
        self._jobs: dict[str, _Job] = {}
        self._one_update = asyncio.Lock()
        self._weights = _Weights()
        if self._journal is not None:
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            for entry in map(json.loads, whole_lines(self._journal)):
                self._apply(entry)

    def weights(self, version: int) -> str:
        """Return the digest that stands for the weights of a version."""
        return self._weights.digests[version]

    async def is_healthy(self) -> bool:
        """Always: there is nothing to break."""
        return True

    async def capabilities(self) -> Capabilities:
        """Return what a trainer should know."""
        return Capabilities(
            "memory", self._model, self._max_sequence_tokens, True, None, prepares=True, serves_on_request=True
        )

    async def prepare(self, request: TrainRequest) -> None:
        """Do nothing: here nothing is sent anywhere."""

    async def submit(self, request: TrainRequest) -> str:
        """Queue the batch unless its hash is known; a failed or canceled one is taken up again."""
        if self._is_open(request.batch_hash):
            return request.batch_hash
        if self._recorded(request.batch_hash) is not None:
            self._jobs.pop(request.batch_hash, None)
            return request.batch_hash
        if request.model != self._model:
            raise RejectedError(f"batch {request.batch_hash} is for model {request.model!r}; this is {self._model!r}")
        self._check_base(request)
        for trajectory in request.trajectories:
            if not (math.isfinite(trajectory.advantage) and math.isfinite(trajectory.reward)):
                raise RejectedError(f"trajectory {trajectory.trajectory_id}: its reward or advantage is not finite")
        job = _Job()
        self._jobs[request.batch_hash] = job
        job.task = asyncio.create_task(self._run(job, request))
        return request.batch_hash

    async def status(self, batch_hash: str) -> JobStatus:
        """Return the job's state; RejectedError for an unknown hash."""
        job = self._jobs.get(batch_hash)
        if self._recorded(batch_hash) is not None and (job is None or job.error is None):
            return JobStatus(batch_hash, "completed", 1.0)
        if job is None:
            raise RejectedError(f"batch {batch_hash} was never submitted")
        retriable = isinstance(job.error, ServiceError) and job.error.retriable
        return JobStatus(batch_hash, job.state, 0.0, str(job.error or ""), retriable)

    async def wait(self, batch_hash: str, poll_interval_s: float = 0.5) -> TrainResult:
        """Return the result; the job goes on if the caller gives up waiting."""
        await self.status(batch_hash)
        await self.wait_ended(batch_hash, None)
        job = self._jobs.get(batch_hash)
        if job is not None and job.error is not None:
            raise job.error
        if (result := self._recorded(batch_hash)) is not None:
            return result
        raise RejectedError(f"batch {batch_hash} was canceled")

    async def wait_ended(self, batch_hash: str, timeout_s: float | None) -> None:
        """Return when the job ends, or after the timeout."""
        job = self._jobs.get(batch_hash)
        if job is not None and job.task is not None:
            await asyncio.wait([job.task], timeout=timeout_s)

    async def cancel(self, batch_hash: str) -> JobStatus:
        """Cancel a pending job; a running one runs to its end."""
        job = self._jobs.get(batch_hash)
        if job is not None and job.state == "pending":
            job.state = "canceled"
        return await self.status(batch_hash)

    async def journal(self, batch_hash: str) -> TrainResult | None:
        """Return the recorded result, whoever submitted it."""
        return self._recorded(batch_hash)

    async def versions(self) -> Versions:
        """Return every version since the base."""
        known = tuple(
            Version(version, parent, batch_hash, _checkpoint(version), loaded=True)
            for version, (parent, batch_hash) in sorted(self._weights.versions.items())
        )
        return Versions(self._weights.head, self._weights.serving, known)

    async def current_version(self) -> int:
        """Return what the next batch must name as its base."""
        return self._weights.head

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        """Serve a version; with `rollback` also train from it."""
        if version not in self._weights.versions:
            raise RejectedError(f"version {version} of {self._model!r} does not exist")
        self._record({"kind": "promoted", "version": version, "rollback": rollback})

    async def close(self) -> None:
        """Wait for the update in progress."""
        for job in self._jobs.values():
            if job.task is not None:
                await asyncio.wait([job.task])

    def kill(self) -> None:
        """End as a killed process would: what was in progress is gone, only the journal remains."""
        for job in self._jobs.values():
            if job.task is not None:
                job.task.cancel()
        self._fault = _refuse_to_go_on

    def _recorded(self, batch_hash: str) -> TrainResult | None:
        """The result, if its weights are still among the head's ancestors: a batch rolled back trains again."""
        result = self._weights.results.get(batch_hash)
        version: int | None = self._weights.head
        while result is not None and version is not None:
            if version == result.version:
                return result
            version = self._weights.versions[version][0]
        return None

    def _is_open(self, batch_hash: str) -> bool:
        job = self._jobs.get(batch_hash)
        return job is not None and job.state in ("pending", "running")

    async def _run(self, job: _Job, request: TrainRequest) -> None:
        async with self._one_update:
            if job.state == "canceled":
                return
            job.state = "running"
            try:
                await asyncio.sleep(self._step_s)
                result = self._update(request)
                if request.serve and result.state == "completed":
                    await self.promote(result.version)
                job.state = "completed"
            except ServiceError as error:
                job.state, job.error = "failed", error
            except Exception as error:
                failure = UnavailableError(f"the update of batch {request.batch_hash} failed: {error!r}")
                failure.__cause__ = error
                job.state, job.error = "failed", failure

    def _check_base(self, request: TrainRequest) -> None:
        if request.base_version != self._weights.head:
            raise RejectedError(
                f"batch {request.batch_hash} is for base version {request.base_version}, "
                f"but the model has moved on to {self._weights.head}"
            )

    def _update(self, request: TrainRequest) -> TrainResult:
        self._check_base(request)
        self._fault("update", request)
        result, digest = _train(request, self._weights)
        self._record({"kind": "trained", "result": result_to_json(result), "digest": digest})
        self._fault("updated", request)
        return result

    def _record(self, entry: dict[str, object]) -> None:
        """Journal first, then memory: what was not written did not happen."""
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
                result = result_from_json(body)
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
