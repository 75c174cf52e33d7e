"""Search every byte of a folder for a text, also in what Kafka and ClickHouse have compressed."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import cramjam

from rollbus.consumers.clickhouse.maintain.forget import TABLES, TABLES_BY_CONTENT
from rollbus.consumers.clickhouse.store.client import ClickHouse

FRAME = b"\x28\xb5\x2f\xfd"
"""Where a ZSTD frame begins."""
LZ4 = 0x82
"""ClickHouse's number of the method, before two sizes."""


BATCH_HEAD, ZSTD = 61, 4
"""Bytes before a batch's records, and Kafka's number of the compression."""


def plain_bytes(data: bytes) -> Iterator[bytes]:
    """Yield a file's bytes, and whatever ZSTD frame or LZ4 block of ClickHouse's is anywhere in them."""
    yield data
    for frame_match in re.finditer(re.escape(FRAME), data):
        try:
            yield bytes(cramjam.zstd.decompress(data[frame_match.start() :]))
        except cramjam.DecompressionError:
            decoder = cramjam.zstd.Decompressor()
            for size in block_sizes(data, frame_match.start()):
                decoder.decompress(data[frame_match.start() : frame_match.start() + size])
                yield bytes(decoder.flush())
    for frame_match in re.finditer(bytes([LZ4]), data):
        start = frame_match.start()
        size, whole = (int.from_bytes(data[start + place : start + place + 4], "little") for place in (1, 5))
        if 9 < size <= len(data) - start and 0 < whole < 1 << 24:
            try:
                yield bytes(cramjam.lz4.decompress_block(data[start + 9 : start + size], output_len=whole))
            except cramjam.DecompressionError:
                continue


def kafka_batches(data: bytes) -> Iterator[bytes]:
    """Yield the records of every batch in a segment of Kafka's log."""
    at = 0
    while at + BATCH_HEAD < len(data) and (length := int.from_bytes(data[at + 8 : at + 12], "big")):
        records, end = data[at + BATCH_HEAD : at + 12 + length], at + 12 + length
        compression = data[at + 22] & 7
        assert compression in (0, ZSTD), compression
        yield bytes(cramjam.zstd.decompress(records)) if compression == ZSTD and end <= len(data) else records
        at = end


def block_sizes(data: bytes, start: int) -> Iterator[int]:
    """Yield the size of the block that a frame lies in, by the head before it."""
    size = int.from_bytes(data[start - 8 : start - 4], "little") - 9
    if data[start - 9] == 0x90 and 0 < size <= len(data) - start:
        yield size


def contains(path: Path, marker: bytes) -> bool:
    data = path.read_bytes()
    is_segment = path.suffix == ".log" and path.stem.isdigit()
    return marker in data or any(
        marker in plain_part for plain_part in (kafka_batches if is_segment else plain_bytes)(data)
    )


def files_with(marker: str, *folders: Path) -> set[str]:
    files = set()
    for folder in folders:
        for path in folder.rglob("*"):
            with suppress(FileNotFoundError):  # removed since
                if path.is_file() and contains(path, marker.encode()):
                    files.add(str(path.relative_to(folder)))
    return files


def remove_replaced_parts(client: ClickHouse) -> None:
    """Have ClickHouse remove now what a deletion has replaced.

    By itself it keeps the files for eight minutes, and looks for older ones after 30 s where there was something to
    remove and after 300 s where there was not. To drop a partition that is not there drops nothing, and ends with such
    a look.
    """
    for table in (*TABLES, *TABLES_BY_CONTENT):
        client.command(f"ALTER TABLE {table} MODIFY SETTING old_parts_lifetime = 0")
        client.command(f"ALTER TABLE {table} DROP PARTITION ID 'none'")
