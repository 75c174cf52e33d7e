"""A sink whose ClickHouse does not answer: it holds no more than twice what its settings allow, and loses nothing."""

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

import pytest

from rollbus.consumers.clickhouse.sink.kafka_source import Fetched, KafkaSinkSource, Partition
from rollbus.consumers.clickhouse.sink.sink import QUIET_S, Sink
from rollbus.consumers.clickhouse.store.client import ClickHouse, Insert
from rollbus.consumers.clickhouse.store.origin import KafkaRecord
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.runtime.kafka.positions import Position
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import UnavailableError
from tests.builders import START_MS, make_started, make_tick

PLACE = ("episode-events", 0)
EVENTS_A_POLL = 2
"""Of two rows each."""


class EndlessLog:
    """A partition that always has more."""

    def __init__(self, polls: int = 10**9, *, only_ticks: bool = False) -> None:
        self.generation = 0
        self.only_ticks = only_ticks
        self.position = 0
        self.committed_offset = 0
        self.polls_left = polls
        self.all_committed = asyncio.Event()
        self.moved_starts: dict[Partition, int] = {}

    async def poll(self, timeout_s: float) -> Fetched:
        starts = {PLACE: 0} if self.position == 0 else {}
        if self.moved_starts:
            moved, self.moved_starts = self.moved_starts, {}
            return Fetched(0, {}, {}, (), dict(moved), moved)
        if not self.polls_left:
            await asyncio.sleep(timeout_s)
            return Fetched(0, starts, {}, (), {})
        self.polls_left -= 1
        records = tuple(
            KafkaRecord(*PLACE, offset, START_MS, b"k", encode(self._record(offset)))
            for offset in range(self.position, self.position + EVENTS_A_POLL)
        )
        self.position += EVENTS_A_POLL
        return Fetched(0, starts, {PLACE: 10**9} if starts else {}, records, {PLACE: self.position})

    def lose(self, records: int) -> None:
        """Let retention take the next ones."""
        self.position += records
        self.moved_starts = {PLACE: self.position}

    def _record(self, offset: int) -> Any:
        return make_tick(offset) if self.only_ticks else make_started(f"e{offset}")

    def end_offset(self, partition: Partition) -> int:
        return self.position

    async def commit(self, positions: Mapping[Partition, Position]) -> bool:
        self.committed_offset = positions[PLACE].offset or 0
        if self.committed_offset == self.position and not self.polls_left:
            self.all_committed.set()
        return True


class GatedTables:
    """Tables behind a gate: inserts wait until it opens, or fail as often as they are told to."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.failures = 0
        self.inserts: list[Insert] = []

    def query(self, sql: str, parameters: Mapping[str, Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
        return [], []

    def insert_in_turn(self, waiting: deque[Insert]) -> None:
        self.gate.wait()
        while waiting:
            if self.failures and len(self.inserts) % 2:
                self.failures -= 1
                raise UnavailableError("no room")
            self.inserts.append(waiting.popleft())


def make_sink(log: EndlessLog, tables: GatedTables, stop: asyncio.Event, max_rows: int) -> Sink:
    settings = SinkSettings(max_rows=max_rows, linger_ms=10**9)
    return Sink(settings, cast(KafkaSinkSource, log), cast(ClickHouse, tables), stop=stop)


@pytest.mark.parametrize("max_rows", [8, 40])
async def test_reading_stops_at_twice_the_buffer_while_clickhouse_hangs(max_rows: int) -> None:
    log, tables, stop = EndlessLog(), GatedTables(), asyncio.Event()
    running = asyncio.create_task(make_sink(log, tables, stop, max_rows).run())
    for _ in range(1_000):
        await asyncio.sleep(0)
    stop_position = log.position
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert log.position == stop_position, "it had stopped reading"
    assert stop_position * 2 == 2 * max_rows, "two rows an event"
    assert log.committed_offset == 0
    stop.set()
    tables.gate.set()
    await running
    assert log.committed_offset == log.position


async def test_inserts_that_fail_are_made_again_in_order_and_none_is_left_out() -> None:
    log, tables, stop = EndlessLog(polls=12), GatedTables(), asyncio.Event()
    tables.failures = 3
    tables.gate.set()
    sink = make_sink(log, tables, stop, 8)
    running = asyncio.create_task(sink.run())
    await log.all_committed.wait()
    stop.set()
    await running
    offsets = [row["kafka_offset"] for insert in tables.inserts if insert.table == "events" for row in insert.rows]
    assert offsets == list(range(24))
    assert sink.counters.retries == 3
    tokens = [insert.token for insert in tables.inserts if insert.table == "events"]
    assert len(set(tokens)) == len(tokens) == 6


async def test_a_tick_is_counted_once_however_often_its_range_grows() -> None:
    log, tables, stop = EndlessLog(polls=6, only_ticks=True), GatedTables(), asyncio.Event()
    tables.gate.set()
    quiet = itertools.count(0.0, QUIET_S)
    source, client = cast(KafkaSinkSource, log), cast(ClickHouse, tables)
    sink = Sink(SinkSettings(linger_ms=0), source, client, stop=stop, clock=lambda: next(quiet))
    running = asyncio.create_task(sink.run())
    await log.all_committed.wait()
    stop.set()
    await running
    assert (sink.counters.records, sink.counters.rows) == (12, 0)
    assert sink.counters.flushes > 1


async def test_ticks_wait_for_records_that_make_rows() -> None:
    log, tables, stop = EndlessLog(polls=6, only_ticks=True), GatedTables(), asyncio.Event()
    tables.gate.set()
    sink = Sink(SinkSettings(linger_ms=0), cast(KafkaSinkSource, log), cast(ClickHouse, tables), stop=stop)
    running = asyncio.create_task(sink.run())
    while log.polls_left:  # noqa: ASYNC110 - the log tells nobody
        await asyncio.sleep(0)
    assert sink.counters.flushes == 0
    assert not sink.report().is_behind
    log.only_ticks, log.polls_left = False, 1
    await log.all_committed.wait()
    stop.set()
    await running
    assert sink.counters.flushes == 1
    assert log.committed_offset == 14


async def test_records_that_retention_took_before_they_were_read_are_in_no_range() -> None:
    log, tables, stop = EndlessLog(polls=2), GatedTables(), asyncio.Event()
    sink = make_sink(log, tables, stop, 10**9)
    running = asyncio.create_task(sink.run())
    while log.polls_left:  # noqa: ASYNC110 - the log tells nobody
        await asyncio.sleep(0)
    log.lose(100)
    log.polls_left = 1
    tables.gate.set()
    while log.polls_left:  # noqa: ASYNC110 - the log tells nobody
        await asyncio.sleep(0.01)
    stop.set()
    await running
    plans = [row for insert in tables.inserts if insert.table == "sink_ranges" for row in insert.rows]
    assert [(row["from_offset"], row["next_offset"]) for row in plans] == [(0, 4), (104, 106)]
    assert log.committed_offset == 106
