"""ART inside this process: batches in, one optimizer step each, with a journal that survives the process.

ART blocks the event loop it runs on (packing, tokenising), so it has a thread and a loop of its own; the methods of
`ArtLocal` may be awaited from any loop. One worker takes the batches in the order they came, so two updates never meet.

The order that makes a batch train exactly once: journal `started` → update → new weights loaded for serving →
checkpoint renamed, naming its batch and holding its result → journal `done` → answer. What a crash leaves between two
of these is settled by `recover` at the next start.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import art

from rollbus.schemas.errors import RejectedError, ServiceError, UnavailableError
from rollbus.trainer.backends.art_engine import internal_config, lora_config, server_config, update_arguments
from rollbus.trainer.backends.art_packing import RollbusBackend, art_arguments, art_groups
from rollbus.trainer.backends.guards import Admitted, Limits, admit
from rollbus.trainer.backends.model_settings import ModelOptions
from rollbus.trainer.backends.outcomes import completed, describe, is_retriable, job_error, skipped
from rollbus.trainer.backends.protocol import (
    TERMINAL_STATES,
    Capabilities,
    JobStatus,
    TrainRequest,
    TrainResult,
    Version,
    Versions,
)
from rollbus.trainer.backends.wire import result_to_json
from rollbus.trainer.service.art_own_service import ArtOwnService
from rollbus.trainer.service.art_service import GRADIENT_STEPS, Provenance, ServiceSettings, StepPlan, TorchService
from rollbus.trainer.service.checkpoint import read_provenance
from rollbus.trainer.service.journal import Failure, Journal, recover
from rollbus.trainer.service.retention import Retention, expendable

logger = logging.getLogger(__name__)

PROJECT = "rollbus"
JOURNAL_NAME = "journal.jsonl"

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class ArtLocalSettings:
    model: str
    base_model: Path
    """Directory of the base model in Hugging Face layout."""
    directory: Path
    """ART's data: checkpoints, packed tensors, journal."""
    model_host: str = "127.0.0.1"
    model_port: int = 0
    """Of the OpenAI-compatible endpoint; 0 takes a free one."""
    api_key: str | None = None
    retention: Retention = field(default_factory=Retention)
    options: ModelOptions = field(default_factory=ModelOptions)


@dataclass(slots=True)
class _Job:
    request: TrainRequest
    status: JobStatus
    ended: Future[None] = field(default_factory=Future)


