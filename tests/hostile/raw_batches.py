"""Batches as no client of ours would write them, and the way to a broker past every client's checks."""

import struct
import time
from collections.abc import Sequence
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.codec import gzip_encode, lz4_encode, snappy_encode, zstd_encode
from aiokafka.record.util import calc_crc32c, encode_varint

Header = tuple[bytes, bytes | None]
COMPRESS: dict[int, Any] = {0: bytes, 1: gzip_encode, 2: snappy_encode, 3: lz4_encode, 4: zstd_encode}
NOW_MS = time.time_ns() // 1_000_000


def varint(number: int) -> bytes:
    written = bytearray()
    encode_varint(number, written.append)
    return bytes(written)


def with_size(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def make_record(place: int, key: bytes | None, value: bytes | None, headers: Sequence[Header] = ()) -> bytes:
    body = b"\0" + varint(0) + varint(place) + with_size(key) + with_size(value) + varint(len(headers))
    body += b"".join(with_size(name) + with_size(content) for name, content in headers)
    return varint(len(body)) + body


def make_batch(records: Sequence[bytes], codec: int, base_offset: int = 0) -> bytes:
    """A batch of version 2 around records as they are."""
    packed = bytes(COMPRESS[codec](b"".join(records)))
    after_crc = struct.pack(">hiqqqhii", codec, len(records) - 1, NOW_MS, NOW_MS, -1, -1, -1, len(records)) + packed
    checked = struct.pack(">ibI", 0, 2, calc_crc32c(after_crc)) + after_crc
    return struct.pack(">qi", base_offset, len(checked)) + checked


class Raw:
    """What aiokafka's producer sends instead of a batch that it has built."""

    def __init__(self, data: bytes, count: int) -> None:
        self._data, self._count = data, count

    def _build(self) -> bytes:
        return self._data

    def record_count(self) -> int:
        return self._count

    def size(self) -> int:
        return len(self._data)

    def closed(self) -> bool:
        return True

    def close(self) -> None: ...


async def send_raw(bootstrap_servers: str, topic: str, partition: int, *batches: tuple[bytes, int]) -> None:
    """Write batches, each with the number of its records; raises what the broker answers."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, enable_idempotence=False, acks=1)
    await producer.start()
    try:
        for data, count in batches:
            confirmed = await producer.send_batch(Raw(data, count), topic, partition=partition)
            await confirmed
    finally:
        await producer.stop()
