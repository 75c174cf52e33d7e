"""ART's LocalBackend with one model, and the service behind it: an admitted batch → one update, versions → served.

Lives on ART's loop and keeps no account: which batch comes when, and what the journal says of it, is `art_local`'s, and
`art_old_routes`' for clients that drive ART.
The checkpoint that an update leaves names its batch and holds the result, whatever dies afterwards.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import art
from art import types

from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.trainer.backends.art_engine import internal_config, lora_config, server_config, update_arguments
from rollbus.trainer.backends.art_packing import RollbusBackend, art_arguments, art_groups
from rollbus.trainer.backends.guards import Admitted
from rollbus.trainer.backends.model_settings import ModelOptions
from rollbus.trainer.backends.outcomes import completed
from rollbus.trainer.backends.protocol import TrainRequest, TrainResult, Version
from rollbus.trainer.backends.wire import result_from_json, result_to_json
from rollbus.trainer.service.art_own_service import ArtOwnService
from rollbus.trainer.service.art_plan import Provenance, StepPlan, arts_plan
from rollbus.trainer.service.art_service import GRADIENT_STEPS, ServiceSettings, TorchService
from rollbus.trainer.service.checkpoint import read_provenance
from rollbus.trainer.service.folder_lock import FolderLock
from rollbus.trainer.service.journal import Journal, recover
from rollbus.trainer.service.keeping import Keeping
from rollbus.trainer.service.retention import Retention

logger = logging.getLogger(__name__)

PROJECT = "rollbus"
JOURNAL_NAME = "journal.jsonl"


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


class ArtSession:
    """Open from `start` to `close`; the service is ours, or ART's own where the options ask for it."""

    def __init__(self, settings: ArtLocalSettings) -> None:
        self.settings = settings
        options = settings.options
        directory = settings.directory / PROJECT / "models" / settings.model
        self._service_settings = ServiceSettings(
            name=settings.model,
            base_model=settings.base_model,
            directory=directory,
            host=settings.model_host,
            port=settings.model_port,
            api_key=settings.api_key,
            options=options,
        )
        self._lock = FolderLock(directory)
        self.journal = Journal(directory / JOURNAL_NAME)
        store = TorchService.open_store(self._service_settings)
        for note in recover(self.journal, store):
            logger.warning("%s", note)
        self.model: art.TrainableModel[Any, Any] = art.TrainableModel(
            name=settings.model,
            run_name=settings.model,
            project=PROJECT,
            base_model=str(settings.base_model),
            **_arts_settings(options),
        )
        self.own = None if options.art is None else ArtOwnService(self._service_settings)
        """The service where it is ART's own."""
        self.service: TorchService | ArtOwnService = self.own or TorchService(self._service_settings)
        self.backend = RollbusBackend(str(settings.directory), self.service)
        self.keeping = Keeping(settings.model, self.service, self.journal, settings.retention)
        """Says which checkpoint serves and which goes."""

    async def start(self) -> None:
        """Load the weights and open the model endpoint."""
        if self.own is not None:
            await self._register()  # writes version 0, the first time
            newest = self.service.store.numbers()[-1]
            self.journal.served(serving=newest, head=newest)
        elif self.journal.serving is None:
            self.journal.served(serving=self.service.serving, head=self.head())
        self.service.serve(self.journal.serving or 0)
        if self.own is None:
            await self._register()  # its endpoint answers from here on

    async def close(self) -> None:
        """Stop serving, and let the folder go."""
        await self.backend.close()
        self._lock.close()

    def head(self) -> int:
        """What the next batch is trained from."""
        return self.keeping.head()

    def recorded(self, batch_hash: str) -> TrainResult | None:
        """The result, if the weights it made are still among the head's ancestors: a rolled back one trains again."""
        result = self.journal.result(batch_hash)
        if result is None or result.version == (head := self.head()):
            return result
        return result if result.version in self.service.store.lineage(head) else None

    def unrecorded(self, request: TrainRequest) -> TrainResult | None:
        """What a checkpoint of this batch holds that the journal never heard of: its disk was full just then."""
        recorded = self.journal.made(request.batch_hash)
        return self.service.store.result(request.batch_hash, request.base_version, besides=recorded)

    def known(self) -> tuple[Version, ...]:
        """Every version that has a checkpoint."""
        store, loaded = self.service.store, set(self.service.loaded())
        origins = {number: store.origin(number) for number in store.numbers()}
        return tuple(
            Version(number, origin.parent, origin.batch_hash, str(store.path(number)), loaded=number in loaded)
            for number, origin in origins.items()
        )

    async def update(self, request: TrainRequest, admitted: Admitted) -> TrainResult:
        """One call of ART's `train`, one optimizer step."""
        results: list[TrainResult] = []
        told = self._provenance(request, admitted, {"run_id": request.run_id})

        def provenance(version: int, metrics: Mapping[str, float]) -> dict[str, Any]:
            found = told(version, metrics)
            results.append(result_from_json(found["result"]))
            return found

        trained = await self._train(request, admitted, provenance)
        if trained.metrics.get(GRADIENT_STEPS) and self.own is not None:
            self.own.note(trained.step, provenance(trained.step, trained.metrics))
            self.own.serve(trained.step)
        if not results or not trained.metrics.get(GRADIENT_STEPS):
            raise RejectedError(f"ART found nothing to train in batch {request.batch_hash}, although it was admitted")
        return results[-1]

    async def follow(
        self, request: TrainRequest, config: types.TrainConfig, dev_config: Any, remarks: Mapping[str, Any]
    ) -> AsyncIterator[dict[str, float]]:
        """One update as ART's own configuration asks, for a client that drives ART; its metrics.

        The checkpoint names the request, holds its result and the remarks.
        """
        base, metrics = request.base_version, dict[str, float]()
        provenance = self._provenance(request, Admitted(request.trajectories, {}), remarks)
        if isinstance(self.service, TorchService):
            self.service.plan = arts_plan(base, config, dev_config, provenance)
        groups = art_groups(request.trajectories)
        try:
            async for metrics in self.backend._train_model(self.model, groups, config, dev_config):
                yield metrics
        finally:
            if isinstance(self.service, TorchService):
                self.service.plan = None
        newest = self.service.store.numbers()[-1]
        if self.own is not None and newest != base:
            self.own.note(newest, provenance(newest, metrics))

    async def serve(self, version: int, *, as_head: bool = False) -> None:
        """Answer requests for the bare name with a version; with `as_head` the next update builds on it too."""
        await asyncio.to_thread(self.keeping.serve, version, as_head=as_head)

    def _provenance(self, request: TrainRequest, admitted: Admitted, remarks: Mapping[str, Any]) -> Provenance:
        """What the checkpoint of an update that begins now says of it."""
        began = time.monotonic()

        def provenance(version: int, metrics: Mapping[str, float]) -> dict[str, Any]:
            seconds = {"update_seconds": time.monotonic() - began}
            checkpoint = str(self.service.store.path(version))
            result = completed(request, admitted, version, {**metrics, **seconds}, checkpoint)
            return {
                "version": version,
                "parent": request.base_version,
                "batch_hash": request.batch_hash,
                **remarks,
                "result": result_to_json(result),
            }

        return provenance

    async def _register(self) -> None:
        """Let ART start its service, ours or its own; again after its own closed itself."""
        if self.own is None:
            await self.model.register(self.backend)
            return
        settings = self.settings
        where = server_config(settings.model_host, settings.model_port, settings.api_key)
        await self.model.register(self.backend, _openai_client_config=where)
        self.own.base_url = self.model.inference_base_url
        if not read_provenance(self.own.store.path(0)):
            self.own.note(0, {"version": 0, "parent": None, "base_model": settings.base_model.name})

    async def _train(self, request: TrainRequest, admitted: Admitted, provenance: Provenance) -> Any:
        backend, config, engine = self.backend, request.config, self.settings.options.art
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


def _arts_settings(options: ModelOptions) -> dict[str, Any]:
    """For `art.TrainableModel`: everything where its own service runs, the longest sequence where ours does."""
    if options.art is not None:
        return {"_internal_config": internal_config(options, options.art), "lora_config": lora_config(options)}
    longest = options.max_tokens
    return {"_internal_config": {"init_args": {"max_seq_length": longest}} if longest else None}