class ArtLocal:
    """Fulfils `Backend` with ART's LocalBackend and our model service."""

    def __init__(self, settings: ArtLocalSettings) -> None:
        self.settings = settings
        self._jobs: dict[str, _Job] = {}
        self._guard = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="art", daemon=True)
        self._thread.start()
        self._started = False
        self.model: art.TrainableModel[Any, Any]
        self.art_backend: RollbusBackend
        self.service: TorchService | ArtOwnService
        self.own: ArtOwnService | None = None
        """The service where it is ART's own; None where it is ours."""
        self._journal: Journal
        self._queue: asyncio.Queue[_Job]
        self._worker: asyncio.Task[None]
        self.one_update: asyncio.Lock
        """Held by whoever trains; belongs to ART's loop."""

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
            deterministic=self.settings.options.device == "cpu" and self.own is None,  # CUDA promises it to nobody
            inference_url=self.service.base_url,
        )

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
            if self._recorded(request.batch_hash) is not None:
                return request.batch_hash
            job = _Job(request, JobStatus(request.batch_hash, "pending"))
            self._jobs[request.batch_hash] = job
        self._loop.call_soon_threadsafe(self._queue.put_nowait, job)
        return request.batch_hash

    async def status(self, batch_hash: str) -> JobStatus:
        job = self._jobs.get(batch_hash)
        if job is not None and job.status.state != "completed":
            return job.status
        if self._recorded(batch_hash) is not None:
            return JobStatus(batch_hash, "completed", progress=1.0)
        failure = self._journal.failure(batch_hash)
        if failure is not None:
            return JobStatus(batch_hash, "failed", message=failure.message, retriable=failure.retriable)
        raise RejectedError(f"batch {batch_hash} was never submitted to this backend")

    async def wait(self, batch_hash: str, poll_interval_s: float = 0.5) -> TrainResult:
        while (status := await self.status(batch_hash)).state not in TERMINAL_STATES:
            await self.wait_ended(batch_hash, poll_interval_s)
        result = self._recorded(batch_hash)
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
        return self._recorded(batch_hash)

    async def versions(self) -> Versions:
        store, loaded = self.service.store, set(self.service.loaded())
        known = []
        for number in store.numbers():
            provenance = read_provenance(store.path(number))
            known.append(
                Version(
                    version=number,
                    parent=provenance.get("parent"),
                    batch_hash=provenance.get("batch_hash"),
                    checkpoint=str(store.path(number)),
                    loaded=number in loaded,
                )
            )
        return Versions(head=self._head(), serving=self.service.serving, known=tuple(known))

    async def current_version(self) -> int:
        return self._head()

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        await self.on_art(self._promote(version, rollback=rollback))

    async def close(self) -> None:
        """Let a running update end, then stop serving."""
        if self._started:
            self._started = False
            await self.on_art(self._stop())
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join)
            self._loop.close()

    # On ART's loop.

    async def on_art(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run `work` on ART's loop and await it here. Giving up waiting does not stop it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.shield(asyncio.wrap_future(future))

    @asynccontextmanager
    async def updates_held(self) -> AsyncIterator[None]:
        """Between two updates: none runs until this ends."""
        await self.on_art(self.one_update.acquire())
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self.one_update.release)

    async def _start(self) -> None:
        settings = self.settings
        directory = settings.directory / PROJECT / "models" / settings.model
        service_settings = ServiceSettings(
            name=settings.model,
            base_model=settings.base_model,
            directory=directory,
            host=settings.model_host,
            port=settings.model_port,
            api_key=settings.api_key,
            options=settings.options,
        )
        self._journal = Journal(directory / JOURNAL_NAME)
        store = TorchService.open_store(service_settings)
        for note in recover(self._journal, store):
            logger.warning("%s", note)
        self.model = art.TrainableModel(
            name=settings.model,
            run_name=settings.model,
            project=PROJECT,
            base_model=str(settings.base_model),
            **_arts_settings(settings.options),
        )
        if settings.options.art is None:
            self.service = TorchService(service_settings)
        else:
            self.service = self.own = ArtOwnService(service_settings)
        self.art_backend = RollbusBackend(str(settings.directory), self.service)
        if self.own is not None:
            await self._register()  # writes version 0, the first time
            self._journal.served(serving=store.numbers()[-1], head=store.numbers()[-1])
        elif self._journal.serving is None:
            self._journal.served(serving=self.service.serving, head=self._head())
        self.service.serve(self._journal.serving or 0)
        if self.own is None:
            await self._register()  # its endpoint answers from here on
        self._queue, self.one_update = asyncio.Queue(), asyncio.Lock()
        self._worker = asyncio.create_task(self._work())

    async def _register(self) -> None:
        """Let ART start its service, ours or its own; again after its own closed itself."""
        if self.own is None:
            await self.model.register(self.art_backend)
            return
        settings = self.settings
        where = server_config(settings.model_host, settings.model_port, settings.api_key)
        await self.model.register(self.art_backend, _openai_client_config=where)
        self.own.base_url = self.model.inference_base_url
        if not read_provenance(self.own.store.path(0)):
            self.own.note(0, {"version": 0, "parent": None, "base_model": settings.base_model.name})

    async def _stop(self) -> None:
        async with self.one_update:
            self._worker.cancel()
        await self.art_backend.close()

    async def _work(self) -> None:
        while True:
            job = await self._queue.get()
            with self._guard:
                if job.status.state != "pending":
                    continue
                job.status = replace(job.status, state="running")
            job.status = await self._outcome(job.request)
            job.ended.set_result(None)

    async def _outcome(self, request: TrainRequest) -> JobStatus:
        try:
            async with self.one_update:
                await self._train(request)
        except Exception as error:
            logger.exception("batch %s was not trained", request.batch_hash)
            failure = Failure(describe(error), is_retriable(error))
            try:
                self._journal.failed(request.batch_hash, failure)
            except ServiceError:
                logger.exception("the failure of batch %s could not be recorded", request.batch_hash)
            return JobStatus(request.batch_hash, "failed", message=failure.message, retriable=failure.retriable)
        return JobStatus(request.batch_hash, "completed", progress=1.0)

    async def _train(self, request: TrainRequest) -> None:
        base = self._head()
        if request.base_version != base:
            raise RejectedError(
                f"batch {request.batch_hash} is for version {request.base_version} of {request.model}, but its head is "
                f"{base}; another trainer may be training this model"
            )
        lineage = frozenset(self.service.store.lineage(base))
        limits = Limits(self.service.config.max_tokens, self.service.config.vocabulary, lineage)
        admitted = admit(request, limits, temperatures=self.own is None)
        if not admitted.trajectories:
            self._journal.done(skipped(request, admitted))
            return
        self._journal.started(request.batch_hash, base)
        self._journal.done(await self._update(request, admitted))
        await asyncio.to_thread(self._retire, request.config.kl_reference_version)

    async def _update(self, request: TrainRequest, admitted: Admitted) -> TrainResult:
        """One call of ART's `train`. The checkpoint that it leaves names its batch and holds the result."""
        results: list[TrainResult] = []
        began = time.monotonic()

        def provenance(version: int, metrics: Mapping[str, float]) -> dict[str, Any]:
            seconds = {"update_seconds": time.monotonic() - began}
            checkpoint = str(self.service.store.path(version))
            results.append(completed(request, admitted, version, {**metrics, **seconds}, checkpoint))
            return {
                "version": version,
                "parent": request.base_version,
                "batch_hash": request.batch_hash,
                "run_id": request.run_id,
                "result": result_to_json(results[-1]),
            }

        trained = await self._train_with_art(request, admitted, provenance)
        if trained.metrics.get(GRADIENT_STEPS) and self.own is not None:
            self.own.note(trained.step, provenance(trained.step, trained.metrics))
            self.own.serve(trained.step)
        if not results or not trained.metrics.get(GRADIENT_STEPS):
            raise RejectedError(f"ART found nothing to train in batch {request.batch_hash}, although it was admitted")
        return results[-1]

    async def _train_with_art(self, request: TrainRequest, admitted: Admitted, provenance: Provenance) -> Any:
        backend, config, engine = self.art_backend, request.config, self.settings.options.art
        arguments = art_arguments(config) if engine is None else update_arguments(config, engine)
        if config.advantages == "given":
            backend.given = {one.trajectory_id: one.advantage for one in admitted.trajectories}
        backend.aggregation = config.aggregation
        if any(turn.temperature != 1 for one in admitted.trajectories for turn in one.turns):
            backend.tempered = admitted.trajectories
        if isinstance(self.service, TorchService):
            self.service.plan = StepPlan(request.base_version, config, provenance)
        try:
            return await backend.train(
                self.model, art_groups(admitted.trajectories), save_checkpoint=False, **arguments
            )
        except Exception as error:
            if self.own is None or isinstance(error, RejectedError):
                raise
            backend.forget_service()  # it has closed itself, vLLM included
            await self._register()
            raise UnavailableError(
                f"ART's own service failed ({type(error).__name__}: {error}) and was started anew from version "
                f"{request.base_version}; look at its log, and at docs/gpu.md if it ran out of memory"
            ) from error
        finally:
            backend.given, backend.tempered = None, ()
            if isinstance(self.service, TorchService):
                self.service.plan, self.service.temperatures = None, None

    def _retire(self, reference: int) -> None:
        """Remove what retention gives up. A failure costs disk space and nothing else."""
        store = self.service.store
        numbers = store.numbers()
        parents = {number: store.parent(number) for number in numbers}
        in_use = (self._head(), self.service.serving, reference)
        try:
            for version in expendable(numbers, parents, self.settings.retention, in_use=in_use):
                store.retire(version)
                logger.info("removed checkpoint %d of %s, as its retention says", version, self.settings.model)
        except OSError as error:
            logger.warning("a checkpoint of %s could not be removed: %s", self.settings.model, error)

    async def _promote(self, version: int, *, rollback: bool) -> None:
        if version not in self.service.store.numbers():
            why = "; retention removed it" if version in self.service.store.retired() else ""
            raise RejectedError(f"version {version} of {self.settings.model} has no checkpoint{why}")
        await asyncio.to_thread(self.service.serve, version)
        if rollback:
            async with self.one_update:  # a running update ends first, and is then rolled back too
                self._journal.served(serving=version, head=version)
        else:
            self._journal.served(serving=version)

    # What is known.

    def _head(self) -> int:
        newest = self.service.store.numbers()[-1]
        return newest if self._journal.head is None else self._journal.head

    def _recorded(self, batch_hash: str) -> TrainResult | None:
        """The result, if the weights it made are still among the head's ancestors: a rolled back one trains again."""
        result = self._journal.result(batch_hash)
        if result is None or result.version not in self.service.store.lineage(self._head()):
            return None
        return result


def _arts_settings(options: ModelOptions) -> dict[str, Any]:
    """For `art.TrainableModel`: everything where its own service runs, the longest sequence where ours does."""
    if options.art is not None:
        return {"_internal_config": internal_config(options, options.art), "lora_config": lora_config(options)}
    longest = options.max_tokens
    return {"_internal_config": {"init_args": {"max_seq_length": longest}} if longest else None}
