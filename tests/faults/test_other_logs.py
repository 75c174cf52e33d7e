"""A sink wakes up from a freeze: no row is lost."""

import asyncio
import random
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollbus.consumers.clickhouse.questions.saved_questions import run_query
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings, SinkSettings
from rollbus.streams.kafka.settings import StreamSettings
from tests.faults.episodes import numbers_until
from tests.services.clickhouse.sink_fixtures import counts, late_drops, send, wait_until_written
from tests.services.clickhouse.sink_oracle import oracle, stored_counts
from tests.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.faults]

FREEZING_SINK = """
import os, signal, sys
from rollbus.consumers.clickhouse.sink.sink import SinkSettings, run_sink
from rollbus.consumers.clickhouse.store.client import ClickHouse
settings, left = SinkSettings.model_validate_json(sys.argv[1]), int(sys.argv[2])
insert_in_turn = ClickHouse.insert_in_turn
def freezing(self, waiting):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGSTOP)
    insert_in_turn(self, waiting)
ClickHouse.insert_in_turn = freezing
run_sink(settings)
"""
"""A sink that stands still between cutting ranges and noting them, the nth time."""
NEVER = 0


@pytest.fixture
def sink_settings(settings: StreamSettings, clickhouse: tuple[str, int]) -> SinkSettings:
    host, port = clickhouse
    database = ClickHouseSettings(host=host, port=port, database=f"sink_{uuid.uuid4().hex[:8]}")
    return SinkSettings(kafka=settings.kafka, namespace=settings.namespace, clickhouse=database, linger_ms=50)


@asynccontextmanager
async def sink(settings: SinkSettings, freezes_at: int = NEVER) -> AsyncIterator[asyncio.subprocess.Process]:
    """A sink in a process of its own that freezes at its nth writing."""
    text = settings.model_dump_json(exclude={"clickhouse": {"password"}})
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", FREEZING_SINK, text, str(freezes_at))
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_sink_frozen_before_it_notes_a_range_hides_no_row(
    sink_settings: SinkSettings, chance: random.Random
) -> None:
    enough = asyncio.Event()

    async def feed() -> None:
        for number in numbers_until(enough):
            await send(sink_settings, late_drops(number, 1))
            await asyncio.sleep(0.1)

    feeding = asyncio.create_task(feed())
    async with sink(sink_settings, freezes_at=chance.randint(2, 12)) as zombie, sink(sink_settings) as heir:
        status = Path(f"/proc/{zombie.pid}/stat")
        await until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T", "the sink does not freeze")
        enough.set()
        await feeding
        await wait_until_written(sink_settings)
        zombie.send_signal(signal.SIGCONT)
        await send(sink_settings, late_drops(1_000_000, 1))
        await wait_until_written(sink_settings)
        for process in (zombie, heir):
            process.send_signal(signal.SIGTERM)
        assert [await process.wait() for process in (zombie, heir)] == [0, 0]
    answer = run_query(sink_settings.clickhouse, "is_anything_lost", {"namespace": sink_settings.namespace})
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    assert [(row["holes"], row["behind"], row["absorbed"]) for row in rows] == [(0, 0, 0)] * len(rows)
    assert stored_counts(sink_settings) == await oracle(sink_settings)
    async with sink(sink_settings) as last:  # a new one has no reason to refuse
        await send(sink_settings, late_drops(1_000_001, 1))
        await wait_until_written(sink_settings)
        last.send_signal(signal.SIGTERM)
        assert await last.wait() == 0
    assert counts(sink_settings)["drops"] == (await oracle(sink_settings))["drops"][0]
