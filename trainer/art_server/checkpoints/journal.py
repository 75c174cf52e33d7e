"""The outcome of each batch, on disk before it is reported: an append-only file next to the checkpoints.

    {"event": "started", batch_hash, base_version, serves} before the update; whether its version serves
    {"event": "done",    batch_hash, result}            after the checkpoint exists, or the batch was skipped
    {"event": "failed",  batch_hash, message, ...}      the weights are unchanged
    {"event": "served",  serving, head}                 the version of the bare name; what the next batch builds on

Each line is synced before the call returns. A crash can lose at most the line being written; `recover` then settles
the open batches by the checkpoints, each of which names its batch.
"""

import json
import logging
import shutil
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollbus.schemas.errors import DataLossError, UnavailableError
from rollbus.schemas.ids import parse_json
from rollbus.trainer.art_server.checkpoints.checkpoint import (
    PROVENANCE,
    TEMPORARY_PREFIX,
    is_complete,
    read_provenance,
    write_json,
)
from rollbus.trainer.backends.durable.appending import append_line, read_entries
from rollbus.trainer.backends.protocol import TrainResult
from rollbus.trainer.backends.wire import from_json, to_json

logger = logging.getLogger(__name__)

RETIRED = "retired"
VERSION_DIGITS = 9
"""A folder with more is not a version's."""


@dataclass(frozen=True, slots=True)
class Failure:
    message: str
    retriable: bool


@dataclass(frozen=True, slots=True)
class _Started:
    base_version: int
    serves: bool


