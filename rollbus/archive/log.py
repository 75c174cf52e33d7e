"""An archive as the log that ClickHouse's tables are rebuilt from, when Kafka has long deleted the records."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from rollbus.archive.archive import Archive
from rollbus.consumers.clickhouse.sink.log import OffsetSpan, Partition
from rollbus.consumers.clickhouse.store.origin import KafkaRecord


class ArchiveLog:
    """The records of an archive, partition by partition."""

    lacks_forgotten = True

    def __init__(self, archive: Archive) -> None:
        self._archive = archive

    async def spans(self, topics: Sequence[str]) -> Mapping[Partition, OffsetSpan]:
        """Return the partitions of these topics in the archive."""
        partitions = self._archive.contents.partitions.items()
        return {
            name: OffsetSpan(partition.begin, partition.end)
            for name, partition in partitions
            if partition.topic in topics
        }

    async def read(self, partition: Partition, span: OffsetSpan) -> AsyncIterator[Sequence[KafkaRecord]]:
        """Yield the records of a span; raises DataLossError for a file that was altered."""
        topic, number = partition
        files = self._archive.read_partition(partition, span.begin)
        while (records := await asyncio.to_thread(next, files, None)) is not None:
            yield [
                KafkaRecord(topic, number, record.offset, record.timestamp, record.key, record.value)
                for record in records
                if span.begin <= record.offset < span.end
            ]
