"""The sink against a real broker and ClickHouse's real engine."""

import asyncio
import uuid
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import TopicPartition

from rollbus.consumers.clickhouse.questions.saved_questions import ask, run_query
from rollbus.consumers.clickhouse.sink.accept_kafka import accept_loss
from rollbus.consumers.clickhouse.sink.kafka_source import KafkaSinkSource
from rollbus.consumers.clickhouse.sink.sink import Sink, run_sink_async
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.consumers.dead_letters_kafka import read_dead_letters
from rollbus.health.reading import read_health
from rollbus.schemas.errors import ConfigurationError, DataLossError
from rollbus.schemas.records.drops import ProducerReport
from rollbus.streams.kafka.topics_on_broker import delete_topics
from tests.builders import START_MS, make_letter, make_trajectory
from tests.consumers.story import story
from tests.services.clickhouse.sink_fixtures import (
    counts,
    create_topics,
    encode_records,
    is_written,
    late_drops,
    run_until_written,
    send,
    sink_process,
    sink_settings,
    wait_until_written,
)
from tests.services.streams.fixtures import commit_offsets, delete_before, stream_settings

pytestmark = pytest.mark.services

settings = sink_settings


def answer(settings: SinkSettings, name: str) -> list[dict[str, Any]]:
    table = run_query(settings.clickhouse, name, {"namespace": settings.namespace})
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


async def test_a_sink_without_topics_ends_and_says_what_makes_them(sink_settings: SinkSettings) -> None:
    missing = f"{sink_settings.namespace}episode-events.*do not exist.*rollbus topics create"
    with pytest.raises(ConfigurationError, match=missing):
        await run_sink_async(sink_settings, stop=asyncio.Event())


async def test_every_record_of_every_topic_arrives_in_typed_tables(settings: SinkSettings) -> None:
    await create_topics(settings)
    await send(settings, encode_records(story()))
    async with sink_process(settings) as process:
        async with asyncio.timeout(120):
            while not await is_written(settings):
                assert process.returncode is None
                await asyncio.sleep(0.4)
        process.terminate()
        assert await process.wait() == 0
    assert all(counts(settings).values()), counts(settings)
    tokens = ask(settings.clickhouse, "SELECT prompt_token_ids, logprobs FROM turn_tokens LIMIT 1").rows
    assert (list(tokens[0][0])[:3], list(tokens[0][1])) == ([1, 2, 3], [-0.5, -0.5])
    for row in answer(settings, "is_anything_lost"):
        repeats = 1 if row["topic"] == "run-log" else 0  # a policy version comes over two topics: once after a merge
        assert (row["holes"], row["behind"], row["dead_letters"]) == (0, 0, 0), row
        assert 0 <= row["absorbed"] <= repeats, row
    (letter,) = ask(settings.clickhouse, "SELECT hex(key), hex(value) FROM dead_letters").rows
    assert letter == ("6BFF", "00FFFE")


async def test_every_count_of_dead_letters_counts_records(settings: SinkSettings) -> None:
    namespace = settings.namespace
    await create_topics(settings)
    refused = make_letter(topic=f"{namespace}episode-events", stage="assembly")
    letters = [refused, replace(refused, stage="alias"), replace(refused, offset=8)]
    records = encode_records(
        [*(("dead-letters", "k", letter) for letter in letters), ("trajectories", "k", make_trajectory())]
    )
    await send(settings, [*records, ("scores", "k", b"junk")])
    assert (await run_until_written(settings)).dead_letters == 1
    assert counts(settings)["trajectories"] == 1, "what can be read is written together with what cannot"
    rows = answer(settings, "dead_letters_by_class")
    (of_sink,) = [row for row in rows if row["stage"] == "sink"]
    assert (of_sink["topic"], of_sink["error_class"]) == (f"{namespace}scores", "UndecodableError")
    of_stages = sum(row["records"] for row in rows) - of_sink["records"]
    assert (of_sink["records"], of_stages) == (1, 2), rows
    assert (await read_health(settings.kafka, namespace)).dead_letters == of_stages
    assert len(await read_dead_letters(settings.kafka, namespace)) == len(letters)


