"""The records of one partition, in order → rows in offset ranges that are the same on every reading.

Pure. A range is cut when the sink has to write. The sink notes the bounds of a range before it inserts the rows, so
after a restart the same range is cut again, and its inserts carry the same tokens. A record that cannot be read becomes
a row of `dead_letters` (stage `sink`), and reading goes on.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from rollbus.consumers.clickhouse.rows.rows import FILLS, fills_of, part_rows
from rollbus.consumers.clickhouse.store.fills import Fill, Filled
from rollbus.consumers.clickhouse.store.origin import KafkaRecord, PartitionOrigin, Row, Rows
from rollbus.runtime.log_mark import LogMark, digest_of_parts, digest_of_value
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.records.drops import DeadLetter, kept_bytes

STAGE = "sink"
NO_MARK = LogMark("", "")
"""Of a range that was read from an archive: it is not proof of where its log is now."""


@dataclass(slots=True)
class Waiting:
    """Records that wait to be written, field by field: the same index in every list is the same record."""

    offsets: list[int] = field(default_factory=list)
    timestamps_ms: list[int] = field(default_factory=list)
    keys: list[bytes | None] = field(default_factory=list)
    sizes_bytes: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    """Each decoded; a dead letter in place of one that cannot be read."""
    fills: list[tuple[Fill, ...]] = field(default_factory=list)
    """The tables that get a row of the record."""
    parts: list[Rows] = field(default_factory=list)
    """The rows of what the record holds."""
    refused: list[bool] = field(default_factory=list)
    """True for a record that cannot be read."""

    def split(self, count: int) -> "Waiting":
        """Return the first records, and keep the others."""
        first = Waiting()
        for name in self.__slots__:
            values = getattr(self, name)
            setattr(first, name, values[:count])
            setattr(self, name, values[count:])
        return first


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition that are written and committed together."""

    topic: str
    partition: int
    from_offset: int
    """Where the range before it ended."""
    last_offset: int
    """Of its last record; `from_offset` - 1 for a range without records."""
    next_offset: int
    """What to commit."""
    records: int
    added: int
    """How many of these no earlier range had: a range that replaces another contains the records of that one."""
    stored: int
    rows: int
    dead_letters: int
    bytes: int
    digest: str
    tables: dict[str, Sequence[Row]]
    mark: LogMark = NO_MARK
    """Which log it is of, and its last record."""

    def token(self, table: str) -> str:
        """Return the name under which ClickHouse knows a repeated insert.

        The digest is in it, since a topic that was deleted and created again has other records at the same offsets.
        """
        return f"{table}:{self.topic}:{self.partition}:{self.from_offset}-{self.last_offset}:{self.digest}"

    def row(self, namespace: str, *, end_offset: int) -> Row:
        """Return its row of `sink_ranges`; `end_offset` is where the partition ended when it was cut."""
        names = (
            "from_offset",
            "last_offset",
            "next_offset",
            "records",
            "stored",
            "rows",
            "dead_letters",
            "bytes",
            "digest",
        )
        place = {"namespace": namespace, "kafka_topic": self.topic, "kafka_partition": self.partition}
        log = self.mark.note if self.mark != NO_MARK else ""
        return place | {name: getattr(self, name) for name in names} | {"end_offset": end_offset, "log": log}


