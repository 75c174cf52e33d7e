"""A log read again from its beginning → new tables next to the old ones, compared, and put in their place.

The order that leaves readers undisturbed and the sink running, for all tables together:
1. It creates `<table>_rebuild` of each, and copies what the log does not hold: other namespaces, offsets outside it.
2. It reads the log as far as the sink has written it, and checks by its digest each range that the sink noted.
3. It compares old and new, range by range. If the new table lacks rows of the old one, the rebuild stops.
4. It exchanges the names of the two, waits for inserts into the old one, copies what the sink wrote meanwhile, and
   drops the old one.

A table that was altered by hand is set aside under another name, and counts as lost. A table that is lost is made from
the migrations as `<table>_rebuild`, and takes its name once it is full, so a rebuild that is killed leaves no empty
table that looks whole. A rebuild of all tables also notes in `sink_ranges` what it read
and no range covers: the log before a new database, and what retention took from the sink and an archive still has.

Forgotten episodes stay forgotten: rows of the episodes on the log's list of exclusions are left out of every step. The
rebuild reads the list again at the end, for the episodes that were added meanwhile. By then an archive has lost their
records. A range with fewer records than the sink has read cannot have the right digest, so only its rows are compared.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rollbus.consumers.clickhouse.maintain.forget import delete_rows_by
from rollbus.consumers.clickhouse.maintain.forgotten_episodes import (
    AliasReports,
    create_forgotten_table,
    drop_forgotten_table,
    find_stored_exclusions,
    forget_texts_in,
    leave_out_forgotten,
    read_exclusions,
    remaining_condition,
    unrestorable_condition,
)
from rollbus.consumers.clickhouse.maintain.stored_ranges import (
    Digests,
    note_ranges,
    read_stored_ranges,
    split_by_ranges,
)
from rollbus.consumers.clickhouse.rows.rows import FILLS, tables_of, topics_of
from rollbus.consumers.clickhouse.sink.log import Log, OffsetSpan, Partition
from rollbus.consumers.clickhouse.sink.ranges import OffsetRange, PartitionBuffer
from rollbus.consumers.clickhouse.store.altered_tables import set_altered_tables_aside
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import RANGES, create_as, find_lost, statements_of
from rollbus.consumers.clickhouse.store.retention import alive_condition
from rollbus.schemas.errors import ConfigurationError, DataLossError

logger = logging.getLogger(__name__)

MAX_ROWS = 50_000
MAX_BYTES = 32 * 1024 * 1024
SUFFIX = "_rebuild"
NOW_MS = "toUnixTimestamp64Milli(now64(3))"
LOOK_EVERY_S, LOOKS_BEFORE_WARNING = 0.05, 200
"""At the inserts that began before the exchange: a warning after 10 s names what is waited for."""

Progress = Callable[[int, int], None]
"""Takes the number of offsets read, and of all."""


@dataclass(frozen=True, slots=True)
class TableComparison:
    """One table before and after."""

    table: str
    rows: int
    """Of the namespace in the rebuilt part; repeated rows count once."""
    equal_ranges: int
    other_ranges: tuple[str, ...] = ()
    """Ranges in which the old table lacked rows or had different ones, as `topic:partition from offset`."""


@dataclass(slots=True)
class Rebuilt:
    """What a rebuild did."""

    records: int = 0
    verified_ranges: int = 0
    """Ranges of the sink whose bytes are the same in the log."""
    uncompared_ranges: int = 0
    """Those of which an archive has not every record, as episodes were forgotten: their rows alone are compared."""
    noted_ranges: int = 0
    """Ranges that the sink had not noted, or that were lost."""
    tables: list[TableComparison] = field(default_factory=list)
    forgotten: int = 0
    """Episodes on the list of exclusions."""
    left_out: int = 0
    """Rows of forgotten episodes that the log still gives."""


def all_tables() -> tuple[str, ...]:
    """Return every table that is built from the log."""
    return tuple(sorted({table for record in FILLS for table in tables_of(record)}))


async def rebuild(
    client: ClickHouse,
    log: Log,
    namespace: str,
    tables: Sequence[str] = (),
    *,
    committed: Mapping[Partition, int] | None = None,
    progress: Progress = lambda done, of: None,
) -> Rebuilt:
    """Rebuild the named tables, or all, and the lost ones; raises ConfigurationError, DataLossError, ServiceError.

    `committed` is how far the sink's group has come: a database that is new or restored lacks what comes before it.
    """
    if client.cluster:
        raise ConfigurationError(
            f"a rebuild exchanges the tables of one server, and these are on the cluster {client.cluster}; let the "
            f"sink read the log again instead: stop it, reset the offsets of the group {namespace}sink to the "
            "earliest, and confirm them by `rollbus sink accept-loss --yes`. A row that is there is absorbed by its id"
        )
    chosen_tables = tuple(tables) or all_tables()
    if unknown := sorted(set(chosen_tables) - set(all_tables())):
        raise ConfigurationError(
            f"{', '.join(unknown)}: no such table is built from the log; there are {', '.join(all_tables())}"
        )
    set_altered_tables_aside(client, statements_of())
    lost_tables = {name for name, is_table in find_lost(client).items() if is_table}
    if RANGES in lost_tables and tables:
        raise ConfigurationError(f"{RANGES} is lost, which says what the sink has read; rebuild every table: name none")
    if RANGES in lost_tables:
        create_as(client, RANGES, RANGES)
    lost_tables -= {RANGES}
    chosen_tables += tuple(sorted(lost_tables - set(chosen_tables)))
    work = _Rebuild(client, log, namespace, chosen_tables, lost_tables, committed or {}, progress)
    try:
        return await work.run()
    except BaseException:
        await asyncio.to_thread(work.drop_new_tables)
        raise


class _Rebuild:
    def __init__(
        self,
        client: ClickHouse,
        log: Log,
        namespace: str,
        tables: tuple[str, ...],
        lost: Collection[str],
        committed: Mapping[Partition, int],
        progress: Progress,
    ) -> None:
        self._client = client
        self._log = log
        self._namespace = namespace
        self._tables = tables
        self._lost = lost
        self._committed = committed
        self._progress = progress
        self._rebuilt = Rebuilt()
        self._exchanged: list[str] = []
        self._forgotten: frozenset[str] = frozenset()
        self._reports = AliasReports()
        self._began_ms = 0
        self._columns: dict[str, list[str]] = {}
        """By table, those that an insert names."""
        self._unnoted: dict[tuple[str, int, int], OffsetRange] = {}
        """What was read and no range covers, by topic, partition and first offset."""

    async def run(self) -> Rebuilt:
        spans = self._written_spans(await self._log.spans(topics_of(self._tables)))
        self._forgotten = await read_exclusions(self._log)
        await asyncio.to_thread(self._create_tables, spans)
        await self._read_log(spans)
        newer = await asyncio.to_thread(self._compare_and_exchange, spans)
        await self._wait_for_inserts()
        await asyncio.to_thread(self._drop_old_tables, newer)
        self._rebuilt.noted_ranges = await asyncio.to_thread(
            note_ranges, self._client, self._namespace, self._unnoted.values()
        )
        added = await read_exclusions(self._log) - self._forgotten
        await asyncio.to_thread(delete_rows_by, self._client, added)
        self._rebuilt.forgotten = len(self._forgotten | added)
        return self._rebuilt

    def drop_new_tables(self) -> None:
        """Remove the new tables that were not exchanged yet, and the table of forgotten episodes."""
        for table in set(self._tables) - set(self._exchanged):
            self._client.command(f"DROP TABLE IF EXISTS {table}{SUFFIX} SYNC")
        drop_forgotten_table(self._client)

    def _written_spans(self, spans: Mapping[Partition, OffsetSpan]) -> dict[Partition, OffsetSpan]:
        """Cut the spans to what the sink has written or committed; keep one whole where it has noted nothing."""
        _, rows = self._client.query(
            "SELECT kafka_topic, kafka_partition, max(next_offset) FROM sink_ranges "
            "WHERE namespace = {namespace:String} GROUP BY kafka_topic, kafka_partition",
            {"namespace": self._namespace},
        )
        written_offsets = {(str(topic), int(number)): int(offset) for topic, number, offset in rows}
        ends = {
            partition: max(written_offsets.get(partition, span.end), self._committed.get(partition, 0))
            for partition, span in spans.items()
        }
        return {
            partition: OffsetSpan(span.begin, max(span.begin, min(span.end, ends[partition])))
            for partition, span in spans.items()
        }

    def _create_tables(self, spans: Mapping[Partition, OffsetSpan]) -> None:
        # an insert that runs now has rows of its beginning, and shows them at its end
        self._began_ms = self._query_inserts(f"toInt64({NOW_MS} - 1000 * max(elapsed))")
        if "events" not in self._lost:
            self._forgotten |= find_stored_exclusions(self._client, self._namespace)
        create_forgotten_table(self._client, self._forgotten)
        for table in self._tables:
            self._client.command(f"DROP TABLE IF EXISTS {table}{SUFFIX} SYNC")
            if table in self._lost:
                create_as(self._client, table, f"{table}{SUFFIX}")
            else:
                self._client.command(f"CREATE TABLE {table}{SUFFIX} AS {table}")
        self._columns = self._read_columns()
        outside = {table: f"NOT ({_in_log(table, self._namespace, spans)})" for table in self._existing}
        if self._log.lacks_forgotten:
            outside = {table: f"({where} OR {unrestorable_condition(table)})" for table, where in outside.items()}
        self._copy(outside, "", SUFFIX)

    async def _read_log(self, spans: Mapping[Partition, OffsetSpan]) -> None:
        total, done = sum(span.end - span.begin for span in spans.values()), 0
        ranges = await asyncio.to_thread(read_stored_ranges, self._client, self._namespace)
        lacks_forgotten = self._log.lacks_forgotten and bool(self._forgotten)
        for partition, span in spans.items():
            stored = ranges.get(partition, [])
            digests = Digests(partition, span, stored, lacks_forgotten=lacks_forgotten)
            for part, is_noted in split_by_ranges(span, stored):
                topic, number = partition
                buffer = PartitionBuffer(namespace=self._namespace, topic=topic, partition=number, start=part.begin)
                async for records in self._log.read(partition, part):
                    for record in records:
                        buffer.add(record)
                        digests.add(record)
                    self._rebuilt.records += len(records)
                    if buffer.rows >= MAX_ROWS or buffer.bytes >= MAX_BYTES:
                        await self._insert_range(buffer, is_noted=is_noted)
                    if records:
                        self._progress(done + records[-1].offset + 1 - span.begin, total)
                buffer.advance(part.end)
                await self._insert_range(buffer, is_noted=is_noted)
            self._rebuilt.verified_ranges += digests.finish()
            self._rebuilt.uncompared_ranges += digests.uncompared
            done += span.end - span.begin
        self._progress(total, total)

    async def _insert_range(self, buffer: PartitionBuffer, *, is_noted: bool) -> None:
        cut = buffer.cut()
        if cut is None:
            return
        for table, rows in cut.tables.items():
            if table in ("rewards", "events"):
                self._reports.add_left_out(table, rows, self._forgotten)
            if table in self._tables:
                remaining_rows = leave_out_forgotten(table, rows, self._forgotten)
                self._rebuilt.left_out += len(rows) - len(remaining_rows)
                await asyncio.to_thread(self._client.insert, f"{table}{SUFFIX}", remaining_rows)
        if not is_noted and set(self._tables) == set(all_tables()):
            digest = "" if self._log.lacks_forgotten and self._forgotten else cut.digest
            self._unnoted[cut.topic, cut.partition, cut.from_offset] = replace(cut, tables={}, digest=digest)

    def _compare_and_exchange(self, spans: Mapping[Partition, OffsetSpan]) -> dict[str, str]:
        """Give the new tables their names; return by table the condition of rows that the sink wrote meanwhile."""
        if "rewards" in self._tables:
            if "rewards" not in self._lost:
                self._reports.delete(self._client, "rewards")
            self._rebuilt.left_out += self._reports.delete(self._client, f"rewards{SUFFIX}")
        for table in self._tables:
            if table not in self._lost:
                forget_texts_in(self._client, table, self._forgotten)
            self._rebuilt.left_out += forget_texts_in(self._client, table, self._forgotten, SUFFIX)
            self._rebuilt.tables.append(self._compare(table, spans))
        since = f"ingested_at >= fromUnixTimestamp64Milli({self._began_ms})"
        newer = {table: f"NOT ({_in_log(table, self._namespace, spans)}) AND {since}" for table in self._existing}
        self._copy(newer, "", SUFFIX)  # a reader misses the rows of a moment at most
        for table in self._tables:
            exchange = f"EXCHANGE TABLES {table} AND {table}{SUFFIX}"
            rename = f"RENAME TABLE {table}{SUFFIX} TO {table}"
            self._client.command(rename if table in self._lost else exchange)
            self._exchanged.append(table)
        return newer

    def _drop_old_tables(self, newer: Mapping[str, str]) -> None:
        """Copy what was written into the old tables until their last insert, and drop them."""
        self._copy(newer, SUFFIX, "")
        for table in self._existing:
            self._client.command(f"DROP TABLE {table}{SUFFIX} SYNC")
        drop_forgotten_table(self._client)

    @property
    def _existing(self) -> list[str]:
        """Return the tables to rebuild that the database still has."""
        return [table for table in self._tables if table not in self._lost]

    async def _wait_for_inserts(self) -> None:
        """Wait until no insert runs that began before the exchange: its rows are in the old table.

        To drop that table would wait for it, too, and lose them.
        """
        exchanged_ms = await asyncio.to_thread(self._query_inserts, f"any({NOW_MS})")  # 0 while none runs
        earlier = f"countIf({NOW_MS} - 1000 * elapsed <= {exchanged_ms})"
        for look in itertools.count(1):
            inserts = await asyncio.to_thread(self._query_inserts, earlier)
            if not inserts:
                return
            if look == LOOKS_BEFORE_WARNING:
                logger.warning("waiting for %d inserts that began before the exchange of the tables", inserts)
            await asyncio.sleep(LOOK_EVERY_S)

    def _query_inserts(self, expression: str) -> int:
        """Return a number about the inserts that run now into tables of these names."""
        pattern = f"(?i)^\\s*INSERT INTO (`?{self._client.database}`?\\.)?`?({'|'.join(self._existing)})`?[ (]"
        sql = f"SELECT {expression} FROM system.processes WHERE match(query, {{pattern:String}})"
        return int(self._client.query(sql, {"pattern": pattern})[1][0][0])

    def _copy(self, conditions: Mapping[str, str], source: str, target: str) -> None:
        """Copy the rows for which a condition holds; `source` and `target` follow a table's name.

        One question for all tables finds the few that have such rows.
        """
        where = {table: f"({condition}) AND {remaining_condition(table)}" for table, condition in conditions.items()}
        selects = (f"(SELECT '{table}' FROM {table}{source} WHERE {clause} LIMIT 1)" for table, clause in where.items())
        for (table,) in self._client.query(" UNION ALL ".join(selects))[1] if where else ():
            names = ", ".join(self._columns[table])
            selected = f"SELECT {names} FROM {table}{source} WHERE {where[table]}"
            self._client.command(f"INSERT INTO {table}{target} ({names}) {selected}")

    def _compare(self, table: str, spans: Mapping[Partition, OffsetSpan]) -> TableComparison:
        old = {} if table in self._lost else self._fingerprints(table, spans)
        new = self._fingerprints(f"{table}{SUFFIX}", spans)
        for place, (rows, _) in old.items():
            rows_in_log, _ = new.get(place, (0, 0))
            if rows > rows_in_log:
                raise DataLossError(
                    f"table {table} has {rows} rows of {_range_name(place)}, the log gives {rows_in_log}; "
                    f"nothing was changed. Look at the topic's retention, or rebuild from an archive of the log"
                )
        other_ranges = tuple(_range_name(place) for place in sorted(new) if old.get(place) != new[place])
        return TableComparison(table, sum(rows for rows, _ in new.values()), len(new) - len(other_ranges), other_ranges)

    def _fingerprints(
        self, table: str, spans: Mapping[Partition, OffsetSpan]
    ) -> dict[tuple[str, int, int], tuple[int, int]]:
        """Return the number and digest of rows by topic, partition and start of the sink's range that they came in."""
        base = table.removesuffix(SUFFIX)
        names = [name for name in self._columns[base] if name != "ingested_at"]
        _, rows = self._client.query(
            "SELECT rows.kafka_topic, rows.kafka_partition, ranges.from_offset, count(), sum(rows.fingerprint) FROM ("
            "SELECT kafka_topic, kafka_partition, kafka_offset, "
            f"cityHash64(formatRow('RowBinary', {', '.join(names)})) AS fingerprint "
            f"FROM {table} FINAL WHERE {_in_log(base, self._namespace, spans)} AND {remaining_condition(base)} "
            f"AND {alive_condition(base, self._client.retention)}) AS rows "
            "ASOF LEFT JOIN (SELECT kafka_topic, kafka_partition, from_offset FROM sink_ranges FINAL "
            "WHERE namespace = {namespace:String} AND rows > 0) AS ranges "
            "ON ranges.kafka_topic = rows.kafka_topic AND ranges.kafka_partition = rows.kafka_partition "
            "AND ranges.from_offset <= rows.kafka_offset GROUP BY ALL",
            {"namespace": self._namespace},
        )
        return {(topic, number, first): (count, digest) for topic, number, first, count, digest in rows}

    def _read_columns(self) -> dict[str, list[str]]:
        _, rows = self._client.query(
            "SELECT table, groupArray(name) FROM system.columns WHERE database = currentDatabase() "
            "AND table IN {tables:Array(String)} AND default_kind != 'MATERIALIZED' GROUP BY table",
            {"tables": [f"{table}{SUFFIX}" for table in self._tables]},
        )
        return {str(table).removesuffix(SUFFIX): names for table, names in rows}


def _in_log(table: str, namespace: str, spans: Mapping[Partition, OffsetSpan]) -> str:
    """Return the condition of a table's rows that the log gives again."""
    places = []
    for topic in topics_of((table,)):
        topic_spans = {number: span for (name, number), span in spans.items() if name == topic}
        if topic_spans:
            spans_by_number = [topic_spans.get(number, OffsetSpan(0, 0)) for number in range(max(topic_spans) + 1)]
            begins, ends = [span.begin for span in spans_by_number], [span.end for span in spans_by_number]
            at = "[kafka_partition + 1]"  # ClickHouse arrays count from 1
            places.append(f"(kafka_topic = '{topic}' AND kafka_offset >= {begins}{at} AND kafka_offset < {ends}{at})")
    return f"namespace = '{namespace}' AND ({' OR '.join(places) or 'false'})"


def _range_name(place: tuple[str, int, int]) -> str:
    topic, number, first = place
    return f"{topic}:{number} from {first}"