async def test_two_sinks_share_the_work_and_double_nothing(settings: SinkSettings) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    first_sink = asyncio.create_task(run_sink_async(settings, stop=first))
    await asyncio.sleep(0.5)  # before there are topics: a sink finds them when they come
    await create_topics(settings)
    await send(settings, encode_records(story()))
    second_sink = asyncio.create_task(run_sink_async(settings, stop=second))
    await send(settings, late_drops(0, 1))
    await wait_until_written(settings, first_sink, second_sink)
    first.set()
    await first_sink
    await send(settings, late_drops(1, 1))
    await wait_until_written(settings, second_sink)
    second.set()
    await second_sink
    drops = sum(1 for topic, _, _ in story() if topic == "drops")
    assert counts(settings)["drops"] == drops + 2
    assert all(row["holes"] == 0 for row in answer(settings, "is_anything_lost"))


@pytest.mark.parametrize("running", [True, False])
async def test_unread_records_deleted_by_retention_are_in_no_range(
    settings: SinkSettings, caplog: pytest.LogCaptureFixture, *, running: bool
) -> None:
    await create_topics(settings)
    place = TopicPartition(f"{settings.namespace}producer-reports", 0)
    await send(settings, reports(2))
    await delete_before(settings.kafka, {place: 3})  # with the end of their transaction
    await send(settings, reports(3))
    migrate(settings.clickhouse)
    source, client, stop = KafkaSinkSource(settings), ClickHouse(settings.clickhouse), asyncio.Event()
    await source.start()
    sink = asyncio.create_task(Sink(settings, source, client, stop=stop).run())
    try:
        await wait_until_written(settings)
        assert "were deleted" not in caplog.text, "what nobody had begun to read is not lost"
        if running:
            source._consumer.pause(place)
        else:
            stop.set()
            await sink
            await source.stop()
        await send(settings, reports(4))
        await delete_before(settings.kafka, {place: 9})  # three reports, the end of their transaction, two more
        if running:
            source._consumer.resume(place)
            await wait_until_written(settings, sink)
        else:
            await run_until_written(settings)
    finally:
        stop.set()
        await sink
        await source.stop()
        client.close()
    assert ask(settings.clickhouse, "SELECT count() FROM producer_reports").rows == [(5,)]
    assert [row["holes"] for row in answer(settings, "is_anything_lost")] == [1]
    assert caplog.text.count("were deleted by Kafka's retention") == 1
    assert "records 7 to 8 of producer-reports:0 were deleted by Kafka's retention" in caplog.text


def reports(count: int) -> list[tuple[str, str, bytes]]:
    report_records = [
        ProducerReport(producer="web", writer_id=uuid.uuid4().hex, counters={}, reported_at_ms=START_MS)
        for _ in range(count)
    ]
    return encode_records([("producer-reports", "web", report) for report in report_records])


async def test_a_recreated_topic_stops_the_sink_until_the_loss_is_accepted(
    settings: SinkSettings,
) -> None:
    await create_topics(settings)
    await send(settings, reports(3))
    await run_until_written(settings)
    stream = stream_settings(settings.kafka.bootstrap_servers, settings.namespace)
    await delete_topics(stream, [f"{settings.namespace}producer-reports"])
    await create_topics(settings)
    await send(settings, reports(2))
    with pytest.raises(DataLossError, match=r"producer-reports\[0\].*was deleted and made again.*sink accept-loss"):
        await run_sink_async(settings, stop=asyncio.Event())
    (loss,) = (await accept_loss(settings, now_ms=START_MS, dry_run=True)).values()
    assert loss.is_other_log
    with pytest.raises(DataLossError, match="was deleted and made again"):
        await run_sink_async(settings, stop=asyncio.Event())
    assert await accept_loss(settings, now_ms=START_MS, dry_run=False)
    await run_until_written(settings)
    assert ask(settings.clickhouse, "SELECT count() FROM producer_reports").rows == [(5,)]
    assert all(row["holes"] == 0 for row in answer(settings, "is_anything_lost"))


async def test_an_offset_that_a_tool_has_set_stops_the_sink_until_it_is_accepted(settings: SinkSettings) -> None:
    await create_topics(settings)
    await send(settings, reports(3))
    await run_until_written(settings)
    place = TopicPartition(f"{settings.namespace}producer-reports", 0)
    await commit_offsets(settings.kafka, settings.group_id, {place: 0})
    with pytest.raises(DataLossError, match=r"a tool has set the offset to 0.*sink accept-loss"):
        await run_sink_async(settings, stop=asyncio.Event())
    assert await accept_loss(settings, now_ms=START_MS, dry_run=False)
    await run_until_written(settings)
    assert ask(settings.clickhouse, "SELECT count() FROM producer_reports FINAL").rows == [(3,)]
