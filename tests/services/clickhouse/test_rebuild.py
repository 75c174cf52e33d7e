"""Tables rebuilt from the log: equal if nothing was lost, repaired if something was, without disturbing readers."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollbus.archive.archive import open_archive
from rollbus.archive.forget import forget_in_archive
from rollbus.archive.kafka.run import ArchiveRun
from rollbus.archive.log import ArchiveLog
from rollbus.consumers.clickhouse.maintain import forget
from rollbus.consumers.clickhouse.maintain.rebuild import all_tables, rebuild
from rollbus.consumers.clickhouse.questions.saved_questions import ask
from rollbus.consumers.clickhouse.sink.kafka_log import KafkaSinkLog
from rollbus.consumers.clickhouse.sink.log import OffsetSpan, Partition
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.origin import KafkaRecord
from rollbus.consumers.clickhouse.store.settings import SinkSettings
from rollbus.schemas.errors import ConfigurationError, DataLossError
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.drops import Drop
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.operate.forget import RootedEpisode, exclusions
from tests.builders import START_MS, make_alias_reward
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
from tests.waiting import until_found

pytestmark = pytest.mark.services

settings = sink_settings


@pytest.fixture
async def written(settings: SinkSettings) -> SinkSettings:
    """The story, with a dead letter, in Kafka and in ClickHouse."""
    await create_topics(settings)
    await send(settings, [*encode_records(story()), ("scores", "k", b"junk")])
    await run_until_written(settings)
    return settings


class KeptLog(KafkaSinkLog):
    """A log whose reader can be asked to do something in the middle."""

    async def read(self, partition: Partition, span: OffsetSpan) -> AsyncIterator[Sequence[KafkaRecord]]:
        async for records in super().read(partition, span):
            yield records
            await self.in_between()

    async def in_between(self) -> None:
        """Nothing, unless a test says otherwise."""


async def rebuilt(settings: SinkSettings, *tables: str, log_class: type[KafkaSinkLog] = KafkaSinkLog) -> Any:
    client = ClickHouse(settings.clickhouse)
    try:
        async with log_class(settings.kafka, settings.namespace) as log:
            return await rebuild(client, log, settings.namespace, tables)
    finally:
        client.close()


async def archive_of(settings: SinkSettings, folder: Path) -> ArchiveLog:
    """Archive the log into a folder, and return the archive as a log."""
    archive = open_archive(str(folder), may_be_new=True)
    stream = StreamSettings(kafka=settings.kafka, namespace=settings.namespace)
    await ArchiveRun(stream, archive, lambda: START_MS).run()
    return ArchiveLog(archive)


def command(settings: SinkSettings, sql: str) -> None:
    client = ClickHouse(settings.clickhouse)
    client.command(sql)
    client.close()


def leftovers(settings: SinkSettings) -> list[Any]:
    sql = "SELECT name FROM system.tables WHERE database = currentDatabase() AND name LIKE '%_rebuild'"
    return ask(settings.clickhouse, sql).rows


async def test_a_rebuild_keeps_written_rows_and_restores_lost_ones(written: SinkSettings) -> None:
    before = counts(written)
    rebuild_report = await rebuilt(written)
    assert [table.table for table in rebuild_report.tables] == list(all_tables())
    assert all(table.other_ranges == () for table in rebuild_report.tables)
    assert rebuild_report.verified_ranges > 10
    assert counts(written) == before

    command(written, "ALTER TABLE turns DELETE WHERE episode_id = 'e3' SETTINGS mutations_sync = 2")
    command(written, "TRUNCATE TABLE scores")
    command(written, "ALTER TABLE groups UPDATE reward_mean = 7 WHERE group_id = 'g1' SETTINGS mutations_sync = 2")
    rebuild_report = await rebuilt(written, "turns", "scores", "groups")
    assert {table.table for table in rebuild_report.tables if table.other_ranges} == {"turns", "scores", "groups"}
    assert counts(written) == before
    assert ask(written.clickhouse, "SELECT reward_mean FROM groups FINAL WHERE group_id = 'g1'").rows == [(0.5,)]
    assert leftovers(written) == []


async def test_rows_that_the_log_does_not_hold_stay(written: SinkSettings) -> None:
    copied = "SELECT * REPLACE ('replay-x.' AS namespace) FROM scores"
    command(written, f"INSERT INTO scores {copied}")
    before = counts(written)
    await rebuilt(written, "scores")
    assert counts(written) == before


async def test_a_rebuild_loses_no_row_written_meanwhile(written: SinkSettings) -> None:
    """Readers see whole tables all the time."""
    before = counts(written)
    seen: list[int] = []

    class Busy(KeptLog):
        async def in_between(self) -> None:
            if not seen:
                await send(written, late_drops(0, 1))
                await run_until_written(written)
            seen.append((await asyncio.to_thread(counts, written))["events"])

    await rebuilt(written, "drops", "events", "scores", log_class=Busy)
    assert set(seen) == {before["events"]}
    assert counts(written) == before | {"drops": before["drops"] + 1}


async def test_a_rebuild_keeps_the_rows_of_an_insert_that_outlasts_it(written: SinkSettings) -> None:
    before = counts(written)
    inserts: list[asyncio.Task[None]] = []
    copied = "SELECT * REPLACE ('late' AS unit_id, kafka_offset + 1000 AS kafka_offset, now64(3) AS ingested_at)"
    pauses = "SELECT max(sleepEachRow(0.5)) FROM numbers(30) SETTINGS max_block_size = 1"
    slow_insert = f"INSERT INTO drops {copied} FROM drops WHERE ({pauses}) = 0 LIMIT 1"

    class Busy(KeptLog):
        async def in_between(self) -> None:
            if not inserts:
                inserts.append(asyncio.create_task(asyncio.to_thread(command, written, slow_insert)))
                await until_found(lambda: asyncio.to_thread(count_inserts, written), "the insert does not begin")

    await rebuilt(written, "drops", log_class=Busy)
    await inserts[0]
    assert counts(written) == before | {"drops": before["drops"] + 1}


def count_inserts(settings: SinkSettings) -> int:
    sql = "SELECT count() FROM system.processes WHERE query LIKE 'INSERT INTO drops%'"
    return int(ask(settings.clickhouse, sql).rows[0][0])


async def test_a_log_that_holds_less_than_the_table_changes_nothing(written: SinkSettings, tmp_path: Path) -> None:
    class Forgetful(KeptLog):
        async def read(self, partition: Partition, span: OffsetSpan) -> AsyncIterator[Sequence[KafkaRecord]]:
            async for records in super().read(partition, span):
                yield [record for record in records if partition[0] != "scores"]

    before = counts(written)
    with pytest.raises(DataLossError, match="do not hold what the sink read; nothing was changed"):
        await rebuilt(written, "scores", log_class=Forgetful)
    command(written, "TRUNCATE TABLE sink_ranges")
    with pytest.raises(DataLossError, match="table scores has 8 rows of scores:"):
        await rebuilt(written, "scores", log_class=Forgetful)
    assert counts(written) == before
    assert leftovers(written) == []


async def test_a_name_without_a_table_is_refused(settings: SinkSettings) -> None:
    with pytest.raises(ConfigurationError, match="step: no such table is built from the log; there are batch_groups"):
        await rebuilt(settings, "step")


def of(settings: SinkSettings, episode: str) -> int:
    """Rows that tell what an episode said or did."""
    tables = [f"SELECT count() AS rows FROM {table} WHERE episode_id = '{episode}'" for table in forget.TABLES[1:]]
    tables.append(f"SELECT count() FROM events WHERE episode_id = '{episode}' AND {forget.NOT_EXCLUDED}")
    return int(ask(settings.clickhouse, f"SELECT sum(rows) FROM ({' UNION ALL '.join(tables)})").rows[0][0])


async def put_on_the_list(settings: SinkSettings, *episodes: str) -> None:
    """Do what `rollbus forget` does to the log."""
    records = exclusions([RootedEpisode(episode, episode) for episode in episodes], reason="asked", now_ms=START_MS)
    await send(
        settings, encode_records([(topic, record.episode_id, record) for record in records for topic in EXCLUDED_IN])
    )


EXCLUDED_IN = ("exclusions", "episode-events")
OF_PERSONS = (*forget.TABLES, *forget.TABLES_BY_CONTENT)
"""The tables that can hold what a person said: half of all, and a rebuild costs the same for each."""


async def test_a_forgotten_person_does_not_come_back(written: SinkSettings) -> None:
    await put_on_the_list(written, "e2", "e5")
    await run_until_written(written)
    forget.delete_rows(written.clickhouse, ["e2"])  # e5's rows are still there, as after a slow sink
    others = {name: of(written, name) for name in ("e1", "e3", "e7")}
    assert (of(written, "e2"), of(written, "e5") > 10) == (0, True)
    rebuild_report = await rebuilt(written, *OF_PERSONS)
    assert all(table.other_ranges == () for table in rebuild_report.tables)
    assert (rebuild_report.forgotten, rebuild_report.left_out > 20) == (2, True)
    assert (of(written, "e2"), of(written, "e5")) == (0, 0)
    assert {name: of(written, name) for name in others} == others
    assert ask(
        written.clickhouse, "SELECT uniqExact(episode_id) FROM events WHERE kind = 'Excluded' AND sequence < 0"
    ).rows == [(2,)]
    assert leftovers(written) == []


async def test_feedback_by_the_alias_of_a_forgotten_person_does_not_come_back(written: SinkSettings) -> None:
    report = make_alias_reward("chat-1", comment="words of hers")
    addressed = replace(report, episode_id="e2", root_episode_id="e2")
    await send(written, encode_records([("aliases", "chat-1", report), ("episode-events", "e2", addressed)]))
    await put_on_the_list(written, "e1", "e2")
    await run_until_written(written)
    by_alias = "SELECT count() FROM rewards WHERE episode_id = ''"
    assert ask(written.clickhouse, by_alias).rows == [(2,)]
    forget.delete_rows(written.clickhouse, ["e1", "e2"])
    assert ask(written.clickhouse, by_alias).rows == [(0,)]
    rebuild_report = await rebuilt(written, "events", "rewards")
    assert all(table.other_ranges == () for table in rebuild_report.tables)
    assert ask(written.clickhouse, by_alias).rows == [(0,)]


async def test_an_episode_forgotten_during_a_rebuild_is_not_in_the_new_tables(written: SinkSettings) -> None:
    class InterruptedLog(KeptLog):
        async def in_between(self) -> None:
            await put_on_the_list(written, "e2")

    rebuild_report = await rebuilt(written, "turns", "scores", log_class=InterruptedLog)
    assert rebuild_report.forgotten == 1
    assert (of(written, "e2"), of(written, "e1") > 10) == (0, True)


async def test_an_archive_older_than_the_exclusions_restores_no_forgotten_person(
    written: SinkSettings, tmp_path: Path
) -> None:
    log = await archive_of(written, tmp_path)
    await put_on_the_list(written, "e2")
    await run_until_written(written)
    forget.delete_rows(written.clickhouse, ["e2"])
    client = ClickHouse(written.clickhouse)
    rebuild_report = await rebuild(client, log, written.namespace, OF_PERSONS)
    client.close()
    assert rebuild_report.forgotten == 1
    assert (of(written, "e2"), of(written, "e1") > 10) == (0, True)


async def test_an_archive_without_forgotten_episodes_restores_a_lost_database(
    written: SinkSettings, tmp_path: Path
) -> None:
    failed = Drop(
        unit="trajectory", unit_id=trajectory_id("e2"), reason="score_failed", stage="scoring",
        detail="words of hers", dropped_at_ms=START_MS,
    )  # fmt: skip
    await send(written, [*encode_records([("drops", failed.unit_id, failed)]), ("scores", "k", b"junk about e2")])
    await archive_of(written, tmp_path)
    await put_on_the_list(written, "e2")
    await run_until_written(written)
    forget.delete_rows(written.clickhouse, ["e2"])
    forget_in_archive(open_archive(str(tmp_path)), frozenset({"e2"}), now_ms=START_MS, version="")
    before, log = counts(written), await archive_of(written, tmp_path)
    without_drop = {table: before[table] - 1 for table in ("drops", "drop_trajectories")}
    client = ClickHouse(written.clickhouse)
    client.command("DROP TABLE scores SYNC")
    rebuild_report = await rebuild(client, log, written.namespace)
    assert (rebuild_report.uncompared_ranges > 1, rebuild_report.verified_ranges > 5, counts(written)) == (
        True,
        True,
        before,
    )
    client.command(f"DROP DATABASE {written.clickhouse.database} SYNC")
    migrate(written.clickhouse)
    await rebuild(client, log, written.namespace)
    assert (counts(written), of(written, "e2")) == (before | without_drop, 0)
    await rebuilt(written)  # from Kafka, which still has them
    assert (counts(written), of(written, "e2")) == (before, 0)
    assert ask(written.clickhouse, "SELECT count() FROM drops WHERE detail = 'words of hers'").rows == [(0,)]
    client.close()
