"""The batches that a backend in this process was given: each is pending, then running, then has ended.

One batch trains at a time, in the order in which they came. What a batch did is recorded by the backend; here is only
what a restart may forget. The tokens of a batch are let go when it has ended.
"""

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from rollbus.runtime.cancelling import is_being_cancelled
from rollbus.runtime.tasks import start_task
from rollbus.schemas.errors import RejectedError, describe_error, is_retriable
from rollbus.trainer.backends.protocol import JobStatus, TrainRequest, TrainResult

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job:
    status: JobStatus
    ended: Future[None] = field(default_factory=Future)


class JobBackend(ABC):
    """The part of `Backend` that is about jobs. Any thread may call; updates run where `call_beside_updates` leads."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._jobs: dict[str, _Job] = {}
        self._guard = threading.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self.one_update = asyncio.Lock()
        """Held while an update runs; belongs to the loop that updates run on."""

    @abstractmethod
    async def train(self, request: TrainRequest) -> None:
        """Train a batch and record its result, or raise."""

    @abstractmethod
    def find_result(self, batch_hash: str) -> TrainResult | None:
        """Return the durable result of a batch, if its weights are still among the head's ancestors."""

    def recorded_failure(self, batch_hash: str) -> JobStatus | None:
        """Return how a batch failed before the last restart, if that was recorded."""
        return None

    def record_failure(self, status: JobStatus) -> None:  # noqa: B027 - a backend may leave it out
        """Write down that a batch failed."""

    def check_request(self, request: TrainRequest) -> None:  # noqa: B027
        """Raise RejectedError for a batch that need not be queued to be refused."""

    def call_beside_updates(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function on the loop that updates run on."""
        function(*arguments)

    async def submit(self, request: TrainRequest) -> str:
        """Queue the batch unless its hash is known; one that failed or was canceled is queued again."""
        if request.model != self._model:
            raise RejectedError(
                f"batch {request.batch_hash} is for model {request.model!r}, but this backend trains {self._model!r}"
            )
        with self._guard:
            jobs = self._jobs.get(request.batch_hash)
            if jobs is not None and jobs.status.state in ("pending", "running"):
                return request.batch_hash
            if self.find_result(request.batch_hash) is not None:
                self._jobs.pop(request.batch_hash, None)  # it failed after its result was recorded
                return request.batch_hash
            self.check_request(request)
            job = self._jobs[request.batch_hash] = _Job(JobStatus(request.batch_hash, "pending"))
        self.call_beside_updates(self._begin, job, request)
        return request.batch_hash

    async def status(self, batch_hash: str) -> JobStatus:
        """Return the job's state; RejectedError for an unknown hash."""
        job = self._jobs.get(batch_hash)
        if job is not None and job.status.state != "completed":
            return job.status
        if self.find_result(batch_hash) is not None:
            return JobStatus(batch_hash, "completed", progress=1.0)
        if (failed := self.recorded_failure(batch_hash)) is not None:
            return failed
        raise RejectedError(f"batch {batch_hash} was never submitted to this backend")

    async def wait(self, batch_hash: str, poll_interval_s: float = 0.5) -> TrainResult:
        """Return the result; the job goes on if the caller gives up waiting."""
        await self.wait_ended(batch_hash, None)
        status = await self.status(batch_hash)
        result = self.find_result(batch_hash)
        if status.state == "completed" and result is not None:
            return result
        raise status.to_error()

    async def wait_ended(self, batch_hash: str, timeout_s: float | None) -> None:
        """Return when the job ends, or after the timeout."""
        if (job := self._jobs.get(batch_hash)) is not None:
            await asyncio.wait([asyncio.wrap_future(job.ended)], timeout=timeout_s)

    async def cancel(self, batch_hash: str) -> JobStatus:
        """Cancel a pending job; a running one runs to its end."""
        with self._guard:
            job = self._jobs.get(batch_hash)
            if job is not None and job.status.state == "pending":
                job.status = replace(job.status, state="canceled", message="canceled before it began")
                job.ended.set_result(None)
        return await self.status(batch_hash)

    async def journal(self, batch_hash: str) -> TrainResult | None:
        """Return the recorded result."""
        return self.find_result(batch_hash)

    def cancel_tasks(self) -> None:
        """Give up what waits and what runs."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, job: _Job, request: TrainRequest) -> None:
        task = start_task(self._run(job, request), f"update {request.batch_hash}", endless=False)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, job: _Job, request: TrainRequest) -> None:
        try:
            async with self.one_update:
                with self._guard:
                    if job.status.state != "pending":
                        return
                    job.status = replace(job.status, state="running")
                job.status = await self._outcome(request)
        finally:
            if not job.ended.done():
                job.ended.set_result(None)

    async def _outcome(self, request: TrainRequest) -> JobStatus:
        try:
            await self.train(request)
        except BaseException as error:  # a job without an outcome would be waited for without end
            if is_being_cancelled():
                raise
            logger.exception("batch %s was not trained", request.batch_hash)
            failed = JobStatus(
                request.batch_hash, "failed", message=describe_error(error), retriable=is_retriable(error)
            )
            self.record_failure(failed)
            return failed
        return JobStatus(request.batch_hash, "completed", progress=1.0)
