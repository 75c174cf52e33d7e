"""A log that can be read again from its beginning: the protocol. Kafka is one, and an archive of it another."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rollbus.consumers.clickhouse.store.origin import KafkaRecord

Partition = tuple[str, int]
"""Topic without the namespace, and number."""
BLOCK = 1_000
"""Records handed over at a time."""


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """Offsets begin … end − 1 of a partition."""

    begin: int
    end: int


class Log(Protocol):
    """The records of a namespace, partition by partition."""

    lacks_forgotten: bool
    """Whether the records of forgotten episodes were taken out of it."""

    async def spans(self, topics: Sequence[str]) -> Mapping[Partition, OffsetSpan]:
        """Return the partitions of these topics and their offsets; raises UnavailableError."""

    def read(self, partition: Partition, span: OffsetSpan) -> AsyncIterator[Sequence[KafkaRecord]]:
        """Yield the committed records of a span, in order."""
