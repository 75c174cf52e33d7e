"""A table dropped, a database lost, a hole, rows that are old: what the sink says, and what brings the rest back."""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from rollbus.consumers.clickhouse.maintain.rebuild import rebuild
from rollbus.consumers.clickhouse.questions.saved_questions import ask, run_query
from rollbus.consumers.clickhouse.sink.kafka_log import KafkaSinkLog
from rollbus.consumers.clickhouse.sink.sink import run_sink_async
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.retention import TABLES
from rollbus.consumers.clickhouse.store.settings import SinkSettings, TableRetention
from rollbus.schemas.errors import DataLossError, RejectedError
from tests.consumers.story import story
from tests.services.clickhouse.sink_fixtures import (
    counts,
    create_topics,
    encode_records,
    late_drops,
    run_until_written,
    send,
    sink_settings,
)
from tests.services.clickhouse.test_rebuild import archive_of, command, leftovers, rebuilt, written
from tests.services.clickhouse.test_sink import reports
from tests.services.commands import say_in_thread, say_installed, write_config
from tests.services.databases import name_database
from tests.services.streams.fixtures import delete_before
from tests.waiting import until_found

__all__ = ["written"]
pytestmark = pytest.mark.services

settings = sink_settings
DAY_MS = 86_400_000


def config_of(settings: SinkSettings, folder: Path) -> Path:
    """Write the file of a sink's settings."""
    clickhouse = settings.clickhouse.model_dump(mode="json", exclude={"password"})
    kafka = settings.kafka.bootstrap_servers
    return write_config(folder, kafka, settings.namespace, insecure=True, clickhouse=clickhouse)


def is_anything_lost(settings: SinkSettings) -> dict[str, dict[str, Any]]:
    answer = run_query(settings.clickhouse, "is_anything_lost", {"namespace": settings.namespace})
    rows = [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]
    return {row.pop("topic"): row | {"ranges": None} for row in rows}


async def test_the_sink_names_a_dropped_table_and_the_rebuild_command(written: SinkSettings, tmp_path: Path) -> None:
    before = counts(written)
    command(written, "DROP TABLE scores")
    command(written, "DROP TABLE turns")
    command(written, "DROP VIEW stored_places")
    config = config_of(written, tmp_path)
    refused = await say_installed(config, "sink run", expect=1)
    assert "has lost scores, turns; `rollbus sink rebuild scores turns`" in " ".join(refused.split())
    await say_installed(config, "sink rebuild scores turns")
    assert counts(written) == before
    assert leftovers(written) == []
    await send(written, late_drops(0, 1))
    await run_until_written(written)
    assert counts(written) == before | {"drops": before["drops"] + 1}
    assert all(row["absorbed"] <= 1 and row["holes"] == 0 for row in is_anything_lost(written).values())


async def test_the_sink_names_an_altered_column_and_the_rebuild_command(written: SinkSettings, tmp_path: Path) -> None:
    before = counts(written)
    command(written, "ALTER TABLE episodes RENAME COLUMN task TO task_name")
    command(written, "ALTER TABLE drops DROP COLUMN detail")
    config = config_of(written, tmp_path)
    refused = " ".join((await say_installed(config, "sink run", expect=1)).split())
    database = written.clickhouse.database
    assert f"table {database}.drops lacks column detail; table {database}.episodes lacks column task" in refused
    assert "and has column task_name: altered by hand." in refused
    assert "`rollbus sink rebuild drops episodes`" in refused
    await say_installed(config, "sink rebuild drops episodes")
    after = counts(written)
    altered = {table: after.pop(f"{table}_altered") for table in ("drops", "episodes")}
    assert altered == {table: before[table] for table in altered}
    assert after == before
    assert leftovers(written) == []
    for table in ("drops", "episodes"):
        command(written, f"DROP TABLE {table}_altered")
    await send(written, late_drops(0, 1))
    await run_until_written(written)
    assert counts(written) == before | {"drops": before["drops"] + 1}


async def test_a_late_range_of_a_frozen_sink_hides_no_longer_range(written: SinkSettings) -> None:
    """Its successor has cut a longer range from the same offset, and written it, before the frozen one goes on."""
    client = ClickHouse(written.clickhouse)
    place = {"namespace": written.namespace, "kafka_topic": "drops", "kafka_partition": 0, "from_offset": 9_000}
    numbers = dict.fromkeys(("records", "stored", "rows", "dead_letters", "bytes"), 1) | {"digest": ""}
    for last in (9_099, 9_049):  # the later insert is the frozen one's
        row = place | numbers | {"last_offset": last, "next_offset": last + 1, "end_offset": 9_100}
        client.insert("sink_ranges", [row])
    _, rows = client.query(
        "SELECT next_offset FROM sink_ranges FINAL WHERE namespace = {namespace:String} AND from_offset = 9000",
        {"namespace": written.namespace},
    )
    client.close()
    assert rows == [(9_100,)]


async def test_a_table_dropped_under_a_running_sink_stops_it_and_loses_nothing(written: SinkSettings) -> None:
    running = asyncio.create_task(run_sink_async(written, stop=asyncio.Event()))
    command(written, "DROP TABLE drops")
    await send(written, late_drops(0, 3))
    with pytest.raises((RejectedError, DataLossError), match=r"rollbus sink|start the sink"):
        await asyncio.wait_for(running, 120)
    await rebuilt(written, "drops")
    await run_until_written(written)
    assert counts(written)["drops"] == 3 + sum(1 for topic, _, _ in story() if topic == "drops")


