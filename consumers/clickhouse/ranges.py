"""The records of one partition, in order → rows in offset ranges that come out the same on every reading.

Pure. A range is cut where the sink has to write; what makes a second reading equal is the plan: the range that was
written down before its rows were inserted is rebuilt with the same bounds, so its inserts carry the same tokens.
What cannot be read becomes a row of `dead_letters` (stage `sink`), and reading goes on.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rollbus.consumers.clickhouse.chunk_joiner import ChunkJoiner, KafkaRecord
from rollbus.consumers.clickhouse.fills import Fill, Filled
from rollbus.consumers.clickhouse.origin import Origin, Row, Rows
from rollbus.consumers.clickhouse.rows import rows_of
from rollbus.consumers.clickhouse.rows_events import fills_of
from rollbus.consumers.clickhouse.rows_operations import dead_letter
from rollbus.schemas.chunks import is_chunk
from rollbus.schemas.codec import decode
from rollbus.schemas.drops import DeadLetter
from rollbus.schemas.errors import RecordError
from rollbus.schemas.events import Event
from rollbus.schemas.making import maker

STAGE = "sink"


@dataclass(frozen=True, slots=True)
class Entry:
    """One record as it waits to be written."""

    offset: int
    size_bytes: int
    digest: bytes
    rows: Rows
    dead_letters: int
    event: Event | None
    fills: tuple[Fill, ...]
    """What the event fills beside the rows."""
    origin: Origin
    """Of the event."""


_entry = maker(Entry)
_place = maker(Origin)
_NOTHING: tuple[Fill, ...] = ()


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records of one partition that are written and committed together."""

    topic: str
    partition: int
    from_offset: int
    """Where the range before it ended."""
    last_offset: int
    """Of its last record; before `from_offset` where it has none."""
    next_offset: int
    """What to commit."""
    records: int
    stored: int
    rows: int
    dead_letters: int
    bytes: int
    digest: str
    tables: dict[str, Sequence[Row]]

    def token(self, table: str) -> str:
        """Return the name under which ClickHouse knows a repeated insert.

        The digest is in it: a log that was made anew has the same offsets and other records.
        """
        return f"{table}:{self.topic}:{self.partition}:{self.from_offset}-{self.last_offset}:{self.digest}"


