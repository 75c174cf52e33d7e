"""Remember a value per key, for the keys used last: beyond MOST_KEYS the key used longest ago is forgotten.

Use is a put, so the log alone decides which key is forgotten. The rows hold the order of use: after a restart the same
keys go next.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from rollbus.streams.state.table import RowCodec, Table

V = TypeVar("V")
MOST_KEYS = 100_000
"""Per partition: about 30 MB. The examples of a larger task return too seldom to be compared with themselves."""
_ORDER = struct.Struct(">q")


@dataclass(frozen=True, slots=True)
class Used(Generic[V]):
    """A value, and its place among all puts."""

    value: V
    order: int


def recent_codec(value: RowCodec[V]) -> RowCodec[Used[V]]:
    """Rows as their order and the value's own bytes."""

    def encode(row: Used[V]) -> bytes:
        return _ORDER.pack(row.order) + value.encode(row.value)

    def ordered(read: Callable[[bytes], V]) -> Callable[[bytes], Used[V]]:
        return lambda data: Used(read(data[_ORDER.size :]), *_ORDER.unpack_from(data))

    return RowCodec(value.version, encode, {version: ordered(read) for version, read in value.readers.items()})


class Recent(Mapping[str, V]):
    """The values of the keys used last."""

    def __init__(self, name: str, value: RowCodec[V]) -> None:
        self.table: Table[Used[V]] = Table(name, recent_codec(value))
        self._by_use: OrderedDict[str, None] = OrderedDict()
        self._order = 0
        self.forgotten = 0
        """How many keys, since this object was created."""

    def __getitem__(self, key: str) -> V:
        """Return the value of a key; raises KeyError."""
        return self.table.rows[key].value

    def __iter__(self) -> Iterator[str]:
        """Yield the keys."""
        return iter(self.table.rows)

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return len(self.table.rows)

    def find(self, key: str) -> V | None:
        """Return the value of a key, or None: cheaper than `get`, which raises within."""
        row = self.table.rows.get(key)
        return None if row is None else row.value

    def put(self, key: str, value: V) -> Iterable[str]:
        """Remember a value; return the keys that are forgotten for it."""
        self._order += 1
        self.table.put(key, Used(value, self._order))
        self._by_use[key] = None
        self._by_use.move_to_end(key)
        forgotten_keys = [self._by_use.popitem(last=False)[0] for _ in range(len(self._by_use) - MOST_KEYS)]
        for forgotten_key in forgotten_keys:
            self.table.delete(forgotten_key)
        self.forgotten += len(forgotten_keys)
        return forgotten_keys

    def rebuild(self) -> None:
        """Derive the order of use from the rows."""
        rows = sorted(self.table.rows.items(), key=lambda item: (item[1].order, item[0]))
        self._by_use = OrderedDict.fromkeys(key for key, _ in rows)
        self._order = rows[-1][1].order if rows else 0
