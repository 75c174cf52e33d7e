"""A model inside this process: batches in, one optimizer step each, with a journal that survives the process.

ART's own service blocks the loop that it runs on (packing, tokenising), so a session has a thread and a loop of its
own; the methods of `ArtLocal` may be awaited from any loop. `session` makes the updates.

The order that makes a batch train exactly once: journal `started` → update → new weights loaded → checkpoint renamed,
naming its batch and holding its result → its number answers requests → journal `done` → the bare name does, if so asked
→ answer. What a crash leaves between two of these is settled by the journal's `recover` at the next start.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from rollbus.runtime.health.heart import Report
from rollbus.runtime.tasks import start_thread
from rollbus.schemas.errors import RejectedError, ServiceError
from rollbus.schemas.records.delivery import PolicyDecision
from rollbus.trainer.art_server.checkpoints.journal import Failure
from rollbus.trainer.art_server.control.following import DecisionFollower
from rollbus.trainer.art_server.control.session import ArtSession
from rollbus.trainer.art_server.learner.torch_service import TorchService
from rollbus.trainer.backends.admission import Limits, admit, make_skipped_result
from rollbus.trainer.backends.jobs import JobBackend
from rollbus.trainer.backends.model_settings import ServiceSettings
from rollbus.trainer.backends.protocol import Capabilities, JobStatus, TrainRequest, TrainResult, Versions

if TYPE_CHECKING:
    from rollbus.trainer.art_server.arts_own.service import ArtOwnService

logger = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")


class ArtLocal(JobBackend):
    """Fulfils `Backend` with our model service, or with ART's own."""

    def __init__(self, settings: ServiceSettings) -> None:
        super().__init__(settings.model)
        self.settings = settings
        self.session: ArtSession
        self._started = False
        self._following: DecisionFollower | None = None
        self._updates = 0
        self._loop = asyncio.new_event_loop()
        self._closing = False
        self._thread = start_thread(self._loop.run_forever, "art", is_over=lambda: self._closing)

    @property
    def service(self) -> "TorchService | ArtOwnService":
        """What serves the model."""
        return self.session.service

    async def start(self) -> None:
        """Recover, load the weights, open the model endpoint. Call once, before anything else."""
        await self.on_art(self._start())
        self._started = True
        if self.settings.decisions is not None:
            self._following = DecisionFollower(self.settings.decisions, self.settings.model, self._follow)
            self._following.start()

    def report(self) -> Report:
        """Say which versions are there, and whether requests or an update wait."""
        model, service = self.settings.model, self.service
        updates, waiting = self._updates, self.one_update.locked()
        trouble = None if self._following is None else self._following.trouble
        if not isinstance(service, TorchService):  # ART's own engine counts for itself
            return Report(holds=(model,), positions={"version": service.serving}, work=updates, is_behind=waiting)
        served = service.served
        rows = sum(served.sampler.count_rows())
        work = updates + served.requests + served.sampler.steps
        return Report(
            holds=(model,),
            positions={"version": served.serving},
            work=work,
            is_behind=waiting or rows > 0,
            trouble=trouble,
        )

    async def is_healthy(self) -> bool:
        """Return whether it was started and not closed."""
        return self._started

    async def capabilities(self) -> Capabilities:
        """Return what a trainer should know."""
        return Capabilities(
            backend="art-local",
            model=self.settings.model,
            max_sequence_tokens=self.service.config.max_tokens,
            deterministic=self.settings.options.device == "cpu" and self.session.own is None,  # CUDA promises nothing
            inference_url=self.service.base_url,
            rolls_back=self.session.own is None,
            serves_on_request=True,
            distills=self.session.own is None,
        )

    async def prepare(self, request: TrainRequest) -> None:
        """Do nothing: here nothing is sent anywhere."""

    def find_result(self, batch_hash: str) -> TrainResult | None:
        """Return the result that the journal has."""
        return self.session.find_result(batch_hash)

    def recorded_failure(self, batch_hash: str) -> JobStatus | None:
        """Return the failure that the journal has."""
        failure = self.session.journal.failure(batch_hash)
        if failure is None:
            return None
        return JobStatus(batch_hash, "failed", message=failure.message, retriable=failure.retriable)

    def record_failure(self, status: JobStatus) -> None:
        """Write it into the journal, if that can be written."""
        try:
            self.session.journal.failed(status.batch_hash, Failure(status.message, status.retriable))
        except ServiceError:
            logger.exception("the failure of batch %s could not be recorded", status.batch_hash)

    async def versions(self) -> Versions:
        """Return every version that has a checkpoint."""
        return Versions(head=self.session.head(), serving=self.service.serving, known=self.session.known())

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        """Serve a version; with `rollback` also train from it."""
        await self.on_art(self._promote(version, rollback=rollback))

    async def close(self) -> None:
        """Let a running update end, stop serving, and end the thread."""
        if self._following is not None:
            await asyncio.to_thread(self._following.stop)
            self._following = None
        if self._started:
            self._started = False
            await self.on_art(self._stop())
        if self._thread.is_alive():
            self._closing = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join)
            self._loop.close()

    def call_beside_updates(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a function on ART's loop, soon."""
        self._loop.call_soon_threadsafe(function, *arguments)

    async def on_art(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run `work` on ART's loop and await it here. Giving up waiting does not stop it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.shield(asyncio.wrap_future(future))

    @asynccontextmanager
    async def updates_held(self) -> AsyncIterator[None]:
        """Let no update run until this ends."""
        await self.on_art(self.one_update.acquire())
        try:
            yield
        finally:
            self.call_beside_updates(self.one_update.release)

    async def train(self, request: TrainRequest) -> None:
        """Train a batch and record it, serve its version if asked, then let retention remove others."""
        result = await self._result(request)
        self.session.journal.done(result)
        self._updates += 1
        if request.serve and result.state == "completed":
            await self.session.serve(result.version)
        await asyncio.to_thread(self.session.keeping.retire, request.config.kl_reference_version)

    def _follow(self, decision: PolicyDecision) -> None:
        """Route episodes by a decision, and serve what it says; called on a thread of its own."""
        if not isinstance(self.service, TorchService):
            return
        self.service.use_decision(decision)
        if decision.serving is not None and decision.serving != self.service.serving:
            asyncio.run_coroutine_threadsafe(self._promote(decision.serving, rollback=False), self._loop).result()
            self.service.use_decision(decision)

    # On ART's loop.

    async def _promote(self, version: int, *, rollback: bool) -> None:
        await self.session.serve(version)
        if rollback:
            async with self.one_update:  # a running update ends first, and is then rolled back too
                await self.session.serve(version, as_head=True)

    async def _start(self) -> None:
        self.session = ArtSession(self.settings)
        await self.session.start()

    async def _stop(self) -> None:
        async with self.one_update:
            self.cancel_tasks()
        await self.session.close()

    async def _result(self, request: TrainRequest) -> TrainResult:
        """Train, unless there is nothing to train, or the checkpoint is there and only the journal lacks it."""
        session, base = self.session, self.session.head()
        if request.base_version != base:
            raise RejectedError(
                f"batch {request.batch_hash} is for version {request.base_version} of {request.model}, but its head is "
                f"{base}; another trainer may be training this model"
            )
        if (result := session.unrecorded(request)) is not None:
            return result
        lineage = frozenset(self.service.store.lineage(base))
        limits = Limits(self.service.config.max_tokens, self.service.config.usable_tokens, lineage)
        admitted = admit(request, limits, temperatures=session.own is None)
        if not admitted.trajectories:
            return make_skipped_result(request, admitted)
        session.journal.started(request.batch_hash, base, serves=request.serve)
        return await session.update(request, admitted)