class PartitionBuffer:
    """What was read of one partition and is not written yet."""

    def __init__(
        self, *, namespace: str, topic: str, partition: int, start: int, planned_last: int | None = None
    ) -> None:
        """Begin at the committed offset; `planned_last` ends the range that a reader before us had begun."""
        self.namespace = namespace
        self.topic = topic
        self.partition = partition
        self.rows = 0
        self.bytes = 0
        self._planned_last = planned_last
        self._next_offset = self._position = start
        self._entries: list[Entry] = []
        self._joiner = ChunkJoiner()
        self._idle: OffsetRange | None = None

    def add(self, record: KafkaRecord) -> None:
        """Take one record; its offset is above all before it."""
        entry = self._read(record)
        self._entries.append(entry)
        self._position = record.offset + 1
        self.rows += len(entry.rows) + len(entry.fills)
        self.bytes += entry.size_bytes

    def advance(self, position: int) -> None:
        """Take notice that everything before `position` was read (transaction markers have offsets, too)."""
        self._position = max(self._position, position)

    def cut(self) -> OffsetRange | None:
        """Return the next range to write, and forget its records; None where there is nothing yet."""
        taken = self._take()
        if taken is None:
            return None
        following = self._entries[0].offset if self._entries else None
        next_offset = self._position if following is None else taken[-1].offset + 1 if taken else self._next_offset
        if next_offset == self._next_offset:
            return None
        made = self._range(taken, next_offset)
        self._next_offset = next_offset
        self.rows -= made.rows
        self.bytes -= sum(entry.size_bytes for entry in taken)
        return self._extend_idle(made)

    def _take(self) -> list[Entry] | None:
        limit = self._joiner.oldest_offset
        if self._planned_last is not None:
            if self._position <= self._planned_last:
                return None
            limit = min(self._planned_last + 1, self._position if limit is None else limit)
            self._planned_last = None
        count = len(self._entries)
        if limit is not None:
            count = next((n for n, entry in enumerate(self._entries) if entry.offset >= limit), count)
        taken, self._entries = self._entries[:count], self._entries[count:]
        return taken

    def _range(self, taken: list[Entry], next_offset: int) -> OffsetRange:
        tables = _tables(taken)
        return OffsetRange(
            topic=self.topic,
            partition=self.partition,
            from_offset=self._next_offset,
            last_offset=taken[-1].offset if taken else self._next_offset - 1,
            next_offset=next_offset,
            records=len(taken),
            stored=sum(1 for entry in taken if entry.rows or entry.fills),
            rows=sum(map(len, tables.values())),
            dead_letters=sum(entry.dead_letters for entry in taken),
            bytes=sum(entry.size_bytes for entry in taken),
            digest=hashlib.blake2b(b"".join(entry.digest for entry in taken), digest_size=16).hexdigest(),
            tables=tables,
        )

    def _extend_idle(self, made: OffsetRange) -> OffsetRange:
        """Let ranges without rows (ticks) grow under one start, so that they replace one row instead of adding many."""
        before, self._idle = self._idle, None
        if made.rows:
            return made
        if before is not None:
            made = replace(
                made,
                from_offset=before.from_offset,
                records=before.records + made.records,
                bytes=before.bytes + made.bytes,
                digest=hashlib.blake2b((before.digest + made.digest).encode(), digest_size=16).hexdigest(),
            )
        self._idle = made
        return made

    def _read(self, record: KafkaRecord) -> Entry:
        value = record.value or b""
        digest = hashlib.blake2b(value, digest_size=16).digest()
        rows = self._given_up(record) if len(self._joiner) else []
        letters = len(rows)
        event: Event | None = None
        fills, origin = _NOTHING, self._origin(record)
        try:
            whole = self._joiner.add(record) if is_chunk(value) else record
            if whole is not None:
                found = decode(whole.value)
                origin = origin if whole is record else self._origin(whole)
                if isinstance(found, Event):
                    event, fills = found, fills_of(found)
                else:
                    rows += rows_of(found, origin)
        except RecordError as error:
            rows += self._dead_letter(record, type(error).__name__, str(error))
            letters += 1
        return _entry(record.offset, len(value), digest, rows, letters, event, fills, origin)

    def _given_up(self, record: KafkaRecord) -> Rows:
        lost = self._joiner.give_up(record.timestamp_ms)
        return [row for first, what in lost for row in self._dead_letter(first, "MissingChunkError", what)]

    def _dead_letter(self, record: KafkaRecord, error_class: str, message: str) -> Rows:
        letter = DeadLetter(
            topic=self.namespace + record.topic,
            partition=record.partition,
            offset=record.offset,
            timestamp_ms=record.timestamp_ms,
            key=record.key,
            value=record.value,
            stage=STAGE,
            error_class=error_class,
            message=message,
        )
        return dead_letter(letter, self._origin(record))

    def _origin(self, record: KafkaRecord) -> Origin:
        return _place(self.namespace, record.topic, record.partition, record.offset, record.timestamp_ms)


def _tables(entries: Sequence[Entry]) -> dict[str, Sequence[Row]]:
    """Return what the records give to each table, in their order."""
    made: dict[str, list[Row]] = defaultdict(list)
    filled: dict[Fill, Filled] = {}
    for entry in entries:
        for table, row in entry.rows:
            made[table].append(row)
        for fill in entry.fills:
            if fill not in filled:
                filled[fill] = Filled(fill)
            filled[fill].add(entry.event, entry.origin)
    return {**made, **{fill.table: rows for fill, rows in filled.items()}}
