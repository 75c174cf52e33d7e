"""The archive → Kafka, under a namespace of its own, at the same offsets, so that a replay reads it as it read the log.

1. Check every file and the chain, before anything is made; refuse a namespace that has topics.
2. Create the topics, kept for ever and with the records' own times, and write each partition.
3. Read everything back and compare its digest with the archive's.
4. Create `exclusions` as the last topic: a replay needs it, so a restore that was cut off is never taken for a log.

Kafka counts offsets itself. Where the log has none (transactions' markers, aborted records, what was forgotten), empty
records are written in a transaction that is then aborted: a reader of committed records sees a gap there. What the log
had lost before its archive began is written, too, and then deleted by Kafka's own DeleteRecords.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete

from rollbus.archive.archive import Archive, total
from rollbus.archive.files import ArchivedRecord, RecordDigest
from rollbus.archive.manifest import ArchivedPartition, Contents, Missing, missing_between
from rollbus.runtime.kafka.clients import new_admin, new_producer, new_transactional_producer, running
from rollbus.runtime.kafka.reading import read_from
from rollbus.runtime.kafka.writing import Row, write
from rollbus.schemas.errors import ConfigurationError, DataLossError
from rollbus.schemas.namespaces import RESTORED
from rollbus.schemas.topics import EXCLUSIONS
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import TopicSpec, topic_specs
from rollbus.streams.kafka.topics_on_broker import create_topics, delete_topics, topics_on_broker

RESTORED_CONFIG = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
"""Records are older than any retention, and have the times that they had."""
TRANSACTION_S, LONGEST_S = 60.0, 600.0
"""A transaction of gaps ends after the first; the broker ends it after the second, and allows 900 by default."""
GAP_RECORDS = 100_000
"""Written at once; an empty record takes about seven bytes."""
Progress = Callable[[int, int], None]


def restored_namespace(name: str, namespace: str) -> str:
    """Return where a namespace is restored to under a name; raises ConfigurationError for a name that no topic has."""
    restored_name = f"restored-{name}.{namespace}"
    if RESTORED.match(restored_name) is None or "." in name:
        raise ConfigurationError(f"{name!r} is not a name: use small letters, digits and -, at most 41")
    return restored_name


@dataclass(slots=True)
class Restore:
    """One restoring."""

    settings: StreamSettings
    """Of the namespace that was archived."""
    archive: Archive
    name: str
    allow_missing: bool = False
    progress: Progress = lambda done, of: None
    records: int = 0
    digests: dict[str, str] = field(default_factory=dict)
    """Of each partition, by topic and number, as the archive has it and Kafka gives it back."""
    _done: int = 0

    @property
    def namespace(self) -> str:
        """Where the records are restored to."""
        return restored_namespace(self.name, self.archive.contents.manifests[-1].namespace)

    async def run(self) -> None:
        """Restore; raises ConfigurationError, DataLossError, ServiceError."""
        contents = self.archive.contents
        holes = missing_between(contents.missing, contents.partitions)
        if holes and not self.allow_missing:
            raise _holes_error(self.archive, holes)
        restored_settings = self.settings.model_copy(update={"namespace": self.namespace})
        if existing_topics := [
            name for name in await topics_on_broker(restored_settings) if name.startswith(restored_settings.namespace)
        ]:
            raise ConfigurationError(
                f"{restored_settings.namespace}* has {len(existing_topics)} topics already; choose another name, "
                f"or delete them with `rollbus archive discard {self.name}`. "
                "A restore that was cut off is deleted so, too"
            )
        if troubles := await asyncio.to_thread(self.archive.verify):
            raise DataLossError("\n".join([*troubles, "nothing was restored"]))
        filler = new_transactional_producer(restored_settings.kafka, f"{restored_settings.namespace}restore", LONGEST_S)
        async with (  # before there are topics: what a restore that was cut off has left open is ended in none of them
            running(restored_settings.kafka, filler, what="restoring"),
            running(restored_settings.kafka, new_producer(restored_settings.kafka), what="restoring") as plain,
        ):
            for is_last in (False, True):
                await create_topics(
                    restored_settings,
                    [
                        spec
                        for spec in _specs(restored_settings, contents)
                        if _is_last(restored_settings, spec.name) == is_last
                    ],
                )
                parts = [
                    partition
                    for partition in contents.partitions.values()
                    if (partition.topic == EXCLUSIONS.name) == is_last
                ]
                await self._restore(restored_settings, plain, filler, parts)

    async def _restore(
        self,
        target: StreamSettings,
        plain: AIOKafkaProducer,
        filler: AIOKafkaProducer,
        partitions: list[ArchivedPartition],
    ) -> None:
        begins = dict[TopicPartition, RecordsToDelete]()
        for partition in partitions:
            place = TopicPartition(target.namespace + partition.topic, partition.partition)
            digest = await self._write(_PartitionWriter(plain, filler, place, partition.begin), partition)
            if partition.begin:
                begins[place] = RecordsToDelete(before_offset=partition.begin)
            self.digests[f"{partition.topic}-{partition.partition}"] = digest.hexdigest()
        if begins:
            async with running(target.kafka, new_admin(target.kafka), what="restoring") as admin:
                await admin.delete_records(begins)
        await self._compare(target, partitions)

    async def _write(self, writer: "_PartitionWriter", partition: ArchivedPartition) -> RecordDigest:
        digest, all_records = RecordDigest(), total(self.archive.contents.files.values())[0]
        await writer.begin()
        async for records in self._files(partition):
            for record in records:
                digest.add(record)
            await writer.write(records)
            self.records += len(records)
            self.progress(self.records, all_records)
        await writer.finish(partition.end)
        return digest

    async def _files(self, partition: ArchivedPartition) -> AsyncIterator[list[ArchivedRecord]]:
        files = self.archive.read_partition((partition.topic, partition.partition))
        while (records := await asyncio.to_thread(next, files, None)) is not None:
            yield records

    async def _compare(self, target: StreamSettings, partitions: list[ArchivedPartition]) -> None:
        """Raise DataLossError if Kafka gives back anything else than was archived."""
        digests = {
            TopicPartition(target.namespace + partition.topic, partition.partition): RecordDigest()
            for partition in partitions
        }
        async with aclosing(read_from(target.kafka, dict.fromkeys(digests, 0))) as records:
            async for raw in records:
                digests[TopicPartition(raw.topic, raw.partition)].add(raw)
        for place, digest in digests.items():
            if digest.hexdigest() != self.digests[f"{place.topic.removeprefix(target.namespace)}-{place.partition}"]:
                raise DataLossError(
                    f"{place.topic}[{place.partition}] does not give back what was archived; delete the topics with "
                    f"`rollbus archive discard {self.name}`, and restore again"
                )


@dataclass(slots=True)
class _PartitionWriter:
    """Writes one partition from offset 0 on, with gaps."""

    plain: AIOKafkaProducer
    filler: AIOKafkaProducer
    place: TopicPartition
    start: int
    position: int = 0
    _open_since: float | None = None
    """When the transaction of gaps was begun."""

    async def begin(self) -> None:
        """Fill what was before the archive; it is deleted at the end."""
        await self._fill(self.plain, self.start)
        self.position = self.start

    async def write(self, records: list[ArchivedRecord]) -> None:
        """Write records at their offsets."""
        for run in _runs(records):
            await self._skip_to(run[0].offset)
            rows = [
                Row(self.place.topic, self.place.partition, record.key, record.value, record.headers, record.timestamp)
                for record in run
            ]
            await write(self.plain, rows)
            self.position += len(rows)

    async def finish(self, end: int) -> None:
        """Write the gap at the end, and end the transaction."""
        if end > self.position:
            await self._skip_to(end, last=True)
        await self._end_transaction()

    async def _skip_to(self, offset: int, *, last: bool = False) -> None:
        gap = offset - self.position
        if not gap:
            return
        if self._open_since is None:
            await self.filler.begin_transaction()
            self._open_since = time.monotonic()
        ends = last or time.monotonic() - self._open_since > TRANSACTION_S
        await self._fill(self.filler, gap - ends)  # the marker of the end takes an offset, too
        if ends:
            await self._end_transaction()
        self.position = offset

    async def _fill(self, producer: AIOKafkaProducer, count: int) -> None:
        for written_records in range(0, count, GAP_RECORDS):
            await write(
                producer,
                [Row(self.place.topic, self.place.partition, None, b"")] * min(GAP_RECORDS, count - written_records),
            )

    async def _end_transaction(self) -> None:
        if self._open_since is not None:
            await self.filler.abort_transaction()
            self._open_since = None


async def discard(settings: StreamSettings, name: str) -> list[str]:
    """Delete the topics of a restored namespace, whole or not; return their names."""
    restored_settings = settings.model_copy(update={"namespace": restored_namespace(name, settings.namespace)})
    topics = [
        topic for topic in await topics_on_broker(restored_settings) if topic.startswith(restored_settings.namespace)
    ]
    if not topics:
        raise ConfigurationError(
            f"there is no topic of {restored_settings.namespace}*; look at the name and at `namespace:`"
        )
    return await delete_topics(restored_settings, topics)


def _runs(records: list[ArchivedRecord]) -> Iterator[list[ArchivedRecord]]:
    """Yield records that follow one another without a gap."""
    start = 0
    for index in range(1, len(records) + 1):
        if index == len(records) or records[index].offset != records[index - 1].offset + 1:
            yield records[start:index]
            start = index


def _specs(target: StreamSettings, contents: Contents) -> list[TopicSpec]:
    """Return the topics to create: those of the archive with its partitions, and the rest as the settings say."""
    counts: dict[str, int] = {}
    for topic, number in contents.partitions:
        counts[target.namespace + topic] = max(counts.get(target.namespace + topic, 0), number + 1)
    return [
        TopicSpec(
            spec.name,
            counts.get(spec.name, spec.partitions),
            "forever",
            tuple({**dict(spec.config), **RESTORED_CONFIG}.items()),
            (),
        )
        for spec in topic_specs(target)
        if spec.retention != "compact"
    ]


def _is_last(target: StreamSettings, topic: str) -> bool:
    return topic == EXCLUSIONS.full_name(target.namespace)


def _holes_error(archive: Archive, holes: list[Missing]) -> DataLossError:
    missing_spans = ", ".join(map(str, holes))
    return DataLossError(
        f"retention deleted a part of the log before the archive {archive.url} had it: {missing_spans}. "
        "A replay would not see that it is missing; restore all the same with --allow-missing"
    )
