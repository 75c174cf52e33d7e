"""The part of a backend in this process that outlives it: results by batch hash, and the tree of versions.

With a folder they are in a journal, whose last whole line counts after a crash: it is written first, then applied. What
a version's weights are is the subclass's.
"""

import asyncio
import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.backends.durable.appending import append_line, read_entries
from rollbus.trainer.backends.durable.folder_lock import FolderLock
from rollbus.trainer.backends.durable.retention import expendable
from rollbus.trainer.backends.jobs import JobBackend
from rollbus.trainer.backends.model_settings import Retention
from rollbus.trainer.backends.protocol import TrainRequest, TrainResult, Versions, WeightsVersion
from rollbus.trainer.backends.wire import from_json, to_json

JOURNAL_NAME = "journal.jsonl"
BASE_WEIGHTS = "base"


@dataclass(slots=True)
class Weights:
    """What outlives the process."""

    checkpoints: dict[int, str]
    results: dict[str, TrainResult] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=lambda: {0: BASE_WEIGHTS})
    versions: dict[int, tuple[int | None, str | None]] = field(default_factory=lambda: {0: (None, None)})
    head: int = 0
    serving: int = 0
    retired: set[int] = field(default_factory=set)
    """Versions whose weights retention has removed."""

    def lineage(self, version: int) -> frozenset[int]:
        """Return a version and all that it grew from."""
        numbers: set[int] = set()
        ancestor: int | None = version
        while ancestor is not None:
            numbers.add(ancestor)
            ancestor = self.versions[ancestor][0]
        return frozenset(numbers)

    def find_expendable(self, retention: Retention, *, in_use: set[int]) -> tuple[int, ...]:
        """Return the versions whose weights retention does not keep; head and serving version are always in use."""
        numbers = [version for version in self.versions if version not in self.retired]
        parents = {version: self.versions[version][0] for version in numbers}
        return expendable(numbers, parents, retention, in_use={self.head, self.serving, *in_use})


class JournaledBackend(JobBackend):
    """Keeps the journal; a subclass trains."""

    def __init__(
        self, model: str, folder: Path | None, *, base_checkpoint: str = "", lock: FolderLock | None = None
    ) -> None:
        """`lock` is the folder's, where one process alone may use it; it is released if the journal is damaged."""
        super().__init__(model)
        self._journal = folder / JOURNAL_NAME if folder else None
        self._lock = lock
        self.weights_tree = Weights(checkpoints={0: base_checkpoint})
        if self._journal is not None:
            self._journal.parent.mkdir(parents=True, exist_ok=True)
            try:
                for entry in read_entries(self._journal):
                    self._apply(entry)
            except BaseException:
                self._release_folder()
                raise

    def _release_folder(self) -> None:
        if self._lock is not None:
            self._lock.close()

    async def is_healthy(self) -> bool:
        """Return True: there is nothing to break."""
        return True

    async def prepare(self, request: TrainRequest) -> None:
        """Do nothing: this backend sends nothing."""

    async def versions(self) -> Versions:
        """Return every version since the base."""
        tree = self.weights_tree
        loaded_versions = tuple(
            WeightsVersion(version, parent, batch_hash, tree.checkpoints[version], loaded=True)
            for version, (parent, batch_hash) in sorted(tree.versions.items())
        )
        return Versions(tree.head, tree.serving, loaded_versions)

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        """Serve a version; with `rollback` also train from it."""
        if version not in self.weights_tree.versions:
            raise RejectedError(f"version {version} of {self._model!r} does not exist")
        self._record({"kind": "promoted", "version": version, "rollback": rollback})

    async def close(self) -> None:
        """Wait for the update in progress."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def find_result(self, batch_hash: str) -> TrainResult | None:
        """Return the result, if its weights are still among the head's ancestors: a batch rolled back trains again."""
        tree = self.weights_tree
        result = tree.results.get(batch_hash)
        return result if result is not None and result.version in tree.lineage(tree.head) else None

    def check_request(self, request: TrainRequest) -> None:
        """Refuse a batch for another base, and numbers that are not finite."""
        if request.base_version != self.weights_tree.head:
            raise RejectedError(
                f"batch {request.batch_hash} is for base version {request.base_version}, "
                f"but the model has moved on to {self.weights_tree.head}"
            )
        for trajectory in request.trajectories:
            if not all(map(math.isfinite, (trajectory.advantage, trajectory.reward, *trajectory.advantages))):
                raise RejectedError(f"trajectory {trajectory.trajectory_id}: its reward or advantage is not finite")

    def next_version(self) -> int:
        """Return the number of the next weights."""
        return max(self.weights_tree.versions) + 1

    def record_result(self, result: TrainResult, digest: str = "") -> None:
        """Write down what a batch led to."""
        self._record({"kind": "trained", "result": to_json(result), "digest": digest})

    def _record(self, entry: dict[str, object]) -> None:
        """Write the journal first, then apply: what was not written did not happen."""
        if self._journal is not None:
            append_line(self._journal, json.dumps(entry, sort_keys=True).encode())
        self._apply(entry)

    def _apply(self, entry: dict[str, object]) -> None:
        tree = self.weights_tree
        match entry:
            case {"kind": "promoted", "version": int(version), "rollback": bool(rollback)}:
                tree.serving = version
                tree.head = version if rollback else tree.head
            case {"kind": "retired", "version": int(version)}:
                tree.retired.add(version)
            case {"kind": "trained", "result": dict(body), "digest": str(digest)}:
                result = from_json(TrainResult, body)
                tree.results[result.batch_hash] = result
                if result.state == "completed":
                    tree.digests[result.version] = digest
                    tree.versions[result.version] = (result.base_version, result.batch_hash)
                    tree.checkpoints[result.version] = result.checkpoint
                    tree.head = result.version