class Journal:
    """The file and its content."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._lock = threading.Lock()
        self._results: dict[str, TrainResult] = {}
        self._completions: dict[str, list[TrainResult]] = {}
        self._failures: dict[str, Failure] = {}
        self._open: dict[str, _Started] = {}
        self.serving: int | None = None
        self.served_before: int | None = None
        """What was served until then: a rollback mostly goes back to it."""
        self.head: int | None = None
        for entry in read_entries(path):
            self._apply(entry)

    def result(self, batch_hash: str) -> TrainResult | None:
        return self._results.get(batch_hash)

    def completions(self, batch_hash: str) -> tuple[TrainResult, ...]:
        """Every result with which the batch completed: more than one if it was rolled back and trained again."""
        return tuple(self._completions.get(batch_hash, ()))

    def failure(self, batch_hash: str) -> Failure | None:
        return self._failures.get(batch_hash)

    def unfinished(self) -> Mapping[str, int]:
        """Batches that were started and have no outcome, with their base versions."""
        return {batch_hash: started.base_version for batch_hash, started in self._open.items()}

    def started(self, batch_hash: str, base_version: int, *, serves: bool = False) -> None:
        """Record that an update begins; with `serves` its version is served as soon as it is done."""
        self._append({"event": "started", "batch_hash": batch_hash, "base_version": base_version, "serves": serves})

    def done(self, result: TrainResult) -> None:
        self._append({"event": "done", "batch_hash": result.batch_hash, "result": to_json(result)})

    def failed(self, batch_hash: str, failure: Failure) -> None:
        entry = {"message": failure.message, "retriable": failure.retriable}
        self._append({"event": "failed", "batch_hash": batch_hash, **entry})

    def served(self, *, serving: int, head: int | None = None) -> None:
        """Record what is served; with `head` also what the next batch builds on."""
        self._append({"event": "served", "serving": serving, "head": head})

    def _append(self, entry: dict[str, Any]) -> None:
        """Write, sync, then apply."""
        with self._lock:
            try:
                append_line(self._path, json.dumps(entry).encode())
            except OSError as error:
                raise UnavailableError(
                    f"journal {self._path} cannot be written: {error}; free space on its disk"
                ) from error
            self._apply(entry)

    def _apply(self, entry: Mapping[str, Any]) -> None:
        match entry["event"]:
            case "started":
                self._open[entry["batch_hash"]] = _Started(entry["base_version"], entry["serves"])
            case "done":
                open_entry = self._open.pop(entry["batch_hash"], None)
                self._failures.pop(entry["batch_hash"], None)
                result = from_json(TrainResult, entry["result"])
                self._results[entry["batch_hash"]] = result
                if result.state == "completed":
                    self.head = result.version
                    if open_entry is not None and open_entry.serves:
                        self._serve(result.version)
                    self._completions.setdefault(result.batch_hash, []).append(result)
            case "failed":
                self._open.pop(entry["batch_hash"], None)
                self._failures[entry["batch_hash"]] = Failure(entry["message"], entry["retriable"])
            case "served":
                self._serve(entry["serving"])
                self.head = self.head if entry["head"] is None else entry["head"]

    def _serve(self, version: int | None) -> None:
        if version != self.serving:
            self.served_before, self.serving = self.serving, version


@dataclass(frozen=True, slots=True)
class VersionOrigin:
    """What made a version; both None if nothing is known, and the parent None for the base model."""

    parent: int | None
    batch_hash: str | None


class VersionStore:
    """The checkpoint directories of one model: `0000`, `0001`, … each with the batch and parent it came from.

    `retired/0003.json` is what remains of a removed one: where it came from.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._origins: dict[int, VersionOrigin] = {}

    def path(self, version: int) -> Path:
        return self.directory / f"{version:04d}"

    def numbers(self) -> list[int]:
        if not self.directory.exists():
            return []
        return sorted(int(path.name) for path in self.directory.iterdir() if _is_version(path.name) and path.is_dir())

    def next_number(self) -> int:
        return max([*self.numbers(), *self.retired()], default=-1) + 1

    def retired(self) -> list[int]:
        """Versions whose checkpoint was removed."""
        folder = self.directory / RETIRED
        return sorted(int(path.stem) for path in folder.glob("*.json") if _is_version(path.stem))

    def provenance(self, version: int) -> dict[str, Any]:
        """Batch, parent and result of a version, whether its checkpoint is still there or not."""
        if record := read_provenance(self.path(version)):
            return record
        try:
            loaded = parse_json((self.directory / RETIRED / f"{version:04d}.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return loaded if isinstance(loaded, dict) else {}

    def retire(self, version: int) -> None:
        """Remove a checkpoint. Order: note its origin, rename it, delete it."""
        note = self.directory / RETIRED / f"{version:04d}.json"
        note.parent.mkdir(exist_ok=True)
        write_json(note, read_provenance(self.path(version)))
        doomed = self.directory / f"{TEMPORARY_PREFIX}retired-{version:04d}"
        self.path(version).rename(doomed)
        shutil.rmtree(doomed)

    def origin(self, version: int) -> VersionOrigin:
        """Return the origin of a version, read once: every batch asks for the whole lineage."""
        if (origins := self._origins.get(version)) is not None:
            return origins
        provenance = self.provenance(version)
        origin = VersionOrigin(provenance.get("parent"), provenance.get("batch_hash"))
        if provenance:
            self._origins[version] = origin
        return origin

    def parent(self, version: int) -> int | None:
        return self.origin(version).parent

    def result(self, batch_hash: str, base_version: int, *, besides: Collection[TrainResult]) -> TrainResult | None:
        """Return the result in the newest checkpoint that a batch made of a base, except `besides`, if there is one."""
        for number in reversed(self.numbers()):
            if self.origin(number).batch_hash != batch_hash:
                continue
            stored = read_provenance(self.path(number))
            if "result" not in stored:
                raise DataLossError(f"checkpoint {number} names batch {batch_hash} but {PROVENANCE} has no result")
            result = from_json(TrainResult, stored["result"])
            if result.base_version == base_version and result not in besides:
                return result
        return None

    def lineage(self, version: int) -> list[int]:
        """The version and its ancestors, newest first, as far as they are known."""
        path = {version: None}
        while (parent := self.parent(version)) is not None and parent not in path:
            path[parent] = None
            version = parent
        return list(path)

    def clean(self) -> list[str]:
        """Remove what a crash left half written; returns the names removed.

        ConfigurationError, and nothing is removed, if a checkpoint cannot be read.
        """
        folders = sorted(path for path in self.directory.iterdir() if path.is_dir()) if self.directory.exists() else []
        torn = [path for path in folders if _is_torn(path)]
        for path in torn:
            shutil.rmtree(path)
        return [path.name for path in torn]


def _is_version(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= VERSION_DIGITS


def _is_torn(folder: Path) -> bool:
    return folder.name.startswith(TEMPORARY_PREFIX) or (_is_version(folder.name) and not is_complete(folder))


STOPPED = Failure("the server stopped before its checkpoint was written; submit the batch again", retriable=True)


def recover(journal: Journal, store: VersionStore) -> list[str]:
    """Settle every batch that was started and has no outcome, remove what is half written, return lines for the log."""
    notes = [f"removed {name}, which a crash left half written" for name in store.clean()]
    for batch_hash in journal.unfinished():
        result = settle(journal, store, batch_hash, STOPPED)
        if result is not None:
            notes.append(f"batch {batch_hash} had reached version {result.version}; recorded")
        elif (failure := journal.failure(batch_hash)) is not None:
            notes.append(f"batch {batch_hash} is recorded as failed: {failure.message}")
    return notes


def settle(journal: Journal, store: VersionStore, batch_hash: str, failure: Failure) -> TrainResult | None:
    """Record how a started update ended, and return its result.

    If its checkpoint exists, its result is recorded; otherwise the failure is, and the batch can be submitted again. A
    checkpoint of another base, or one recorded before, is of an earlier training of this batch that was rolled back.
    One whose base is no longer the head came too late.
    """
    base = journal.unfinished()[batch_hash]
    result = store.result(batch_hash, base, besides=journal.completions(batch_hash))
    if result is not None and journal.head not in (None, base):
        message = (
            f"version {result.version} was made of {base}, but the head is {journal.head} by now; it is left unused"
        )
        journal.failed(batch_hash, Failure(message, retriable=False))
        return None
    if result is None:
        journal.failed(batch_hash, failure)
    else:
        journal.done(result)
    return result
