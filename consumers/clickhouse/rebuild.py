"""A log read again from its beginning → tables made anew beside the old ones, compared, and put in their place.

The order that keeps readers undisturbed and the sink running, for all tables together:
1. make `<table>_rebuild` of each, and take over what the log does not hold: other namespaces, offsets outside it;
2. read the log as far as the sink has written it; check each range that the sink noted by the digest of its bytes;
3. compare old and new, range by range: what the old table has and the new one lacks stops everything;
4. exchange the two by name, let inserts into the old one end, take over what the sink wrote meanwhile, and drop it.

Who was forgotten stays forgotten: rows of the episodes on the log's list of exclusions are left out of every step. The
list is read again at the end, for those who were put on it meanwhile.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rollbus.consumers.clickhouse.chunk_joiner import KafkaRecord
from rollbus.consumers.clickhouse.client_clickhouse import ClickHouse
from rollbus.consumers.clickhouse.forget import delete_rows_by
from rollbus.consumers.clickhouse.forgotten import (
    LeftReports,
    drop_list,
    read_list,
    stays,
    stored_list,
    without,
    write_list,
)
from rollbus.consumers.clickhouse.log_files import Log, Partition, Span
from rollbus.consumers.clickhouse.ranges import PartitionBuffer
from rollbus.consumers.clickhouse.tables import TABLES_OF, topics_of
from rollbus.schemas.errors import ConfigurationError, DataLossError

MAX_ROWS = 50_000
MAX_BYTES = 32 * 1024 * 1024
SUFFIX = "_rebuild"
OVERLAP_MS = 60_000
"""An insert may have begun, and be visible, so long apart: rows taken over twice are absorbed by their id."""
INSERTS_END_S, LOOK_EVERY_S = 60.0, 0.05
"""How long an insert that began before the exchange may take."""

Progress = Callable[[int, int], None]
"""Hears offsets done and to do."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One table before and after."""

    table: str
    rows: int
    """Of the namespace in the rebuilt part, repeats counted once."""
    equal_ranges: int
    other_ranges: tuple[str, ...] = ()
    """Where the old table lacked rows or had others: topic:partition:from-to."""


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild did."""

    records: int = 0
    verified_ranges: int = 0
    """Ranges of the sink whose bytes were read again and are the same."""
    tables: list[Comparison] = field(default_factory=list)
    forgotten: int = 0
    """Episodes on the list of exclusions."""
    left_out: int = 0
    """Rows that the log still gives of them."""


def all_tables() -> tuple[str, ...]:
    """Return every table that is made from the log."""
    return tuple(sorted({table for tables in TABLES_OF.values() for table in tables}))


async def rebuild(
    client: ClickHouse,
    log: Log,
    namespace: str,
    tables: Sequence[str] = (),
    *,
    progress: Progress = lambda done, of: None,
) -> Rebuilt:
    """Make tables anew, all of them unless named; raises ConfigurationError, DataLossError, ServiceError."""
    chosen = tuple(tables) or all_tables()
    if unknown := sorted(set(chosen) - set(all_tables())):
        raise ConfigurationError(
            f"no table {', '.join(unknown)} is made from the log; there are {', '.join(all_tables())}"
        )
    work = _Rebuild(client, log, namespace, chosen, progress)
    try:
        return await work.run()
    except BaseException:
        await asyncio.to_thread(work.drop_beside)
        raise


class _Rebuild:
    def __init__(
        self, client: ClickHouse, log: Log, namespace: str, tables: tuple[str, ...], progress: Progress
    ) -> None:
        self._client = client
        self._log = log
        self._namespace = namespace
        self._tables = tables
        self._progress = progress
        self._made = Rebuilt()
        self._exchanged: list[str] = []
        self._forgotten: frozenset[str] = frozenset()
        self._reports = LeftReports()
        self._began_ms = 0

    async def run(self) -> Rebuilt:
        spans = self._as_far_as_written(await self._log.spans(topics_of(self._tables)))
        self._forgotten = await read_list(self._log)
        await asyncio.to_thread(self._begin, spans)
        await self._read(spans)
        await asyncio.to_thread(self._finish, spans)
        since = await read_list(self._log) - self._forgotten
        await asyncio.to_thread(delete_rows_by, self._client, since)
        self._made.forgotten = len(self._forgotten | since)
        return self._made

    def drop_beside(self) -> None:
        """Remove what stands beside the tables and was not exchanged yet."""
        for table in set(self._tables) - set(self._exchanged):
            self._client.command(f"DROP TABLE IF EXISTS {table}{SUFFIX} SYNC")
        drop_list(self._client)

    def _as_far_as_written(self, spans: Mapping[Partition, Span]) -> dict[Partition, Span]:
        _, rows = self._client.query(
            "SELECT kafka_topic, kafka_partition, max(next_offset) FROM sink_ranges "
            "WHERE namespace = {namespace:String} GROUP BY kafka_topic, kafka_partition",
            {"namespace": self._namespace},
        )
        written = {(str(topic), int(number)): int(offset) for topic, number, offset in rows}
        return {
            partition: Span(span.begin, max(span.begin, min(span.end, written.get(partition, span.end))))
            for partition, span in spans.items()
        }

    def _begin(self, spans: Mapping[Partition, Span]) -> None:
        self._began_ms = int(self._client.query("SELECT toUnixTimestamp64Milli(now64(3))")[1][0][0])
        self._forgotten |= stored_list(self._client, self._namespace)
        write_list(self._client, self._forgotten)
        for table in self._tables:
            self._client.command(f"DROP TABLE IF EXISTS {table}{SUFFIX} SYNC")
            self._client.command(f"CREATE TABLE {table}{SUFFIX} AS {table}")
            self._copy(table, f"{table}{SUFFIX}", f"NOT ({self._within(spans)})")

    async def _read(self, spans: Mapping[Partition, Span]) -> None:
        total, done = sum(span.end - span.begin for span in spans.values()), 0
        ranges = await asyncio.to_thread(self._noted_ranges)
        for partition, span in spans.items():
            topic, number = partition
            buffer = PartitionBuffer(namespace=self._namespace, topic=topic, partition=number, start=span.begin)
            digests = _Digests(partition, span, ranges.get(partition, []))
            async for records in self._log.read(partition, span):
                for record in records:
                    buffer.add(record)
                    digests.add(record)
                self._made.records += len(records)
                if buffer.rows >= MAX_ROWS or buffer.bytes >= MAX_BYTES:
                    await self._write(buffer)
                if records:
                    self._progress(done + records[-1].offset + 1 - span.begin, total)
            await self._write(buffer)
            self._made.verified_ranges += digests.verified()
            done += span.end - span.begin
        self._progress(total, total)

    async def _write(self, buffer: PartitionBuffer) -> None:
        made = buffer.cut()
        for table, rows in made.tables.items() if made is not None else ():
            if table in ("rewards", "events"):
                self._reports.take(table, rows, self._forgotten)
            if table in self._tables:
                kept = without(table, rows, self._forgotten)
                self._made.left_out += len(rows) - len(kept)
                await asyncio.to_thread(self._client.insert, f"{table}{SUFFIX}", kept)

    def _noted_ranges(self) -> dict[Partition, list[tuple[int, int, str]]]:
        _, rows = self._client.query(
            "SELECT kafka_topic, kafka_partition, from_offset, last_offset, digest FROM sink_ranges FINAL "
            "WHERE namespace = {namespace:String} AND rows > 0 ORDER BY from_offset",
            {"namespace": self._namespace},
        )
        noted: dict[Partition, list[tuple[int, int, str]]] = {}
        for topic, number, first, last, digest in rows:
            noted.setdefault((topic, number), []).append((first, last, digest))
        return noted

    def _finish(self, spans: Mapping[Partition, Span]) -> None:
        if "rewards" in self._tables:
            self._reports.delete(self._client, "rewards")
            self._made.left_out += self._reports.delete(self._client, f"rewards{SUFFIX}")
        for table in self._tables:
            self._made.tables.append(self._compare(table, spans))
        for table in self._tables:
            since = f"ingested_at >= fromUnixTimestamp64Milli({self._began_ms - OVERLAP_MS})"
            newer = f"NOT ({self._within(spans)}) AND {since}"
            self._copy(table, f"{table}{SUFFIX}", newer)  # so that a reader misses at most a moment's rows
            self._client.command(f"EXCHANGE TABLES {table} AND {table}{SUFFIX}")
            self._exchanged.append(table)
            self._wait_for_inserts(table)
            self._copy(f"{table}{SUFFIX}", table, newer)
            self._client.command(f"DROP TABLE {table}{SUFFIX} SYNC")
        drop_list(self._client)

    def _wait_for_inserts(self, table: str) -> None:
        """Return once no insert runs that may still write into the table that had this name."""
        deadline = time.monotonic() + INSERTS_END_S
        running = "SELECT count() FROM system.processes WHERE match(query, {pattern:String})"
        pattern = f"(?i)^\\s*INSERT INTO (`?{self._client.database}`?\\.)?`?{table}`?[ (]"
        while self._client.query(running, {"pattern": pattern})[1][0][0] and time.monotonic() < deadline:
            time.sleep(LOOK_EVERY_S)

    def _copy(self, source: str, target: str, condition: str) -> None:
        names = ", ".join(self._columns(target))
        kept = f"({condition}) AND {stays(source.removesuffix(SUFFIX))}"
        self._client.command(f"INSERT INTO {target} ({names}) SELECT {names} FROM {source} WHERE {kept}")

    def _compare(self, table: str, spans: Mapping[Partition, Span]) -> Comparison:
        old, new = self._fingerprints(table, spans), self._fingerprints(f"{table}{SUFFIX}", spans)
        for place, (rows, _) in old.items():
            if rows > new.get(place, (0, 0))[0]:
                raise DataLossError(
                    f"table {table} has {rows} rows of {_named(place)}, the log gives {new.get(place, (0, 0))[0]}; "
                    f"nothing was changed. Look at the topic's retention, or rebuild from an export of the log"
                )
        others = tuple(_named(place) for place in sorted(new) if old.get(place) != new[place])
        return Comparison(table, sum(rows for rows, _ in new.values()), len(new) - len(others), others)

    def _fingerprints(self, table: str, spans: Mapping[Partition, Span]) -> dict[tuple[str, int, int], tuple[int, int]]:
        """Return rows and their digest by topic, partition and the start of the sink's range that they came in."""
        names = [name for name in self._columns(table.removesuffix(SUFFIX)) if name != "ingested_at"]
        _, rows = self._client.query(
            "SELECT rows.kafka_topic, rows.kafka_partition, ranges.from_offset, count(), sum(rows.fingerprint) FROM ("
            "SELECT kafka_topic, kafka_partition, kafka_offset, "
            f"cityHash64(formatRow('RowBinary', {', '.join(names)})) AS fingerprint "
            f"FROM {table} FINAL WHERE {self._within(spans)} AND {stays(table.removesuffix(SUFFIX))}) AS rows "
            "ASOF LEFT JOIN (SELECT kafka_topic, kafka_partition, from_offset FROM sink_ranges FINAL "
            "WHERE namespace = {namespace:String} AND rows > 0) AS ranges "
            "ON ranges.kafka_topic = rows.kafka_topic AND ranges.kafka_partition = rows.kafka_partition "
            "AND ranges.from_offset <= rows.kafka_offset GROUP BY ALL",
            {"namespace": self._namespace},
        )
        return {(topic, number, first): (count, digest) for topic, number, first, count, digest in rows}

    def _columns(self, table: str) -> list[str]:
        _, rows = self._client.query(
            "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = {table:String} "
            "AND default_kind != 'MATERIALIZED' ORDER BY position",
            {"table": table},
        )
        return [str(name) for (name,) in rows]

    def _within(self, spans: Mapping[Partition, Span]) -> str:
        """Return the condition of rows that the log gives again."""
        places = [
            f"(kafka_topic = '{topic}' AND kafka_partition = {number} "
            f"AND kafka_offset >= {span.begin} AND kafka_offset < {span.end})"
            for (topic, number), span in spans.items()
        ]
        return f"namespace = '{self._namespace}' AND ({' OR '.join(places) or 'false'})"


