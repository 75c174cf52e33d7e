"""ART's LocalBackend with one model, and the service behind it: an admitted batch → one update, versions → served.

Lives on ART's loop. Which batch comes when, and what the journal says of it, `local` decides, and `old_routes` for
clients that drive ART. The checkpoint of an update names its batch and holds the result.
"""

import asyncio
import logging
import math
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import art
from art import types

from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.trainer.art_server.checkpoints.checkpoint import read_provenance
from rollbus.trainer.art_server.checkpoints.journal import Journal, recover
from rollbus.trainer.art_server.checkpoints.keeping import Keeping
from rollbus.trainer.art_server.control.engine import internal_config, lora_config, server_config, update_arguments
from rollbus.trainer.art_server.control.packing import RollbusBackend, art_arguments, art_groups, scale_advantages
from rollbus.trainer.art_server.learner.art_plan import Provenance, StepPlan, arts_plan
from rollbus.trainer.art_server.learner.art_service import ArtOwnService
from rollbus.trainer.art_server.learner.torch_service import GRADIENT_STEPS, TorchService
from rollbus.trainer.backends.admission import Admitted
from rollbus.trainer.backends.durable.folder_lock import FolderLock
from rollbus.trainer.backends.model_settings import ModelOptions, ServiceSettings
from rollbus.trainer.backends.outcomes import completed
from rollbus.trainer.backends.protocol import TrainRequest, TrainResult, TrainTrajectory, WeightsVersion
from rollbus.trainer.backends.wire import from_json, to_json
from rollbus.trainer.grpo.advantage_scale import reward_scale

logger = logging.getLogger(__name__)

PROJECT = "rollbus"
JOURNAL_NAME = "journal.jsonl"
LEFT_OF_TEXTS = ("tensors", "reported")
"""Folders next to the checkpoints: the token ids and log-probs of the batch that ART trains, and what earlier releases
kept of clients' reports. Nothing reads them after the update."""


