"""What is remembered of each key, for the keys used last: beyond MOST_KEYS the one used longest ago is forgotten.

Use is a put, so what is forgotten follows from the log alone. The order of use stands in the rows: after a restart the
same keys go next. Rows of before this rule have no order and go first, by key.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from rollbus.streams.state import RowCodec, Table

V = TypeVar("V")
MOST_KEYS = 100_000
"""Per partition: some 30 MB. Tasks with more examples than that come back too seldom to be compared with themselves."""
AT_ONCE = 16
"""Keys forgotten per put: a state that an older release let grow shrinks over many transactions."""
_ORDER = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Used(Generic[V]):
    """A value, and its place among all puts."""

    value: V
    order: int


def recent_codec(value: RowCodec[V]) -> RowCodec[Used[V]]:
    """Rows as their order and the value's own bytes; reads the value's rows of before there was an order."""

    def encode(row: Used[V]) -> bytes:
        return _ORDER.pack(row.order) + value.encode(row.value)

    def unordered(read: Callable[[bytes], V]) -> Callable[[bytes], Used[V]]:
        return lambda data: Used(read(data), 0)

    def decode(data: bytes) -> Used[V]:
        return Used(value.readers[value.version](data[_ORDER.size :]), *_ORDER.unpack_from(data))

    older = {version: unordered(read) for version, read in value.readers.items()}
    return RowCodec(value.version + 1, encode, older | {value.version + 1: decode})


class Recent(Mapping[str, V]):
    """The values of the keys used last."""

    def __init__(self, name: str, value: RowCodec[V]) -> None:
        self.table: Table[Used[V]] = Table(name, recent_codec(value))
        self._by_use: OrderedDict[str, None] = OrderedDict()
        self._order = 0
        self.forgotten = 0
        """Keys, since this object was made."""

    def __getitem__(self, key: str) -> V:
        """Return what is remembered of a key; raises KeyError."""
        return self.table.rows[key].value

    def __iter__(self) -> Iterator[str]:
        """Yield the keys."""
        return iter(self.table.rows)

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return len(self.table.rows)

    def put(self, key: str, value: V) -> Iterable[str]:
        """Remember a value; return the keys that are forgotten for it."""
        self._order += 1
        self.table.put(key, Used(value, self._order))
        self._by_use[key] = None
        self._by_use.move_to_end(key)
        gone = [self._by_use.popitem(last=False)[0] for _ in range(min(AT_ONCE, len(self._by_use) - MOST_KEYS))]
        for each in gone:
            self.table.delete(each)
        self.forgotten += len(gone)
        return gone

    def rebuild(self) -> None:
        """Derive the order of use from the rows."""
        rows = sorted(self.table.rows.items(), key=lambda item: (item[1].order, item[0]))
        self._by_use = OrderedDict.fromkeys(key for key, _ in rows)
        self._order = rows[-1][1].order if rows else 0
