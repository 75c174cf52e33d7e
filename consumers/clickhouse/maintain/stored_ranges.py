"""What the sink has noted of the log in `sink_ranges`: compared with the log, and completed by a rebuild."""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rollbus.consumers.clickhouse.sink.log import OffsetSpan, Partition
from rollbus.consumers.clickhouse.sink.ranges import OffsetRange
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import RANGES
from rollbus.consumers.clickhouse.store.origin import KafkaRecord
from rollbus.runtime.log_mark import LogMark, parse_note
from rollbus.schemas.errors import DataLossError


@dataclass(frozen=True, slots=True)
class StoredRange:
    """Offsets that the sink has read, as a row of `sink_ranges` says."""

    first: int
    last: int
    next: int
    records: int
    rows: int
    digest: str
    """Empty where it was read from a log that lacks forgotten episodes: then other logs have other bytes."""


def read_stored_ranges(client: ClickHouse, namespace: str) -> dict[Partition, list[StoredRange]]:
    """Return the ranges of each partition, in order."""
    _, rows = client.query(
        "SELECT kafka_topic, kafka_partition, from_offset, last_offset, next_offset, records, rows, digest "
        f"FROM {RANGES} FINAL WHERE namespace = {{namespace:String}} ORDER BY from_offset",
        {"namespace": namespace},
    )
    ranges: dict[Partition, list[StoredRange]] = {}
    for topic, number, *of_range in rows:
        ranges.setdefault((topic, number), []).append(StoredRange(*of_range))
    return ranges


def split_by_ranges(span: OffsetSpan, ranges: Sequence[StoredRange]) -> list[tuple[OffsetSpan, bool]]:
    """Return the parts of a span in turn, each with True where ranges cover it; the ranges are in order."""
    parts, at = list[tuple[OffsetSpan, bool]](), span.begin
    for stored_range in ranges:
        first, end = max(stored_range.first, at), min(stored_range.next, span.end)
        if first >= end:
            continue
        if first > at:
            parts.append((OffsetSpan(at, first), False))
        begin = parts.pop()[0].begin if parts and parts[-1][1] else first
        parts.append((OffsetSpan(begin, end), True))
        at = end
    return [*parts, (OffsetSpan(at, span.end), False)] if at < span.end else parts


def note_ranges(client: ClickHouse, namespace: str, cuts: Collection[OffsetRange]) -> int:
    """Note what was read and no range covers by now, and return how many ranges that are."""
    stored = read_stored_ranges(client, namespace) if cuts else {}
    rows = [
        cut.row(namespace, end_offset=cut.next_offset)
        for cut in cuts
        if not any(
            stored_range.first < cut.next_offset and cut.from_offset < stored_range.next
            for stored_range in stored.get((cut.topic, cut.partition), ())
        )
    ]
    client.insert(RANGES, rows)
    return len(rows)


class Digests:
    """Compares the ranges of one partition, as the sink noted them, with the bytes of the log."""

    def __init__(
        self, partition: Partition, span: OffsetSpan, ranges: Sequence[StoredRange], *, lacks_forgotten: bool = False
    ) -> None:
        """Take the ranges of the partition; those that reach out of the span are not compared.

        With `lacks_forgotten`, neither is a range of which the log gives fewer records than the sink has read.
        """
        self._partition, self._lacks_forgotten = partition, lacks_forgotten
        self._ranges = [
            stored_range
            for stored_range in ranges
            if stored_range.rows
            and stored_range.digest
            and span.begin <= stored_range.first
            and stored_range.last < span.end
        ]
        self._index = self._records = 0
        self._hash = hashlib.blake2b(digest_size=16)
        self.uncompared = 0

    def add(self, record: KafkaRecord) -> None:
        """Take the next record; raises DataLossError if it ends a range that holds other bytes."""
        while self._index < len(self._ranges) and record.offset > self._ranges[self._index].last:
            self._check_range()
        if self._index < len(self._ranges) and record.offset >= self._ranges[self._index].first:
            self._hash.update(hashlib.blake2b(record.value or b"", digest_size=16).digest())
            self._records += 1

    def finish(self) -> int:
        """Compare the rest, and return how many ranges are equal; raises DataLossError."""
        while self._index < len(self._ranges):
            self._check_range()
        return len(self._ranges) - self.uncompared

    def _check_range(self) -> None:
        stored_range = self._ranges[self._index]
        if self._lacks_forgotten and self._records < stored_range.records:
            self.uncompared += 1
        elif self._hash.hexdigest() != stored_range.digest:
            topic, number = self._partition
            raise DataLossError(
                f"offsets {stored_range.first} to {stored_range.last} of {topic}:{number} do not hold what the sink "
                "read; nothing was changed. If the topic was deleted and created again, begin with an empty database"
            )
        self._index, self._records = self._index + 1, 0
        self._hash = hashlib.blake2b(digest_size=16)


def read_range_marks(client: ClickHouse, namespace: str) -> dict[Partition, LogMark]:
    """Return the newest mark of each partition; none of those that a rebuild from an archive has noted."""
    _, rows = client.query(
        f"SELECT kafka_topic, kafka_partition, argMax(log, next_offset) FROM {RANGES} "
        "WHERE namespace = {namespace:String} AND log != '' GROUP BY kafka_topic, kafka_partition",
        {"namespace": namespace},
    )
    marks = {(str(topic), int(number)): parse_note(note) for topic, number, note in rows}
    return {partition: mark for partition, mark in marks.items() if mark is not None}
