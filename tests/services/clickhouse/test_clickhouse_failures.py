"""ClickHouse full, slow, silent or killed while the sink writes: nothing lost, nothing doubled, a lag to read."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbus.consumers.clickhouse.sink.sink import run_sink_async
from rollbus.consumers.clickhouse.sink.status import read_sink_status
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings, SinkSettings
from rollbus.local.clickhouse.service import clickhouse_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import RejectedError
from rollbus.stack_settings import HOST
from tests.consumers.story import story
from tests.services.clickhouse.gate import Gate, Trouble, gate
from tests.services.clickhouse.sink_fixtures import (
    create_topics,
    encode_records,
    late_drops,
    send,
    sink_settings,
    wait_until_written,
)
from tests.services.clickhouse.sink_oracle import oracle, stored_counts
from tests.waiting import until, until_found

pytestmark = pytest.mark.services

settings = sink_settings


@pytest.fixture
def before(settings: SinkSettings) -> Iterator[tuple[Gate, SinkSettings]]:
    """A gate before the tables, and a sink's settings that lead through it."""
    with gate(settings.clickhouse.host, settings.clickhouse.port) as standing:
        through = settings.clickhouse.model_copy(update={"port": standing.server_address[1], "timeout_s": 2.0})
        yield standing, settings.model_copy(update={"clickhouse": through})


@pytest.mark.parametrize("trouble", ["full", "late", "cut"])
async def test_failed_inserts_are_repeated_until_every_row_is_there_once(
    settings: SinkSettings, before: tuple[Gate, SinkSettings], trouble: Trouble
) -> None:
    standing, through = before
    migrate(settings.clickhouse)
    await create_topics(settings)
    await send(settings, encode_records(story()))
    standing.trouble = trouble
    stop = asyncio.Event()
    running = asyncio.create_task(run_sink_async(through, stop=stop))
    await until(lambda: len(standing.requests_met) >= 4, "no insert meets trouble")
    lags = await read_sink_status(settings)
    assert sum(lag.lag for lag in lags) >= len(story()), "the lag can be read, and nothing was committed"
    assert bool(stored_counts(settings)) == (trouble != "full"), "what was not answered was written all the same"
    standing.trouble = None
    standing.is_open.set()
    await wait_until_written(settings, running)
    stop.set()
    assert (await running).retries >= 3, "of the four inserts that met it, the last may have been answered after all"
    expected = await oracle(settings)
    assert stored_counts(settings) == expected
    doubled = {table for table, counts in stored_counts(settings, final=False).items() if counts != expected[table]}
    assert doubled <= {"policy_versions"}, "that one comes over two topics; what was sent again was not taken again"


async def test_clickhouse_killed_during_a_write_has_every_row_after_its_return(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    """Its first start is also later than the sink's."""
    port = find_free_port()
    service = ServiceProcess(clickhouse_service(folder=tmp_path / "data", port=port), log_path=tmp_path / "log")
    clickhouse = ClickHouseSettings(host=HOST, port=port)
    settings = SinkSettings(
        kafka=KafkaConnection(bootstrap_servers=kafka),
        namespace=namespace,
        clickhouse=clickhouse,
        max_rows=10,
        linger_ms=0,
    )
    await create_topics(settings)
    await send(settings, [*encode_records(story()), *late_drops(0, 100)])
    stop = asyncio.Event()
    running = asyncio.create_task(run_sink_async(settings, stop=stop))
    try:
        await asyncio.to_thread(start_service, service)
        await until_found(lambda: asyncio.to_thread(holds_rows, settings), "no row comes", every_s=0.01)
        assert service.identity is not None
        os.kill(service.identity.pid, signal.SIGKILL)
        await asyncio.to_thread(service.stop)
        await asyncio.to_thread(start_service, service)
        await wait_until_written(settings, running)
        stop.set()
        assert (await running).retries > 0
        assert stored_counts(settings) == await oracle(settings)
    finally:
        stop.set()
        await asyncio.to_thread(service.stop)


def holds_rows(settings: SinkSettings) -> bool:
    try:
        return bool(stored_counts(settings))
    except RejectedError:
        return False  # the sink has yet to make the database


def start_service(service: ServiceProcess) -> None:
    service.start()
    service.wait_until_healthy()
