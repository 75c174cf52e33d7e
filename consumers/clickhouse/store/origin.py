"""Where a row comes from: the Kafka coordinates that every row carries."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.record_makers import maker

Row = dict[str, Any]
"""Column name to value; times are whole milliseconds since 1970, UTC."""
Rows = list[tuple[str, Row]]
"""(table, row)."""

MAX_TIME_MS = 4_102_444_800_000
"""2100-01-01. A producer's clock may be far off, but a DateTime64 column holds 1970 … 2100 only."""


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """One record as Kafka gave it."""

    topic: str
    """Without the namespace."""
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Origin:
    """One record's place in the log."""

    namespace: str
    topic: str
    """Without the namespace."""
    partition: int
    offset: int
    timestamp_ms: int
    """Of the Kafka record."""

    def row(self, **columns: Any) -> Row:
        """Return a row with these columns and the coordinates."""
        columns["namespace"] = self.namespace
        columns["kafka_topic"] = self.topic
        columns["kafka_partition"] = self.partition
        columns["kafka_offset"] = self.offset
        columns["kafka_timestamp"] = time_ms(self.timestamp_ms)
        return columns


@dataclass(frozen=True, slots=True)
class PartitionOrigin:
    """A partition; with an offset it gives an origin."""

    namespace: str
    topic: str
    """Without the namespace."""
    partition: int

    def origin(self, offset: int, timestamp_ms: int) -> Origin:
        """Return the origin of the record there."""
        return _make_origin(self.namespace, self.topic, self.partition, offset, timestamp_ms)

    def columns(self, offsets: Sequence[int], timestamps_ms: Sequence[int]) -> dict[str, Sequence[Any]]:
        """Return the coordinates of many rows, column by column."""
        count = len(offsets)
        return {
            "namespace": [self.namespace] * count,
            "kafka_topic": [self.topic] * count,
            "kafka_partition": [self.partition] * count,
            "kafka_offset": offsets,
            "kafka_timestamp": times_ms(timestamps_ms),
        }


_make_origin = maker(Origin)


def time_ms(value: int) -> int:
    """Return a time that a DateTime64 column can hold."""
    return value if 0 <= value <= MAX_TIME_MS else min(max(value, 0), MAX_TIME_MS)


def optional_time_ms(value: int | None) -> int | None:
    """Return a time that a nullable DateTime64 column can hold."""
    return None if value is None else time_ms(value)


def times_ms(values: Sequence[int]) -> Sequence[int]:
    """Return times that a DateTime64 column can hold; mostly they are the values as they are."""
    fits = not values or (min(values) >= 0 and max(values) <= MAX_TIME_MS)
    return values if fits else list(map(time_ms, values))
