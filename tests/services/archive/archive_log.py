"""A small log for the archive's tests: with transactions, some aborted, signatures, and what retention has taken."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiokafka import TopicPartition

from rollbus.archive.archive import Archive, open_archive
from rollbus.archive.files import ArchivedRecord, to_archived_record
from rollbus.archive.kafka.run import ArchiveRun
from rollbus.hosted_stages import all_stages
from rollbus.runtime.kafka.clients import running
from rollbus.runtime.kafka.reading import read_from
from rollbus.runtime.kafka.writing import Row, partition_of, write, write_transaction
from rollbus.schemas.codec import encode
from rollbus.schemas.signing import OWNER
from rollbus.schemas.topics import EPISODE_EVENTS, STAGE_INPUTS, TOPICS
from rollbus.settings import Settings
from rollbus.streams.exactly_once.transaction import new_producer
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from tests.builders import make_tick
from tests.services.replay.live import SIGNING_SETTINGS, settings_of, traffic, write_settings

NOW_MS = 1_700_000_000_000
Place = tuple[str, int]


def make_settings(folder: Path, kafka: str, namespace: str, **changes: Any) -> tuple[Path, Settings]:
    """Settings of a log whose owner signs."""
    path = write_settings(folder, kafka, namespace, signing=SIGNING_SETTINGS, **changes)
    return path, settings_of(path)


async def fill(settings: Settings, *, rounds: Sequence[int] = range(6), episodes: int = 24) -> None:
    """Write so many rounds, each a transaction with a signed tick at its end, with an aborted one after it."""
    stream = settings.stream_settings()
    await ensure_topics(stream, all_stages(settings))
    producer, events = new_producer(stream, f"{stream.namespace}fill"), traffic(5, episodes)
    size = -(-len(events) // 6)
    async with running(stream.kafka, producer):
        for number in rounds:
            rows = [_event(stream, event) for event in events[number * size : (number + 1) * size]]
            await write_transaction(producer, rows)
            await producer.begin_transaction()
            await write(producer, rows[: number + 1])
            await producer.abort_transaction()
            await write_transaction(producer, _ticks(stream, encode(make_tick(number))))


def _event(stream: StreamSettings, event: Any) -> Row:
    topic, key = EPISODE_EVENTS.full_name(stream.namespace), event.root_episode_id.encode()
    partition = partition_of(key, stream.event_partitions)
    return Row(topic, partition, key, encode(event), [("trace", event.event_id.encode()), ("none", None)])


def _ticks(stream: StreamSettings, data: bytes) -> list[Row]:
    return [
        Row(name, partition, None, data, stream.signing.sign(OWNER, name, None, data))
        for topic in dict.fromkeys(STAGE_INPUTS.values())
        for name in [topic.full_name(stream.namespace)]
        for partition in range(partitions_of(topic, stream))
    ]


async def read_log(stream: StreamSettings, namespace: str) -> dict[Place, list[ArchivedRecord]]:
    """Return every committed record of a namespace, by topic and partition; times are the records' own."""
    places = {
        TopicPartition(namespace + topic.name, number): (topic.name, number)
        for topic in TOPICS
        for number in range(partitions_of(topic, stream))
    }
    records_by_place: dict[Place, list[ArchivedRecord]] = {place: [] for place in places.values()}
    async for raw in read_from(stream.kafka, dict.fromkeys(places, 0)):
        records_by_place[places[TopicPartition(raw.topic, raw.partition)]].append(
            to_archived_record(raw)._replace(timestamp_type=0)
        )
    return records_by_place


def archived_log(archive: Archive) -> dict[Place, list[ArchivedRecord]]:
    """Return every record of an archive, by topic and partition."""
    return {
        place: [record._replace(timestamp_type=0) for records in archive.read_partition(place) for record in records]
        for place in archive.contents.partitions
    }


async def archive_run(settings: Settings, url: str, archive: Archive | None = None, **options: Any) -> ArchiveRun:
    """Archive what is new; return what the run counted."""
    opened = archive if archive is not None else await asyncio.to_thread(open_archive, url, may_be_new=True)
    run = ArchiveRun(settings.stream_settings(), opened, lambda: NOW_MS, **options)
    await run.run()
    return run