class _Digests:
    """The ranges of one partition as the sink noted them, against the bytes that come now."""

    def __init__(self, partition: Partition, span: Span, noted: Sequence[tuple[int, int, str]]) -> None:
        self._partition = partition
        self._noted = [entry for entry in noted if span.begin <= entry[0] and entry[1] < span.end]
        self._index = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, record: KafkaRecord) -> None:
        while self._index < len(self._noted) and record.offset > self._noted[self._index][1]:
            self._close()
        if self._index < len(self._noted) and record.offset >= self._noted[self._index][0]:
            self._hash.update(hashlib.blake2b(record.value or b"", digest_size=16).digest())

    def verified(self) -> int:
        while self._index < len(self._noted):
            self._close()
        return len(self._noted)

    def _close(self) -> None:
        first, last, digest = self._noted[self._index]
        if self._hash.hexdigest() != digest:
            topic, number = self._partition
            raise DataLossError(
                f"offsets {first} to {last} of {topic}:{number} do not hold what the sink read; nothing was changed. "
                "Was the topic made anew? Then begin with an empty database"
            )
        self._index += 1
        self._hash = hashlib.blake2b(digest_size=16)


def _named(place: tuple[str, int, int]) -> str:
    topic, number, first = place
    return f"{topic}:{number} from {first}"
