"""Kafka → the archive: what has come since the last manifest, up to the end that each partition has now.

1. Read the chain; refuse an archive of another log, and a topic that was deleted and created again.
2. Read each partition; write a file for every FILE_BYTES, and a manifest for every PORTION_BYTES and at the end.
3. Delete what earlier attempts left.
Killed anywhere, it goes on from the last manifest. Episodes on the list of exclusions are left out. A schedule starts
it as a job, whose last heartbeat stays, so that alarms can judge by it.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from aiokafka import AIOKafkaConsumer, TopicPartition

from rollbus import __version__
from rollbus.archive.archive import Archive, require_same_log
from rollbus.archive.files import ArchivedRecord, digest_of, to_archived_record
from rollbus.archive.forget import Forgotten, find_aliases
from rollbus.archive.manifest import ArchivedFile, ArchivedPartition, Missing, Partition
from rollbus.runtime.health.alarms.archive import ARCHIVED_TO_MS, KEPT_MS
from rollbus.runtime.health.heart import Heart, Report, beating
from rollbus.runtime.kafka.clients import new_admin, running
from rollbus.runtime.kafka.log_id import read_log_ids
from rollbus.runtime.kafka.partitions import count_partitions
from rollbus.runtime.kafka.reading import Bounds, assign_paused, open_reader, read_bounds, read_on
from rollbus.runtime.log_mark import LogId
from rollbus.schemas.errors import ConfigurationError, DataLossError
from rollbus.schemas.topics import ALIASES, TOPICS
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.replay.kafka.live_topics import read_exclusions
from rollbus.streams.replay.kafka.source import read_whole

logger = logging.getLogger(__name__)

FILE_BYTES = 64 * 1024 * 1024
"""Of keys and values: a file is in memory whole."""
PORTION_BYTES = 4 * FILE_BYTES
"""What a kill costs at most."""
HOUR_MS = 3_600_000
Progress = Callable[[int, int], None]
FIRST_BEAT_S = 10.0
"""How long a job that is done waits for its first beat: it may end sooner than a connection takes."""


@dataclass(slots=True)
class ArchiveRun:
    """One archiving."""

    settings: StreamSettings
    archive: Archive
    now_ms: Callable[[], int]
    progress: Progress = lambda done, of: None
    records: int = 0
    """Archived by this run."""
    left_out: int = 0
    """Records of forgotten episodes."""
    missing: list[Missing] = field(default_factory=list)
    """What retention took since the last run."""
    file_bytes: int = FILE_BYTES
    portion_bytes: int = PORTION_BYTES
    _files: list[ArchivedFile] = field(default_factory=list)
    _new_missing: list[Missing] = field(default_factory=list)
    _portion: int = 0
    _done: int = 0

    trouble: str | None = None
    """What is wrong: damaged manifests, and what this run found missing."""
    archived_to_ms: int = 0
    """All that the log had at that time is archived; 0 until then."""

    def report(self) -> Report:
        """Say how far the archive reaches, and what is wrong; a job that ends keeps its last beat."""
        kept_ms = self.settings.retention_hours * HOUR_MS
        positions = {ARCHIVED_TO_MS: self.archived_to_ms, KEPT_MS: kept_ms} if self.archived_to_ms else {}
        return Report(holds=("archive",), positions=positions, work=self.records, trouble=self.trouble)

    async def run(self) -> None:
        """Archive; raises ConfigurationError, DataLossError, FencedError, ServiceError."""
        began_ms = self.now_ms()
        self.trouble = "; ".join(self.archive.damage) or None
        logs, counts = await self._look()
        cluster = next(iter(logs.values())).cluster
        require_same_log(self.archive, self.settings.namespace, cluster)
        forgotten = await read_forgotten(self.settings)
        partitions = dict(self.archive.contents.partitions)
        async with open_reader(self.settings.kafka, "archiving") as consumer:
            places = {
                TopicPartition(topic.full_name(self.settings.namespace), number): (topic.name, number)
                for topic in TOPICS
                for number in range(counts.get(topic.full_name(self.settings.namespace), 0))
            }
            assign_paused(consumer, places)
            bounds = await read_bounds(consumer, places)
            starts = {}
            for place, name in places.items():
                starts[place] = self._start(name, partitions.get(name), bounds[place], logs[place.topic].topic_id)
                consumer.seek(place, max(bounds[place][0], starts[place].last_offset, 0))
                partitions[name] = starts[place]  # the first manifest says what is missing in all of them
            total = sum(bounds[place][1] - starts[place].end for place in places)
            for place, name in places.items():
                async for partition in self._read(consumer, place, starts[place], bounds[place][1], forgotten):
                    partitions[name] = partition
                    self.progress(self._done + partition.end - starts[place].end, total)
                    if self._portion >= self.portion_bytes:
                        await self._publish(cluster, partitions)
                self._done += bounds[place][1] - starts[place].end
        if self._files or self._new_missing or partitions != self.archive.contents.partitions:
            await self._publish(cluster, partitions)
        await asyncio.to_thread(self.archive.write_head)
        await asyncio.to_thread(self.archive.delete_unnamed)
        self.archived_to_ms = began_ms
        losses = [f"retention deleted {missing} before this run" for missing in self.missing]
        self.trouble = "; ".join([*losses, *self.archive.damage]) or None

    async def _look(self) -> tuple[Mapping[str, LogId], Mapping[str, int]]:
        """Return which log each topic is, and how many partitions it has."""
        async with running(self.settings.kafka, new_admin(self.settings.kafka), what="archiving") as admin:
            names = [topic.full_name(self.settings.namespace) for topic in TOPICS]
            counts = await count_partitions(admin, names)
            if not counts:
                raise ConfigurationError(
                    f"there is no topic of {self.settings.namespace}* at {self.settings.kafka.bootstrap_servers}: look "
                    "at `namespace:`"
                )
            return await read_log_ids(admin, counts), counts

    def _start(
        self, name: Partition, earlier: ArchivedPartition | None, bounds: Bounds, topic_id: str
    ) -> ArchivedPartition:
        """Return where to go on, and note what retention took meanwhile; raises DataLossError for another topic."""
        begin, end = bounds
        if earlier is None:
            return ArchivedPartition(*name, begin=begin, end=begin, topic_id=topic_id)
        if earlier.topic_id and topic_id and earlier.topic_id != topic_id:
            raise _other_topic(
                self.archive, name, f"its id is {topic_id}, and that of the archived one {earlier.topic_id}"
            )
        if earlier.topic_id != topic_id:
            logger.info("%s[%d] has no id in the archive %s yet; it is %s", *name, self.archive.url, topic_id)
            earlier = replace(earlier, topic_id=topic_id)
        if end < earlier.end:
            raise _other_topic(self.archive, name, f"it ends at offset {end}, and the archive at {earlier.end}")
        if begin <= earlier.end:
            return earlier
        self._new_missing.append(Missing(*name, begin=earlier.end, end=begin))
        self.missing.append(self._new_missing[-1])
        return replace(earlier, end=begin)

    async def _read(
        self,
        consumer: AIOKafkaConsumer,
        place: TopicPartition,
        start: ArchivedPartition,
        end: int,
        forgotten: Forgotten,
    ) -> AsyncIterator[ArchivedPartition]:
        """Yield how far the partition is archived, after each file and at its end."""
        now, waiting, size = start, list[ArchivedRecord](), 0
        async for raw in read_on(consumer, {place: end}):
            record = to_archived_record(raw)
            if record.offset < start.end:
                self._compare_with_archived(start, record)
                continue
            if record.offset >= end:
                continue
            now = replace(now, last_offset=record.offset, last_sha256=digest_of([record]))
            if forgotten.covers(start.topic, record):
                self.left_out += 1
                continue
            waiting.append(record)
            size += record.size
            if size >= self.file_bytes:
                now = await self._add_file(now, waiting, record.offset + 1)
                waiting, size = [], 0
                yield now
        if waiting:
            now = await self._add_file(now, waiting, end)
        yield replace(now, end=end)

    async def _add_file(self, now: ArchivedPartition, records: list[ArchivedRecord], end: int) -> ArchivedPartition:
        name = (now.topic, now.partition)
        file = await asyncio.to_thread(self.archive.add_file, name, now.end, end, records)
        self._files.append(file)
        self.records += len(records)
        self._portion += sum(record.size for record in records)
        return replace(now, end=end)

    def _compare_with_archived(self, start: ArchivedPartition, record: ArchivedRecord) -> None:
        """Raise DataLossError if the log has another record where the archive ends: its topic was created again."""
        if record.offset == start.last_offset and digest_of([record]) != start.last_sha256:
            name = (start.topic, start.partition)
            raise _other_topic(self.archive, name, f"its record {record.offset} is not the one that was archived")

    async def _publish(self, cluster: str, partitions: dict[Partition, ArchivedPartition]) -> None:
        await asyncio.to_thread(
            self.archive.publish,
            namespace=self.settings.namespace,
            cluster=cluster,
            version=__version__,
            written_at_ms=self.now_ms(),
            purpose="run",
            files=tuple(self._files),
            partitions=tuple(sorted(partitions.values())),
            missing=tuple(self._new_missing),
        )
        self._files, self._new_missing, self._portion = [], [], 0


async def read_forgotten(settings: StreamSettings) -> Forgotten:
    """Return whose records are left out: the list of exclusions, and the aliases of those episodes."""
    async with running(settings.kafka, new_admin(settings.kafka), what="archiving") as admin:
        topics = {topic.name: topic.full_name(settings.namespace) for topic in TOPICS}
        counts = await count_partitions(admin, list(topics.values()))
    if topics["exclusions"] not in counts:
        return Forgotten()
    episodes, _ = await read_exclusions(settings)
    aliases: frozenset[str] = frozenset()
    if episodes and topics[ALIASES.name] in counts:
        records = [raw.value async for raw in read_whole(settings, ALIASES, counts[topics[ALIASES.name]])]
        aliases = find_aliases(records, episodes)
    return Forgotten.of(episodes, aliases)


def _other_topic(archive: Archive, name: Partition, why: str) -> DataLossError:
    topic, number = name
    return DataLossError(
        f"{topic}[{number}] is not the one that the archive {archive.url} holds: {why}. "
        "The topic was deleted and made again; nothing is written. Give the new log an archive of its own"
    )


async def run_job(work: ArchiveRun, heart: Heart) -> None:
    """Archive, and beat meanwhile; raises what the archiving raises."""
    async with beating(heart, work.report):
        await work.run()
        with suppress(TimeoutError):
            await asyncio.wait_for(heart.has_beaten.wait(), FIRST_BEAT_S)
