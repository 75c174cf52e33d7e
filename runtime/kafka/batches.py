"""What a fetch brought → its record batches, whose decompressed sizes are bounded before memory is spent.

Every consumer reads through `BoundedBatches`, which `clients` puts in the place of aiokafka's own reader. A batch that
cannot be read (it expands too far, its headers are too many or no text, an offset lies outside) becomes one record that
says so, and decoding it gives that sentence: the consumer goes on, and the dead letter names the place. One fetch
expands to a bounded size: the rest is fetched again.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatch
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import decode_varint

from rollbus.runtime.decompression import expand
from rollbus.schemas.codec import UNREADABLE
from rollbus.schemas.errors import RecordError, RecordTooLargeError
from rollbus.schemas.limits import FRAMING_BYTES, MOST_RECORD_BYTES

MOST_BATCH_BYTES = MOST_RECORD_BYTES + FRAMING_BYTES
"""Expanded; an uncompressed batch cannot be larger, as no topic takes it."""
FETCH_EXPANDED_BYTES = 32 * 1024 * 1024
"""A fetch ends with the batch that reaches this. Ours brings 3 MiB, which are about 15 MiB of events."""
COUNTED_FROM_BYTES = 1_048_576
"""From this size on headers are counted: each takes four bytes, and a hundred once it is read."""
MOST_HEADERS = 1_000
_CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_PREFIX = struct.Struct(">qi")
"""Base offset, and the length of what follows."""
_MAGIC, _ATTRIBUTES, _CODEC_MASK, _HEADER = 16, 21, 7, 61
"""Places in a batch of version 2 (org.apache.kafka.common.record.DefaultRecordBatch)."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for the records of a batch from `offset` on."""

    offset: int
    timestamp: int
    value: bytes
    timestamp_type: int = 0
    key: None = None
    checksum: None = None
    headers: tuple[()] = ()


class BoundedBatches:
    """aiokafka's `MemoryRecords`, as its fetcher uses it."""

    def __init__(self, data: bytes) -> None:
        self._data, self._start, self._expanded = memoryview(data), 0, 0

    def size_in_bytes(self) -> int:
        return len(self._data)

    def has_next(self) -> bool:
        return self._expanded < FETCH_EXPANDED_BYTES and self._end() <= len(self._data)

    def next_batch(self) -> "BoundedBatch":
        start, self._start = self._start, self._end()
        return BoundedBatch(self._data[start : self._start], self)

    def count(self, expanded_bytes: int) -> None:
        """Add what a batch has expanded to."""
        self._expanded += expanded_bytes

    def _end(self) -> int:
        if self._start + _PREFIX.size > len(self._data):
            return len(self._data) + 1
        return self._start + _PREFIX.size + int(_PREFIX.unpack_from(self._data, self._start)[1])


class BoundedBatch:
    """One batch: its head as aiokafka reads it, and its records, expanded when they are asked for."""

    def __init__(self, data: memoryview, fetched: BoundedBatches) -> None:
        self._data, self._fetched = data, fetched
        self._batch = MemoryRecords(data.tobytes()).next_batch()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        offset, end = self._batch.base_offset, self._batch.next_offset
        try:
            for record in self._expand():
                if not offset <= record.offset < end:
                    raise RecordError(f"a record says that its offset is {record.offset}")
                offset = record.offset + 1
                yield record
        except GeneratorExit:
            raise
        except Exception as error:  # of a stranger's bytes aiokafka raises many kinds
            reason = str(error) if isinstance(error, RecordError) else f"{type(error).__name__}: {error}"
            place = f"offsets {offset} to {end - 1}, {len(self._data)} bytes: {reason}"
            timestamp = getattr(self._batch, "max_timestamp", 0)
            yield Unreadable(offset, timestamp, UNREADABLE + place.encode(errors="replace"))

    def _expand(self) -> Any:
        codec = _CODECS.get(self._batch.compression_type)
        if codec is None or self._data[_MAGIC] < 2:
            self._fetched.count(len(self._data))
            return self._counted(self._data[_HEADER:])
        head = bytearray(self._data[:_HEADER])
        head[_ATTRIBUTES + 1] &= ~_CODEC_MASK
        whole = expand(self._data[_HEADER:], codec, MOST_BATCH_BYTES, bytes(head))
        self._fetched.count(len(whole))
        self._batch = DefaultRecordBatch(whole)
        return self._counted(memoryview(whole)[_HEADER:])

    def _counted(self, plain: memoryview) -> Any:
        if len(plain) >= COUNTED_FROM_BYTES and self._data[_MAGIC] >= 2:
            _refuse_many_headers(plain)
        return self._batch


def _refuse_many_headers(plain: memoryview) -> None:
    """Raise RecordTooLargeError before aiokafka makes a list of millions."""
    start = 0
    while start < len(plain):
        length, place = decode_varint(plain, start)
        start = place + length
        place += 1  # attributes
        for _ in ("timestamp", "offset"):
            _, place = decode_varint(plain, place)
        for _ in ("key", "value"):
            size, place = decode_varint(plain, place)
            place += max(size, 0)
        headers, _ = decode_varint(plain, place)
        if headers > MOST_HEADERS or length <= 0:
            raise RecordTooLargeError(f"a record has {headers} headers; {MOST_HEADERS} are the most")


def read_bounded() -> None:
    """Let every consumer of this process read through `BoundedBatches`."""
    fetcher.MemoryRecords = BoundedBatches