class ArtSession:
    """Open from `start` to `close`; the service is ours, or ART's own if the options ask for it."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        options = settings.options
        directory = settings.directory / PROJECT / "models" / settings.model
        of_service = replace(settings, directory=directory)
        self._lock = FolderLock(directory)
        self._directory = directory
        self._remove_texts()  # of an update that was killed
        self.journal = Journal(directory / JOURNAL_NAME)
        store = TorchService.open_store(of_service)
        for note in recover(self.journal, store):
            logger.warning("%s", note)
        self.model: art.TrainableModel[Any, Any] = art.TrainableModel(
            name=settings.model,
            run_name=settings.model,
            project=PROJECT,
            base_model=str(settings.base_model),
            **_arts_settings(options),
        )
        self.own = None if options.art is None else ArtOwnService(of_service)
        """The service, if it is ART's own."""
        self.service: TorchService | ArtOwnService = self.own or TorchService(of_service)
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
        """Stop serving, and unlock the folder."""
        await self.backend.close()
        self._lock.close()

    def head(self) -> int:
        """What the next batch is trained from."""
        return self.keeping.head()

    def find_result(self, batch_hash: str) -> TrainResult | None:
        """Return the result, if its weights are still among the head's ancestors: a rolled back batch trains again."""
        result = self.journal.result(batch_hash)
        if result is None or result.version == (head := self.head()):
            return result
        return result if result.version in self.service.store.lineage(head) else None

    def unrecorded(self, request: TrainRequest) -> TrainResult | None:
        """Return a result that is in a checkpoint of this batch and not in the journal, since the disk was full."""
        completed = self.journal.completions(request.batch_hash)
        return self.service.store.result(request.batch_hash, request.base_version, besides=completed)

    def known(self) -> tuple[WeightsVersion, ...]:
        """Every version that has a checkpoint."""
        store, loaded = self.service.store, set(self.service.loaded())
        origins = {number: store.origin(number) for number in store.numbers()}
        return tuple(
            WeightsVersion(number, origin.parent, origin.batch_hash, str(store.path(number)), loaded=number in loaded)
            for number, origin in origins.items()
        )

    async def update(self, request: TrainRequest, admitted: Admitted) -> TrainResult:
        """Call ART's `train` once, for one optimizer step."""
        results: list[TrainResult] = []
        describe_update = self._provenance(request, admitted, {"run_id": request.run_id})

        def provenance(version: int, metrics: Mapping[str, float]) -> dict[str, Any]:
            update = describe_update(version, metrics)
            results.append(from_json(TrainResult, update["result"]))
            return update

        try:
            trained = await self._train(request, admitted, provenance)
        finally:
            await asyncio.to_thread(self._remove_texts)
        if trained.metrics.get(GRADIENT_STEPS) and self.own is not None:
            self.own.note(trained.step, provenance(trained.step, trained.metrics))
            self.own.serve(trained.step)
        if not results or not trained.metrics.get(GRADIENT_STEPS):
            raise RejectedError(f"ART found nothing to train in batch {request.batch_hash}, although it was admitted")
        return results[-1]

    async def follow(
        self, request: TrainRequest, config: types.TrainConfig, dev_config: Any, remarks: Mapping[str, Any]
    ) -> AsyncIterator[dict[str, float]]:
        """Make one update with ART's own configuration, for a client that drives ART; yield its metrics.

        The checkpoint names the request and holds its result and the remarks.
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
            await asyncio.to_thread(self._remove_texts)
        newest = self.service.store.numbers()[-1]
        if self.own is not None and newest != base:
            self.own.note(newest, provenance(newest, metrics))

    async def serve(self, version: int, *, as_head: bool = False) -> None:
        """Answer requests for the bare name with a version; with `as_head` the next update builds on it too."""
        await asyncio.to_thread(self.keeping.serve, version, as_head=as_head)

    def _remove_texts(self) -> None:
        for name in LEFT_OF_TEXTS:
            folder = self._directory / name
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                logger.warning("%s could not be removed; it holds what was trained on as token ids", folder)

    def _provenance(self, request: TrainRequest, admitted: Admitted, remarks: Mapping[str, Any]) -> Provenance:
        """Return what describes an update that begins now, for its checkpoint."""
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
                "result": to_json(result),
            }

        return provenance

    async def _register(self) -> None:
        """Let ART start its service, ours or its own; again after its own closed itself."""
        if self.own is None:
            await self.model.register(self.backend)
            return
        settings = self.settings
        where = server_config(settings.host, settings.port, settings.api_key)
        await self.model.register(self.backend, _openai_client_config=where)
        self.own.base_url = self.model.inference_base_url
        if not read_provenance(self.own.store.path(0)):
            self.own.note(0, {"version": 0, "parent": None, "base_model": settings.base_model.name})

    async def _train(self, request: TrainRequest, admitted: Admitted, provenance: Provenance) -> Any:
        backend, config, engine = self.backend, request.config, self.settings.options.art
        arguments = art_arguments(config) if engine is None else update_arguments(config, engine)
        figures: Mapping[str, float] = {}
        if config.advantages == "given":
            trained, figures = await self._given_advantages(request, admitted)
            backend.given = {trajectory.trajectory_id: max(trajectory.advantages, key=abs) for trajectory in trained}
            if any(trajectory.has_turn_advantages for trajectory in admitted.trajectories + trained):
                backend.by_turn = trained
        backend.aggregation = config.aggregation
        if any(turn.temperature != 1 for trajectory in admitted.trajectories for turn in trajectory.turns):
            backend.tempered = admitted.trajectories
        if isinstance(self.service, TorchService):
            self.service.plan = StepPlan(
                request.base_version,
                config,
                provenance,
                trajectories=admitted.trajectories if request.most_difference is not None else (),
                most_difference=request.most_difference or math.inf,
                figures=figures,
            )
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
                f"ART's own service failed ({type(error).__name__}: {error}) and was started again from version "
                f"{request.base_version}; look at its log, and at docs/gpu.md if it ran out of memory"
            ) from error
        finally:
            backend.given, backend.tempered, backend.by_turn = None, (), ()
            if isinstance(self.service, TorchService):
                self.service.plan, self.service.temperatures = None, None

    async def _given_advantages(
        self, request: TrainRequest, admitted: Admitted
    ) -> tuple[tuple[TrainTrajectory, ...], Mapping[str, float]]:
        """Return the batch with the advantages that are trained, and what was measured on the way."""
        config = request.config
        scale = reward_scale(config.advantage_scale, [trajectory.reward for trajectory in admitted.trajectories])
        if config.distill is not None and isinstance(self.service, TorchService):
            return await self.service.distill(
                admitted.trajectories, config.distill, base_version=request.base_version, scale=scale
            )
        return tuple(scale_advantages(trajectory, scale) for trajectory in admitted.trajectories), {}


def _arts_settings(options: ModelOptions) -> dict[str, Any]:
    """Return arguments of `art.TrainableModel`: all for its own service, the longest sequence for ours."""
    if options.art is not None:
        return {"_internal_config": internal_config(options, options.art), "lora_config": lora_config(options)}
    longest = options.max_tokens
    return {"_internal_config": {"init_args": {"max_seq_length": longest}} if longest else None}
