"""The sink killed, doubled and told to forget: what is in the tables equals an oracle computed from the log."""

import asyncio
import signal
import sys

import pytest
from aiokafka import TopicPartition

from rollbus.consumers.clickhouse.sink.accept_kafka import accept_loss
from rollbus.consumers.clickhouse.sink.status import read_sink_status
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.schemas.errors import DataLossError
from rollbus.schemas.topics import DROPS, Topic
from tests.consumers.story import story
from tests.services.clickhouse.sink_fixtures import (
    create_topics,
    encode_records,
    late_drops,
    run_until_written,
    send,
    sink_process,
    sink_settings,
    wait_until_written,
)
from tests.services.clickhouse.sink_oracle import oracle, stored_counts
from tests.services.streams.fixtures import commit_offsets
from tests.waiting import until

pytestmark = pytest.mark.services

settings = sink_settings

KILLED_BEFORE_ITS_COMMIT = """
import os, signal, sys
from rollbus.consumers.clickhouse.sink.sink import run_sink
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.consumers.clickhouse.sink.kafka_source import KafkaSinkSource

async def commit(self, offsets):
    os.kill(os.getpid(), signal.SIGKILL)

KafkaSinkSource.commit = commit
run_sink(SinkSettings.model_validate_json(sys.argv[1]))
"""


async def killed_between_insert_and_commit(settings: SinkSettings) -> None:
    text = settings.model_dump_json(exclude={"clickhouse": {"password"}})
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED_BEFORE_ITS_COMMIT, text)
    assert await asyncio.wait_for(process.wait(), 120) == -signal.SIGKILL


@pytest.fixture
async def logged(settings: SinkSettings) -> SinkSettings:
    await create_topics(settings)
    await send(settings, [*encode_records(story()), ("scores", "k", b"junk")])
    migrate(settings.clickhouse)
    return settings


async def test_a_sink_killed_twice_before_its_commit_leaves_what_the_log_says(logged: SinkSettings) -> None:
    await killed_between_insert_and_commit(logged)
    assert stored_counts(logged), "it had written"
    assert not any(lag.committed for lag in await read_sink_status(logged))
    await send(logged, late_drops(0, 20))
    await killed_between_insert_and_commit(logged.model_copy(update={"max_rows": 7, "linger_ms": 0}))
    counters = await run_until_written(logged.model_copy(update={"max_rows": 11}))
    assert counters.records == len(story()) + 1 + 20, "nothing was committed, so everything was read again"
    expected = await oracle(logged)
    assert stored_counts(logged) == expected
    doubled = {table for table, counts in stored_counts(logged, final=False).items() if counts != expected[table]}
    assert doubled <= {"policy_versions"}, "that one comes over two topics; no other row waits for a merge"


async def test_rows_repeated_after_their_token_expired_are_merged_by_id(logged: SinkSettings) -> None:
    client = ClickHouse(logged.clickhouse)
    client.command("ALTER TABLE drops MODIFY SETTING non_replicated_deduplication_window = 2")
    client.close()
    await run_until_written(logged)
    small = logged.model_copy(update={"max_rows": 1, "linger_ms": 0})
    for first in range(0, 25, 5):
        await send(logged, late_drops(first, 5))
        await run_until_written(small)
    await forget_offsets(logged, DROPS)
    with pytest.raises(DataLossError, match="a tool has set the offset to 0"):
        await run_until_written(small)
    await accept_loss(logged, now_ms=0, dry_run=False)
    await run_until_written(small)
    assert stored_counts(logged, final=False)["drops"] > stored_counts(logged)["drops"], "the window had overflowed"
    assert stored_counts(logged) == await oracle(logged)


async def test_one_of_two_sinks_killed_leaves_the_other_to_finish(logged: SinkSettings) -> None:
    quick = logged.model_copy(update={"max_rows": 5, "linger_ms": 10})
    async with sink_process(quick) as first, sink_process(quick) as second:
        await send(logged, late_drops(0, 200))
        await until(lambda: stored_counts(logged), "the sink stores nothing")
        first.kill()
        await first.wait()
        await send(logged, late_drops(200, 100))
        await wait_until_written(logged)
        assert second.returncode is None
        second.terminate()
        await second.wait()
    assert stored_counts(logged) == await oracle(logged)


async def forget_offsets(settings: SinkSettings, *topics: Topic) -> None:
    """Put the sink's group back to the beginning of every partition of topics."""
    partitions = [
        TopicPartition(topic.full_name(settings.namespace), number)
        for topic in topics
        for number in range(2 if topic.partitions == "events" else 1)
    ]
    await commit_offsets(settings.kafka, settings.group_id, dict.fromkeys(partitions, 0))