async def test_a_rebuild_that_is_killed_leaves_no_empty_table_that_looks_whole(written: SinkSettings) -> None:
    class KilledLog(KafkaSinkLog):
        async def read(self, *_: Any) -> Any:
            raise KeyboardInterrupt
            yield

    before = counts(written)
    command(written, "DROP TABLE scores")
    with pytest.raises(KeyboardInterrupt):
        await rebuilt(written, "scores", log_class=KilledLog)
    with pytest.raises(DataLossError, match="has lost scores"):
        migrate(written.clickhouse)
    await rebuilt(written, "scores")
    assert counts(written) == before


async def test_a_new_database_is_refused_until_the_log_has_filled_it(written: SinkSettings, tmp_path: Path) -> None:
    before, answer = counts(written), is_anything_lost(written)
    empty = name_database((written.clickhouse.host, written.clickhouse.port), "sink")
    new = written.model_copy(update={"clickhouse": empty})
    with pytest.raises(DataLossError, match=r"ends at 0: it is new, or a backup; `rollbus sink rebuild` fills it"):
        await run_sink_async(new, stop=asyncio.Event())
    done = await say_in_thread(config_of(new, tmp_path), "sink", "rebuild")
    assert "not known to have been read, and noted now: " in done
    assert counts(new) == before
    assert is_anything_lost(new) == answer
    await run_until_written(new)
    assert counts(new) == before


async def test_a_rebuild_fills_a_backup_older_than_the_committed_offsets(written: SinkSettings, tmp_path: Path) -> None:
    stored_rows = is_anything_lost(written)["producer-reports"]["stored"]
    await send(written, reports(2))
    await run_until_written(written)
    before, answer = counts(written), is_anything_lost(written)
    newest = f"kafka_offset >= {stored_rows}"
    command(written, f"ALTER TABLE producer_reports DELETE WHERE {newest} SETTINGS mutations_sync = 2")
    last = "kafka_topic = 'producer-reports' AND from_offset > 0"
    command(written, f"ALTER TABLE sink_ranges DELETE WHERE {last} SETTINGS mutations_sync = 2")
    with pytest.raises(DataLossError, match="of producer-reports:0, and database"):
        await run_sink_async(written, stop=asyncio.Event())
    await say_in_thread(config_of(written, tmp_path), "sink", "rebuild")
    assert (counts(written), is_anything_lost(written)) == (before, answer)
    await run_until_written(written)


async def test_an_archive_fills_the_hole_that_retention_left(written: SinkSettings, tmp_path: Path) -> None:
    stored_rows = counts(written)["producer_reports"]
    await send(written, reports(4))
    log = await archive_of(written, tmp_path)
    place = TopicPartition(f"{written.namespace}producer-reports", 0)
    end = (await log.spans(["producer-reports"]))["producer-reports", 0].end
    await delete_before(written.kafka, {place: end})
    await send(written, reports(2))
    await run_until_written(written)
    assert is_anything_lost(written)["producer-reports"]["holes"] == 1
    assert counts(written)["producer_reports"] == stored_rows + 2
    client = ClickHouse(written.clickhouse)
    await rebuild(client, log, written.namespace)
    client.close()
    mended = is_anything_lost(written)["producer-reports"]
    assert (mended["holes"], mended["absorbed"], mended["stored"]) == (0, 0, mended["in_tables"])
    assert counts(written)["producer_reports"] == stored_rows + 6


async def test_rows_expired_by_the_settings_do_not_return_in_a_rebuild(settings: SinkSettings) -> None:
    await create_topics(settings)
    at_ms = int(time.time() * 1000) - 40 * DAY_MS
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka.bootstrap_servers) as producer:
        for topic, key, value in encode_records(story()):
            await producer.send_and_wait(settings.namespace + topic, value, key=key.encode(), timestamp_ms=at_ms)
    await run_until_written(settings)
    own_ttl = "toDateTime(kafka_timestamp) + toIntervalYear(9)"
    command(settings, f"ALTER TABLE scores MODIFY TTL {own_ttl}")
    all_rows, keeping_settings = counts(settings), keeping(settings, tokens_days=30, texts_days=90)
    await run_until_written(keeping_settings)
    without_tokens = all_rows | {"turn_tokens": 0, "histories": 0}
    await until_counted(keeping_settings, without_tokens)
    assert (
        own_ttl
        in ask(
            keeping_settings.clickhouse,
            "SELECT engine_full FROM system.tables WHERE database = currentDatabase() AND name = 'scores'",
        ).rows[0][0]
    )
    await rebuilt(keeping_settings)
    assert counts(keeping_settings) == without_tokens
    of_episodes = keeping(settings, episodes_days=30)
    migrate(of_episodes.clickhouse)
    marks = ask(settings.clickhouse, "SELECT count() FROM events FINAL WHERE kind = 'Excluded'").rows[0][0]
    expired = {table: 0 for tables in TABLES.values() for table in tables} | {"events": marks}
    await until_counted(settings, all_rows | expired)
    migrate(settings.clickhouse)
    engines = "SELECT count() FROM system.tables WHERE database = currentDatabase() AND engine_full LIKE '% TTL %'"
    assert ask(settings.clickhouse, engines).rows == [(0,)], "no setting, no TTL"


def keeping(settings: SinkSettings, **days: int) -> SinkSettings:
    clickhouse = settings.clickhouse.model_copy(update={"retention": TableRetention(**days)})
    return settings.model_copy(update={"clickhouse": clickhouse})


async def until_counted(settings: SinkSettings, expected: dict[str, int]) -> None:
    look = partial(asyncio.to_thread, counts, settings)
    await until_found(look, "ClickHouse does not delete", is_enough=lambda row_counts: row_counts == expected)
