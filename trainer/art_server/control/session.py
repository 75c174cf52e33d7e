"""One model and the service behind it: an admitted batch → one update, versions → served.

Lives on the backend's loop. Which batch comes when, and what the journal says of it, `local` decides, and `old_routes`
for clients that drive ART. The checkpoint of an update names its batch and holds the result.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollbus.trainer.art_server.checkpoints.checkpoint import Provenance
from rollbus.trainer.art_server.checkpoints.journal import Journal, VersionStore, recover
from rollbus.trainer.art_server.checkpoints.keeping import Keeping
from rollbus.trainer.art_server.control.old_bodies import describe_step
from rollbus.trainer.art_server.control.old_config import read_client_config
from rollbus.trainer.art_server.learner.torch_service import StepPlan, TorchService
from rollbus.trainer.backends.admission import Admitted, make_result
from rollbus.trainer.backends.durable.folder_lock import FolderLock
from rollbus.trainer.backends.model_settings import ServiceSettings
from rollbus.trainer.backends.protocol import TrainRequest, TrainResult, WeightsVersion
from rollbus.trainer.backends.sequences import make_art_sequences
from rollbus.trainer.backends.wire import to_json

if TYPE_CHECKING:
    from rollbus.trainer.art_server.arts_own.service import ArtOwnService

logger = logging.getLogger(__name__)

JOURNAL_NAME = "journal.jsonl"
LEFT_OF_TEXTS = ("tensors", "reported")
"""Folders next to the checkpoints: the token ids and log-probs of the batch that ART's own service trains, and what
earlier releases kept of clients' reports. Nothing reads them after the update."""


class ArtSession:
    """Open from `start` to `close`; the service is ours, or ART's own if the options ask for it."""

    def __init__(self, settings: ServiceSettings) -> None:
        directory = settings.model_directory
        of_service = replace(settings, directory=directory)
        self._lock = FolderLock(directory)
        self._directory = directory
        self._remove_texts()  # of an update that was killed
        self.journal = Journal(directory / JOURNAL_NAME)
        store = TorchService.open_store(of_service)
        for note in recover(self.journal, store):
            logger.warning("%s", note)
        self.own = _open_own(settings, store)
        """The service, if it is ART's own."""
        self.service: TorchService | ArtOwnService = self.own or TorchService(of_service)
        self.keeping = Keeping(settings.model, self.service, self.journal, settings.retention)
        """Says which checkpoint serves and which goes."""

    async def start(self) -> None:
        """Load the weights and open the model endpoint."""
        if self.own is not None:
            await self.own.open()  # writes version 0, the first time
            newest = self.service.store.numbers()[-1]
            self.journal.served(serving=newest, head=newest)
        elif self.journal.serving is None:
            self.journal.served(serving=self.service.serving, head=self.head())
        self.service.serve(self.journal.serving or 0)
        if isinstance(self.service, TorchService):
            await asyncio.to_thread(self.service.open_endpoint)  # answers from here on

    async def close(self) -> None:
        """Stop serving, and unlock the folder."""
        if isinstance(self.service, TorchService):
            await asyncio.to_thread(self.service.close)
        else:
            await self.service.close()
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
        """Make one optimizer step. RejectedError if no advantage is left of what was admitted."""
        results: list[TrainResult] = []
        provenance = self._provenance(request, admitted, {"run_id": request.run_id}, results)
        try:
            await self.service.train(request, admitted.trajectories, provenance)
        finally:
            if self.own is not None:
                await asyncio.to_thread(self._remove_texts)
        return results[-1]

    async def follow(
        self, request: TrainRequest, config: Mapping[str, Any], dev_config: Any, remarks: Mapping[str, Any]
    ) -> AsyncIterator[dict[str, float]]:
        """Make one update with ART's own configuration, for a client that drives ART; yield its metrics.

        The checkpoint names the request and holds its result and the remarks.
        """
        provenance = self._provenance(request, Admitted(request.trajectories, {}), remarks, [])
        if isinstance(self.service, TorchService):
            train_config, choice = read_client_config(config, dev_config)
            sequences = make_art_sequences(request.trajectories, choice)
            plan, metrics = StepPlan(request.base_version, train_config, provenance), dict[str, float]()
            if sequences:
                metrics = await self.service.update(sequences, plan)
            yield describe_step(request.trajectories, metrics)
            return
        try:
            async for metrics in self.service.follow(request, config, dev_config):
                yield metrics
        finally:
            await asyncio.to_thread(self._remove_texts)
        newest = self.service.store.numbers()[-1]
        if newest != request.base_version:
            self.service.note(newest, provenance(newest, metrics))

    async def serve(self, version: int, *, as_head: bool = False) -> None:
        """Answer requests for the bare name with a version; with `as_head` the next update builds on it too."""
        await asyncio.to_thread(self.keeping.serve, version, as_head=as_head)

    def _remove_texts(self) -> None:
        for name in LEFT_OF_TEXTS:
            folder = self._directory / name
            shutil.rmtree(folder, ignore_errors=True)
            if folder.exists():
                logger.warning("%s could not be removed; it holds what was trained on as token ids", folder)

    def _provenance(
        self,
        request: TrainRequest,
        admitted: Admitted,
        remarks: Mapping[str, Any],
        results: list[TrainResult],
    ) -> Provenance:
        """Return what describes an update that begins now, for its checkpoint; the result is put into `results` too."""
        began = time.monotonic()

        def provenance(version: int, metrics: Mapping[str, float]) -> dict[str, Any]:
            seconds = {"update_seconds": time.monotonic() - began}
            checkpoint = str(self.service.store.path(version))
            result = make_result(request, admitted, version, {**metrics, **seconds}, checkpoint)
            results.append(result)
            return {
                "version": version,
                "parent": request.base_version,
                "batch_hash": request.batch_hash,
                **remarks,
                "result": to_json(result),
            }

        return provenance


def _open_own(settings: ServiceSettings, store: VersionStore) -> "ArtOwnService | None":
    """Return ART's own service if the options ask for it: nothing else needs ART's import."""
    if settings.options.art is None:
        return None
    from rollbus.trainer.art_server.arts_own.service import ArtOwnService

    return ArtOwnService(settings, store, settings.options.art)
