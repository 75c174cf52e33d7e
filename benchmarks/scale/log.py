"""The committed records of one simulated partition; what its readers have committed is forgotten."""

from collections import deque
from dataclasses import dataclass
from itertools import islice


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a stage reads it."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


class Log:
    """Offsets rise by one; `begin` is the first that is still kept."""

    def __init__(self) -> None:
        self.begin = 0
        self._records: deque[Record] = deque()

    @property
    def end(self) -> int:
        """The offset of the next record."""
        return self.begin + len(self._records)

    def append(self, now_ms: int, key: bytes | None, value: bytes) -> None:
        """Add a committed record."""
        self._records.append(Record(self.end, now_ms, key, value))

    def read(self, start: int, most: int) -> list[Record]:
        """Return the records from an offset on."""
        return list(islice(self._records, start - self.begin, start - self.begin + most))

    def forget(self, before: int) -> None:
        """Drop what no reader needs again."""
        while self.begin < before:
            self._records.popleft()
            self.begin += 1
