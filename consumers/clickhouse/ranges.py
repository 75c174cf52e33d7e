"""The records of one partition, in order → rows in offset ranges that come out the same on every reading.

Pure. A range is cut where the sink has to write; what makes a second reading equal is the plan: the range that was
written down before its rows were inserted is rebuilt with the same bounds, so its inserts carry the same tokens.
What cannot be read becomes a row of `dead_letters` (stage `sink`), and reading goes on.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from rollbus.consumers.clickhouse.chunk_joiner import ChunkJoiner, KafkaRecord
from rollbus.consumers.clickhouse.fills import Fill, Filled
from rollbus.consumers.clickhouse.origin import Place, Row, Rows
from rollbus.consumers.clickhouse.rows import rows_of
from rollbus.consumers.clickhouse.rows_events import fills_of
from rollbus.consumers.clickhouse.rows_operations import dead_letter
from rollbus.schemas.chunks import is_chunk
from rollbus.schemas.codec import HEADER_BYTES, decode, headers
from rollbus.schemas.control import Tick
from rollbus.schemas.drops import DeadLetter
from rollbus.schemas.errors import RecordError
from rollbus.schemas.events import Event
from rollbus.schemas.topics import topic_of

STAGE = "sink"


@dataclass(slots=True)
class Waiting:
    """Records that wait to be written, field by field: at the same index in every list is the same record."""

    offsets: list[int] = field(default_factory=list)
    sizes_bytes: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    dead_letters: list[int] = field(default_factory=list)
    rows: list[Rows] = field(default_factory=list)
    events: list[Event | None] = field(default_factory=list)
    fills: list[tuple[Fill, ...]] = field(default_factory=list)
    """What the event fills beside the rows."""
    places: list[int] = field(default_factory=list)
    """Offset that the event's rows carry: of its first chunk where it came in chunks."""
    timestamps_ms: list[int] = field(default_factory=list)
    """Of the same record."""

    def split(self, count: int) -> "Waiting":
        """Return the first records, and keep the others."""
        taken = Waiting()
        for name in self.__slots__:
            values = getattr(self, name)
            setattr(taken, name, values[:count])
            setattr(self, name, values[count:])
        return taken


Read = tuple[Rows, Event | None, tuple[Fill, ...], int, KafkaRecord]
"""What was found in a record: rows, an event and what it fills beside them, dead letters, and where the event is."""


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
    added: int
    """Of these, the records that no range before it had: one that replaces another has that one's, too."""
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
        self._waiting = Waiting()
        self._place = Place(namespace, topic, partition)
        self._has_chunks = False
        self._has_ticks = Tick in topic_of(topic).records
        self._joiner = ChunkJoiner()
        self._idle: OffsetRange | None = None

    def add(self, record: KafkaRecord) -> None:
        """Take one record; its offset is above all before it."""
        value, waiting = record.value or b"", self._waiting
        rows, event, fills, letters, place = self._read(record, value)
        size = len(value)
        waiting.offsets.append(record.offset)
        waiting.sizes_bytes.append(size)
        waiting.digests.append(blake2b(value, digest_size=16).digest())
        waiting.dead_letters.append(letters)
        waiting.rows.append(rows)
        waiting.events.append(event)
        waiting.fills.append(fills)
        waiting.places.append(place.offset)
        waiting.timestamps_ms.append(place.timestamp_ms)
        self._position = record.offset + 1
        self.rows += len(rows) + len(fills)
        self.bytes += size

    def advance(self, position: int) -> None:
        """Take notice that everything before `position` was read (transaction markers have offsets, too)."""
        self._position = max(self._position, position)

    def cut(self) -> OffsetRange | None:
        """Return the next range to write, and forget its records; None where there is nothing yet."""
        taken = self._take()
        if taken is None:
            return None
        following = self._waiting.offsets
        last = taken.offsets[-1] if taken.offsets else self._next_offset - 1
        next_offset = last + 1 if following else self._position
        if next_offset == self._next_offset:
            return None
        made = self._range(taken, last, next_offset)
        self._next_offset = next_offset
        self.rows -= made.rows
        self.bytes -= made.bytes
        return self._extend_idle(made)

    def _take(self) -> Waiting | None:
        limit = self._joiner.oldest_offset
        if self._planned_last is not None:
            if self._position <= self._planned_last:
                return None
            limit = min(self._planned_last + 1, self._position if limit is None else limit)
            self._planned_last = None
        offsets = self._waiting.offsets
        return self._waiting.split(len(offsets) if limit is None else bisect_left(offsets, limit))

    def _range(self, taken: Waiting, last_offset: int, next_offset: int) -> OffsetRange:
        tables = self._tables(taken)
        return OffsetRange(
            topic=self.topic,
            partition=self.partition,
            from_offset=self._next_offset,
            last_offset=last_offset,
            next_offset=next_offset,
            records=len(taken.offsets),
            added=len(taken.offsets),
            stored=sum(1 for rows, fills in zip(taken.rows, taken.fills, strict=True) if rows or fills),
            rows=sum(map(len, tables.values())),
            dead_letters=sum(taken.dead_letters),
            bytes=sum(taken.sizes_bytes),
            digest=blake2b(b"".join(taken.digests), digest_size=16).hexdigest(),
            tables=tables,
        )

    def _tables(self, taken: Waiting) -> dict[str, Sequence[Row]]:
        """Return what the records give to each table, in their order."""
        made: dict[str, list[Row]] = defaultdict(list)
        for rows in filter(None, taken.rows):
            for table, row in rows:
                made[table].append(row)
        filled: dict[Fill, Filled] = {}
        for event, fills, offset, timestamp in zip(
            taken.events, taken.fills, taken.places, taken.timestamps_ms, strict=True
        ):
            for fill in fills:
                if fill not in filled:
                    filled[fill] = Filled(fill, self._place)
                filled[fill].add(event, offset, timestamp)
        return {**made, **{fill.table: rows for fill, rows in filled.items()}}

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
                digest=blake2b((before.digest + made.digest).encode(), digest_size=16).hexdigest(),
            )
        self._idle = made
        return made

    def _read(self, record: KafkaRecord, value: bytes) -> Read:
        given_up = self._given_up(record, value) if self._has_chunks else []
        rows, letters, whole = given_up, len(given_up), record
        try:
            if is_chunk(value):
                self._has_chunks = True
                joined = self._joiner.add(record)
                if joined is None:
                    return rows, None, (), letters, record
                whole = joined
            elif self._has_chunks:
                self._joiner.passed(len(value))
            found = decode(whole.value)
            if isinstance(found, Event):
                return rows, found, fills_of(found), letters, whole
            rows += rows_of(found, self._place.origin(whole.offset, whole.timestamp_ms))
        except RecordError as error:
            rows += self._dead_letter(whole, type(error).__name__, str(error))
            letters += 1
        return rows, None, (), letters, record

    def _given_up(self, record: KafkaRecord, value: bytes) -> Rows:
        lost = self._joiner.give_up(self._time_ms(record, value))
        self._has_chunks = len(self._joiner) > 0
        return [row for first, what in lost for row in self._dead_letter(first, "MissingChunkError", what)]

    def _time_ms(self, record: KafkaRecord, value: bytes) -> int | None:
        """Return the time that a record tells: stream time where ticks bring it, as a producer's clock may be wrong."""
        if not self._has_ticks:
            return record.timestamp_ms
        if value[:HEADER_BYTES] not in headers(Tick):
            return None
        try:
            tick: Tick = decode(value)
        except RecordError:
            return None
        return tick.stream_time_ms

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
        return dead_letter(letter, self._place.origin(record.offset, record.timestamp_ms))
