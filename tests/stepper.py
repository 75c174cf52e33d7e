"""Drive one stage on one partition, record by record, as a worker would."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from rollbus.schemas.codec import encode
from rollbus.schemas.records.trajectories import Location
from rollbus.schemas.topics import Topic
from rollbus.streams.state.stage import EffectsStage, Incoming, Outgoing, PureAsEffects
from tests.builders import make_tick

K = TypeVar("K")


class Stepper:
    """A stage with one partition's state and changelog; `restoring` throws the state away after every record."""

    def __init__(self, stage: Any, *, restoring: bool = False) -> None:
        self.stage: EffectsStage[Any, Any] = stage if hasattr(stage, "answer") else PureAsEffects(stage)
        self.state = self.stage.new_state()
        self.restoring = restoring
        self.changelog: dict[bytes, bytes] = {}
        self.offset = 0
        self.ticks = -1
        self.now_s = 0.0

    def feed(self, *records: Any, key: str = "key", partition: int = 0) -> list[Any]:
        """Process records one batch each; return the records that came out."""
        return [out.record for record in records for out in self.outputs([record], key, partition)]

    def outputs(self, records: Iterable[Any], key: str = "key", partition: int = 0) -> list[Outgoing]:
        """Process records as one batch; return what came out."""
        batch = [self._incoming(record, key, partition) for record in records]
        is_pure = isinstance(self.stage, PureAsEffects)  # asks nothing, and an event loop costs more than its step
        answers = [None] * len(batch) if is_pure else asyncio.run(self.stage.answer(self.state, batch))
        output_records = [
            out
            for incoming, answer in zip(batch, answers, strict=True)
            for out in self.stage.step(self.state, incoming, answer)
        ]
        self._log()
        return output_records

    def tick(self, seconds: float = 0) -> list[Any]:
        """Let so many seconds of stream time pass in one tick."""
        self.ticks += 1
        self.now_s += seconds
        return self.feed(make_tick(self.ticks, stream_time_ms=make_tick(0).stream_time_ms + int(self.now_s * 1000)))

    def restore(self) -> None:
        """Go on from the changelog alone, its rows in another order."""
        self.state = self.stage.new_state()
        for key in sorted(self.changelog, reverse=True):
            self.state.restore(key, self.changelog[key])

    def _incoming(self, record: Any, key: str, partition: int) -> Incoming:
        data = encode(record)
        self.offset += 1
        return Incoming(record, key, Location(topic="t", partition=partition, offset=self.offset - 1), data)

    def _log(self) -> None:
        compact(self.changelog, self.state.drain())
        if self.restoring:
            self.restore()


def splits(records: Sequence[Any]) -> Iterator[list[list[Any]]]:
    """Every way in which records can come in batches."""
    for ends in range(2 ** (len(records) - 1)):
        batches: list[list[Any]] = [[]]
        for place, record in enumerate(records):
            batches[-1].append(record)
            if ends >> place & 1 and place < len(records) - 1:
                batches.append([])
        yield batches


def compact(changelog: dict[K, bytes], rows: Iterable[tuple[K, bytes | None]]) -> None:
    """Write rows as a compacted topic keeps them: the newest of each key, and none that was deleted."""
    for key, value in rows:
        if value is None:
            changelog.pop(key, None)
        else:
            changelog[key] = value


def of_topic(outputs: Iterable[Outgoing], topic: Topic) -> list[Any]:
    """The records that go to a topic."""
    return [out.record for out in outputs if out.topic is topic]


def reasons(records: Iterable[Any]) -> list[str]:
    """The reason codes of the drops among some records."""
    return [record.reason for record in records if type(record).__name__ == "Drop"]


def kinds(records: Iterable[Any]) -> list[str]:
    """The type names of some records."""
    return [type(record).__name__ for record in records]