class PartitionBuffer:
    """What was read of one partition and is not written yet."""

    def __init__(
        self,
        *,
        namespace: str,
        topic: str,
        partition: int,
        start: int,
        planned_last: int | None = None,
        mark: LogMark = NO_MARK,
    ) -> None:
        """Begin at the committed offset; `planned_last` ends the range that an earlier reader noted."""
        self._mark = mark
        self.namespace = namespace
        self.topic = topic
        self.partition = partition
        self.rows = 0
        self.bytes = 0
        self._planned_last = planned_last
        self._next_offset = self._position = start
        self._waiting = Waiting()
        self._place = PartitionOrigin(namespace, topic, partition)
        self._idle: OffsetRange | None = None

    @property
    def next_offset(self) -> int:
        """Where the next range begins: all before it was cut."""
        return self._next_offset

    @property
    def mark(self) -> LogMark:
        """Of the log, and of the last record that was cut."""
        return self._mark

    def add(self, record: KafkaRecord) -> None:
        """Take one record; its offset is above those of all records before it."""
        value, waiting = record.value or b"", self._waiting
        is_refused = False
        try:
            decoded = decode(record.value)
            fills = fills_of(decoded, self.topic)
            parts = part_rows(decoded, self._place.origin(record.offset, record.timestamp_ms))
        except RecordError as error:
            decoded, fills, parts, is_refused = self._dead_letter(record, error), FILLS[DeadLetter], [], True
        waiting.offsets.append(record.offset)
        waiting.timestamps_ms.append(record.timestamp_ms)
        waiting.sizes_bytes.append(len(value))
        waiting.keys.append(record.key)
        waiting.digests.append(digest_of_value(record.value))
        waiting.records.append(decoded)
        waiting.fills.append(fills)
        waiting.parts.append(parts)
        waiting.refused.append(is_refused)
        self._position = record.offset + 1
        self.rows += len(fills) + len(parts)
        self.bytes += len(value)

    def advance(self, position: int) -> None:
        """Note that everything before `position` was read; transaction markers have offsets, too."""
        self._position = max(self._position, position)

    def cut(self) -> OffsetRange | None:
        """Return the next range to write, and forget its records; None while there is nothing to write."""
        if self._planned_last is not None and self._position <= self._planned_last:
            return None
        records = self._split_next()
        last = records.offsets[-1] if records.offsets else self._next_offset - 1
        next_offset = last + 1 if self._waiting.offsets else self._position
        if next_offset == self._next_offset:
            return None
        cut = self._range(records, last, next_offset)
        self._next_offset = next_offset
        self.rows -= cut.rows
        self.bytes -= cut.bytes
        return self._extend_idle(cut)

    def _split_next(self) -> Waiting:
        """Return the records of the next range; the first range ends where the plan says."""
        planned_last, self._planned_last = self._planned_last, None
        offsets = self._waiting.offsets
        return self._waiting.split(len(offsets) if planned_last is None else bisect_left(offsets, planned_last + 1))

    def _range(self, records: Waiting, last_offset: int, next_offset: int) -> OffsetRange:
        tables = self._tables(records)
        if self._mark != NO_MARK and records.offsets:
            digest = digest_of_parts(records.timestamps_ms[-1], records.keys[-1], records.digests[-1])
            self._mark = replace(self._mark, last_offset=last_offset, digest=digest)
        return OffsetRange(
            topic=self.topic,
            partition=self.partition,
            from_offset=self._next_offset,
            last_offset=last_offset,
            next_offset=next_offset,
            records=len(records.offsets),
            added=len(records.offsets),
            stored=sum(map(bool, records.fills)),
            rows=sum(map(len, tables.values())),
            dead_letters=sum(records.refused),
            bytes=sum(records.sizes_bytes),
            digest=blake2b(b"".join(records.digests), digest_size=16).hexdigest(),
            tables=tables,
            mark=self._mark,
        )

    def _tables(self, records: Waiting) -> dict[str, Sequence[Row]]:
        """Return what the records give to each table, in their order."""
        part_tables: dict[str, list[Row]] = defaultdict(list)
        for parts in filter(None, records.parts):
            for table, row in parts:
                part_tables[table].append(row)
        rows_by_table: dict[str, Filled] = {}
        for record, fills, offset, timestamp in zip(
            records.records, records.fills, records.offsets, records.timestamps_ms, strict=True
        ):
            for fill in fills:
                if fill.table not in rows_by_table:
                    rows_by_table[fill.table] = Filled(fill, self._place)
                rows_by_table[fill.table].add(record, offset, timestamp)
        return {**part_tables, **rows_by_table}

    def _extend_idle(self, cut: OffsetRange) -> OffsetRange:
        """Join ranges without rows (ticks) under one start, so that they replace one row instead of adding many."""
        before, self._idle = self._idle, None
        if cut.rows:
            return cut
        if before is not None:
            cut = replace(
                cut,
                from_offset=before.from_offset,
                records=before.records + cut.records,
                bytes=before.bytes + cut.bytes,
                digest=blake2b((before.digest + cut.digest).encode(), digest_size=16).hexdigest(),
            )
        self._idle = cut
        return cut

    def _dead_letter(self, record: KafkaRecord, error: RecordError) -> DeadLetter:
        return DeadLetter(
            topic=self.namespace + record.topic,
            partition=record.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp_ms,
            **kept_bytes(record.key, record.value),
            stage=STAGE,
            error_class=type(error).__name__,
            message=str(error),
        )
