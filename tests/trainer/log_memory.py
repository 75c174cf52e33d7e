"""The log in memory: topics of encoded records, one committed offset per run, one epoch per transactional id.

Simple, never different: what the broker promises the trainer (order, all or nothing, fencing) holds here too.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollbus.runtime.health.alarms.divergence import find_pause, find_stop
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import FencedError, RecordError, UnavailableError
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.records.steps import Evaluation
from rollbus.schemas.records.trajectories import Location, RewardRevised, Score, Trajectory
from rollbus.schemas.topics import (
    BATCHES,
    EVALUATIONS,
    EXCLUSIONS,
    POLICY_VERSIONS,
    RUN_LOG,
    SCORES,
    TRAINING_STEPS,
    Topic,
)
from rollbus.trainer.ledger.ledger import LedgerRecord
from rollbus.trainer.ledger.log import LastRecords, Publication, ReceivedBatch, names


@dataclass(slots=True)
class MemoryBroker:
    """What outlives a trainer: records as bytes, offsets, and the epoch that may write."""

    topics: dict[str, list[bytes | None]] = field(default_factory=lambda: defaultdict(list))
    """One partition each; None where retention removed the record."""
    offsets: dict[str, int] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    claims: dict[str, "MemoryLog"] = field(default_factory=dict)
    """By model, the log that was opened last."""

    def append(self, topic: Topic, record: Any) -> Location:
        """Write a record as another process would."""
        return self.append_bytes(topic, encode(record))

    def append_bytes(self, topic: Topic, data: bytes) -> Location:
        """Write bytes that need not be a record."""
        log = self.topics[topic.name]
        log.append(data)
        return Location(topic=topic.name, partition=0, offset=len(log) - 1)

    def expire(self, location: Location) -> None:
        """Lose a record to retention."""
        self.topics[location.topic.rpartition(".")[2]][location.offset] = None

    def records(self, topic: Topic) -> list[Any]:
        """Every record still there, decoded."""
        return [decode(data) for data in self.topics[topic.name] if data is not None]


class MemoryLog:
    """One trainer's view of a `MemoryBroker`."""

    def __init__(self, broker: MemoryBroker, *, run_id: str, model: str) -> None:
        self._broker = broker
        self._run_id = run_id
        self._model = model
        self._epoch: int | None = None
        self._position = 0
        self._has_claimed = False

    async def stand_by(self) -> None:
        """Wait for nobody: all trainers are in this process."""

    async def open(self) -> None:
        """Fence the trainer before and go to the committed batch."""
        await self.require_charge()
        self._broker.claims[self._model], self._has_claimed = self, True
        self._epoch = self._broker.epochs.get(self._model, 0) + 1
        self._broker.epochs[self._model] = self._epoch
        self._position = self._broker.offsets.get(self._run_id, 0)

    async def require_charge(self) -> None:
        """Compare the claim with this log."""
        if self._has_claimed and self._broker.claims[self._model] is not self:
            raise FencedError(f"a newer trainer of this model has taken over: model {self._model!r}")

    async def read_ledger(self) -> Sequence[LedgerRecord]:
        """Return versions, then steps."""
        return [*self._broker.records(POLICY_VERSIONS), *self._broker.records(TRAINING_STEPS)]

    async def next_batch(self, timeout_s: float, *, skip_unreadable: bool = True) -> ReceivedBatch | None:
        """Return the next batch of the run; wait only if there is none."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            batches = self._broker.topics[BATCHES.name]
            while self._position < len(batches):
                data = batches[self._position]
                self._position += 1
                record = _decode_or_none(data)
                if isinstance(record, TrainingBatch) and record.run_id == self._run_id:
                    return ReceivedBatch(record, self._position)
            if asyncio.get_running_loop().time() >= deadline:
                return None
            await asyncio.sleep(0.001)

    async def at_end(self) -> bool:
        """Compare the position with the number of records."""
        return self._position >= len(self._broker.topics[BATCHES.name])

    async def publish(
        self,
        publications: Sequence[Publication],
        *,
        last: LastRecords | None = None,
        next_offset: int | None = None,
    ) -> Sequence[Publication]:
        """Append everything, unless a newer trainer has opened the log."""
        if last is not None:
            publications = (*publications, *await last())
        if self._epoch is None:
            raise UnavailableError(f"the log is not open; cannot write {names(publications)}")
        if self._epoch != self._broker.epochs[self._model]:
            raise FencedError(f"a newer trainer of model {self._model!r} has taken over")
        encoded = [(publication.topic, encode(publication.record)) for publication in publications]
        for topic, data in encoded:
            self._broker.topics[topic.name].append(data)
        if next_offset is not None:
            self._broker.offsets[self._run_id] = next_offset
        return publications

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """Return what is still there."""
        return {location: record for location, record in self._records(locations) if isinstance(record, Trajectory)}

    async def fetch_revisions(self, locations: Collection[Location]) -> Mapping[Location, RewardRevised]:
        """Return what is still there."""
        return {location: record for location, record in self._records(locations) if isinstance(record, RewardRevised)}

    async def fetch_scores(self, locations: Collection[Location]) -> Mapping[Location, Score]:
        """Return what is still there."""
        return {location: record for location, record in self._records(locations) if isinstance(record, Score)}

    def _records(self, locations: Collection[Location]) -> Iterator[tuple[Location, Any]]:
        for location in locations:
            log = self._broker.topics.get(location.topic.rpartition(".")[2], [])
            data = log[location.offset] if location.offset < len(log) else None
            yield location, _decode_or_none(data)

    async def excluded_episodes(self) -> Collection[str]:
        """Return the episodes that a score or the list of exclusions names."""
        scores = self._broker.records(SCORES)
        excluded = {score.episode_id for score in scores if isinstance(score, Score) and score.excluded}
        return excluded | {record.episode_id for record in self._broker.records(EXCLUSIONS)}

    async def paused(self) -> RunCommand | None:
        """Return the pause that holds."""
        return find_pause(self._commands())

    async def stopped(self) -> RunCommand | None:
        """Return the stop that holds."""
        return find_stop(self._commands())

    def _commands(self) -> list[RunCommand]:
        commands = [record for record in self._broker.records(RUN_LOG) if isinstance(record, RunCommand)]
        return [command for command in commands if command.run_id == self._run_id]

    async def evaluations(self) -> Sequence[Evaluation]:
        """Return those of the model."""
        records = [record for record in self._broker.records(EVALUATIONS) if record.model == self._model]
        return sorted(records, key=lambda record: record.evaluated_at_ms)

    async def close(self) -> None:
        """Close this view only."""
        self._epoch = None

    async def leave(self) -> None:
        """Close."""
        await self.close()


def _decode_or_none(data: bytes | None) -> Any:
    try:
        return decode(data)
    except RecordError:
        return None
