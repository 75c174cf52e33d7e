"""ART inside this process: batches in, one optimizer step each, with a journal that survives the process.

ART has a thread and a loop of its own (`art_thread`); the methods of `ArtLocal` may be awaited from any loop. One
worker takes the batches in the order they came, so two updates never meet; what an update is stands in `art_session`.

The order that makes a batch train exactly once: journal `started` → update → new weights loaded for serving →
checkpoint renamed, naming its batch and holding its result → journal `done` → served, if so asked → answer. What a
crash leaves between two of these is settled by the journal's `recover` at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from rollbus.schemas.errors import RejectedError, ServiceError
from rollbus.trainer.backends.art_session import ArtLocalSettings, ArtSession
from rollbus.trainer.backends.art_thread import ArtThread
from rollbus.trainer.backends.guards import Limits, admit
from rollbus.trainer.backends.outcomes import describe, is_retriable, job_error, skipped
from rollbus.trainer.backends.protocol import (
    TERMINAL_STATES,
    Capabilities,
    JobStatus,
    TrainRequest,
    TrainResult,
    Versions,
)
from rollbus.trainer.service.art_own_service import ArtOwnService
from rollbus.trainer.service.art_service import TorchService
from rollbus.trainer.service.journal import Failure

__all__ = ["ArtLocal", "ArtLocalSettings"]

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class _Job:
    """What is known of a batch. Its tokens are not among it: they are let go when the batch has ended."""

    status: JobStatus
    ended: Future[None] = field(default_factory=Future)


class ArtLocal:
    """Fulfils `Backend` with ART's LocalBackend and our model service."""

    def __init__(self, settings: ArtLocalSettings) -> None:
        self.settings = settings
        self._jobs: dict[str, _Job] = {}
        self._guard = threading.Lock()
        self._art = ArtThread()
        self._started = False
        self.session: ArtSession
        self._queue: asyncio.Queue[tuple[_Job, TrainRequest]]
        self._worker: asyncio.Task[None]
        self.one_update: asyncio.Lock
        """Held by whoever trains; belongs to ART's loop."""

    @property
    def service(self) -> TorchService | ArtOwnService:
        """What serves the model."""
        return self.session.service

    # The protocol.

    async def start(self) -> None:
        """Recover, load the weights, open the model endpoint. Call once, before anything else."""
        await self.on_art(self._start())
        self._started = True

    async def is_healthy(self) -> bool:
        return self._started and not self._worker.done()

    async def capabilities(self) -> Capabilities:
        return Capabilities(
            backend="art-local",
            model=self.settings.model,
            max_sequence_tokens=self.service.config.max_tokens,
            deterministic=self.settings.options.device == "cpu" and self.session.own is None,  # CUDA promises nothing
            inference_url=self.service.base_url,
            rolls_back=self.session.own is None,
            serves_on_request=True,
        )

    async def prepare(self, request: TrainRequest) -> None:
        """Not asked for."""

    async def submit(self, request: TrainRequest) -> str:
        if request.model != self.settings.model:
            raise RejectedError(
                f"batch {request.batch_hash} is for model {request.model!r}, but this backend trains "
                f"{self.settings.model!r}"
            )
        with self._guard:
            known = self._jobs.get(request.batch_hash)
            if known is not None and known.status.state in ("pending", "running"):
                return request.batch_hash
            if self.session.recorded(request.batch_hash) is not None:
                self._jobs.pop(request.batch_hash, None)  # of one that failed after its result was recorded
                return request.batch_hash
            job = _Job(JobStatus(request.batch_hash, "pending"))
            self._jobs[request.batch_hash] = job
        self._art.call(self._queue.put_nowait, (job, request))
        return request.batch_hash

    async def status(self, batch_hash: str) -> JobStatus:
        job = self._jobs.get(batch_hash)
        if job is not None and job.status.state != "completed":
            return job.status
        if self.session.recorded(batch_hash) is not None:
            return JobStatus(batch_hash, "completed", progress=1.0)
        failure = self.session.journal.failure(batch_hash)
        if failure is not None:
            return JobStatus(batch_hash, "failed", message=failure.message, retriable=failure.retriable)
        raise RejectedError(f"batch {batch_hash} was never submitted to this backend")

    async def wait(self, batch_hash: str, poll_interval_s: float = 0.5) -> TrainResult:
        while (status := await self.status(batch_hash)).state not in TERMINAL_STATES:
            await self.wait_ended(batch_hash, poll_interval_s)
        result = self.session.recorded(batch_hash)
        if status.state == "completed" and result is not None:
            return result
        raise job_error(status)

    async def wait_ended(self, batch_hash: str, timeout_s: float) -> None:
        """Return when the job ends, or after the timeout."""
        if (job := self._jobs.get(batch_hash)) is not None:
            await asyncio.wait([asyncio.wrap_future(job.ended)], timeout=timeout_s)

    async def cancel(self, batch_hash: str) -> JobStatus:
        with self._guard:
            job = self._jobs.get(batch_hash)
            if job is not None and job.status.state == "pending":
                job.status = replace(job.status, state="canceled", message="canceled before it began")
                job.ended.set_result(None)
        return await self.status(batch_hash)

    async def journal(self, batch_hash: str) -> TrainResult | None:
        return self.session.recorded(batch_hash)

    async def versions(self) -> Versions:
        return Versions(head=self.session.head(), serving=self.service.serving, known=self.session.known())

    async def current_version(self) -> int:
        return self.session.head()

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        await self.on_art(self._promote(version, rollback=rollback))

    async def close(self) -> None:
        """Let a running update end, then stop serving."""
        if self._started:
            self._started = False
            await self.on_art(self._stop())
        await self._art.close()

    # On ART's loop.

    async def on_art(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run `work` on ART's loop and await it here. Giving up waiting does not stop it."""
        return await self._art.run(work)

    @asynccontextmanager
    async def updates_held(self) -> AsyncIterator[None]:
        """Between two updates: none runs until this ends."""
        await self.on_art(self.one_update.acquire())
        try:
            yield
        finally:
            self._art.call(self.one_update.release)

    async def _promote(self, version: int, *, rollback: bool) -> None:
        await self.session.serve(version)
        if rollback:
            async with self.one_update:  # a running update ends first, and is then rolled back too
                await self.session.serve(version, as_head=True)

    async def _start(self) -> None:
        self.session = ArtSession(self.settings)
        await self.session.start()
        self._queue, self.one_update = asyncio.Queue(), asyncio.Lock()
        self._worker = asyncio.create_task(self._work())

    async def _stop(self) -> None:
        async with self.one_update:
            self._worker.cancel()
        await self.session.close()

    async def _work(self) -> None:
        while True:
            await self._do(*await self._queue.get())

    async def _do(self, job: _Job, request: TrainRequest) -> None:
        with self._guard:
            if job.status.state != "pending":
                return
            job.status = replace(job.status, state="running")
        job.status = await self._outcome(request)
        job.ended.set_result(None)

    async def _outcome(self, request: TrainRequest) -> JobStatus:
        try:
            async with self.one_update:
                await self._train(request)
        except Exception as error:
            logger.exception("batch %s was not trained", request.batch_hash)
            failure = Failure(describe(error), is_retriable(error))
            try:
                self.session.journal.failed(request.batch_hash, failure)
            except ServiceError:
                logger.exception("the failure of batch %s could not be recorded", request.batch_hash)
            return JobStatus(request.batch_hash, "failed", message=failure.message, retriable=failure.retriable)
        return JobStatus(request.batch_hash, "completed", progress=1.0)

    async def _train(self, request: TrainRequest) -> None:
        result = await self._result(request)
        self.session.journal.done(result)
        if request.serve and result.state == "completed":
            await self.session.serve(result.version)
        await asyncio.to_thread(self.session.keeping.retire, request.config.kl_reference_version)

    async def _result(self, request: TrainRequest) -> TrainResult:
        """Train, unless there is nothing to train, or the checkpoint is there and only the journal lacks it."""
        session, base = self.session, self.session.head()
        if request.base_version != base:
            raise RejectedError(
                f"batch {request.batch_hash} is for version {request.base_version} of {request.model}, but its head is "
                f"{base}; another trainer may be training this model"
            )
        if (made := session.unrecorded(request)) is not None:
            return made
        lineage = frozenset(self.service.store.lineage(base))
        limits = Limits(self.service.config.max_tokens, self.service.config.vocabulary, lineage)
        admitted = admit(request, limits, temperatures=session.own is None)
        if not admitted.trajectories:
            return skipped(request, admitted)
        session.journal.started(request.batch_hash, base, serves=request.serve)
        return await session.update(request, admitted)
