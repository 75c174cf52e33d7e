"""Which checkpoint serves and which may go, decided under one lock.

Without the lock, retention could remove a version between the check that it exists and its serving, and the next start
would have nothing to serve. What the journal names as serving stays as well.
"""

import logging
import threading
from collections.abc import Collection, Iterable
from typing import Protocol

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.art_server.checkpoints.journal import Failure, Journal, VersionStore, settle
from rollbus.trainer.backends.durable.retention import expendable, find_protected
from rollbus.trainer.backends.model_settings import Retention
from rollbus.trainer.backends.protocol import TrainResult

logger = logging.getLogger(__name__)


class ModelService(Protocol):
    """What serves a model."""

    store: VersionStore

    @property
    def serving(self) -> int: ...

    @property
    def canary(self) -> int | None:
        """The version that has a share of the episodes."""
        ...

    def serve(self, version: int) -> None: ...


class Keeping:
    """The checkpoints of one model; any thread may call."""

    def __init__(self, model: str, service: ModelService, journal: Journal, retention: Retention) -> None:
        self._model, self._service, self._journal, self._retention = model, service, journal, retention
        self._lock = threading.Lock()
        self._reference: int | None = None
        """Of the last update; before one has named it, nothing is removed."""

    def head(self) -> int:
        """Return what the next batch is trained from."""
        return self._service.store.numbers()[-1] if self._journal.head is None else self._journal.head

    def serve(self, version: int, *, as_head: bool = False) -> None:
        """Answer requests for the bare name with a version; with `as_head` the next update builds on it too."""
        store = self._service.store
        with self._lock:
            if version not in store.numbers():
                why = "; retention removed it" if version in store.retired() else ""
                raise RejectedError(f"version {version} of {self._model} has no checkpoint{why}")
            self._service.serve(version)
            if as_head or self._journal.serving != version:  # an update that serves its version has recorded it already
                self._journal.served(serving=version, head=version if as_head else None)
            self._retire()

    def settle(self, batch_hash: str, failure: Failure) -> TrainResult | None:
        """Record how a started update ended (see the journal's `settle`), and serve its version if it is to serve."""
        with self._lock:
            result = settle(self._journal, self._service.store, batch_hash, failure)
            if result is not None and result.version == self._journal.serving:
                self._service.serve(result.version)
            return result

    def retire(self, reference: int) -> None:
        """Remove what retention does not keep, now and when another version serves. A failure only costs disk space."""
        with self._lock:
            self._reference = reference
            self._retire()

    def keep_only(self, versions: Collection[int]) -> None:
        """Remove all but these and what is in use."""
        with self._lock:
            numbers = self._service.store.numbers()
            kept_versions = {*versions, *find_protected(self._parents(numbers), self._in_use())}
            self._remove(number for number in numbers if number not in kept_versions)

    def _retire(self) -> None:
        if self._reference is not None:
            numbers = self._service.store.numbers()
            in_use = {*self._in_use(), self._reference}
            self._remove(expendable(numbers, self._parents(numbers), self._retention, in_use=in_use))

    def _in_use(self) -> set[int]:
        others = (self._journal.serving, self._journal.served_before, self._service.canary)
        return {self.head(), self._service.serving, *(version for version in others if version is not None)}

    def _parents(self, numbers: Iterable[int]) -> dict[int, int | None]:
        return {number: self._service.store.parent(number) for number in numbers}

    def _remove(self, versions: Iterable[int]) -> None:
        try:
            for version in versions:
                self._service.store.retire(version)
                logger.info("removed checkpoint %d of %s, which nothing uses", version, self._model)
        except OSError as error:
            logger.warning("a checkpoint of %s could not be removed: %s", self._model, error)
