"""What travels from the fetch thread to a runner: the committed records of one partition between two positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Partition(NamedTuple):
    """A partition of a topic, by its full name."""

    topic: str
    partition: int


class RawRecord(Protocol):
    """The fields of a fetched record that a stage is given."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Every committed record at offsets start … end − 1; stamped where the fetching happens."""

    partition: Partition
    start: int | None
    """The position before it; None if it is not known."""
    end: int
    """The position after it, which may lie behind control records."""
    records: Sequence[RawRecord]

    def after(self, position: int) -> "Batch":
        """Return the part that begins at a position inside the batch."""
        return Batch(self.partition, position, self.end, [r for r in self.records if r.offset >= position])

    def joined(self, following: "Batch") -> "Batch":
        """Return this batch and the one that continues it as one."""
        return Batch(self.partition, self.start, following.end, [*self.records, *following.records])

    def slices(self, limit: int) -> list["Batch"]:
        """Return the same as batches of at most `limit` records."""
        if len(self.records) <= limit:
            return [self]
        parts, start = [], self.start
        for first in range(0, len(self.records), limit):
            records = self.records[first : first + limit]
            last = first + limit >= len(self.records)
            end = self.end if last else records[-1].offset + 1
            parts.append(Batch(self.partition, start, end, records))
            start = end
        return parts
