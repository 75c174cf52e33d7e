"""Compressed bytes of a stranger → plain bytes of at most so many; nothing is written beyond that.

A few kilobytes may stand for gigabytes. The room that a decoder writes into is reserved, but takes memory only where
something is written.
"""

import mmap
import struct
import threading
from typing import Any

import cramjam

from rollbus.schemas.errors import RecordTooLargeError

CODECS: dict[str, Any] = {"lz4": cramjam.lz4, "zstd": cramjam.zstd, "gzip": cramjam.gzip, "deflate": cramjam.zlib}
"""In the order in which an answer of HTTP prefers them."""
KEPT_BYTES = 4 * 1024 * 1024
"""A thread keeps a room of which no more was written: its pages need not be asked for again, which halves the time."""
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEADER = 16

_room_of_thread = threading.local()


def expand(data: bytes | memoryview, codec: str, most: int, head: bytes = b"") -> bytes:
    """Return `head` and the plain bytes of all frames; RecordTooLargeError for more than `most`, or for bad ones.

    `most` counts the head too. `codec` is a name of `CODECS`, or `snappy` as Kafka has it.
    """
    room: mmap.mmap | None = _room_of_thread.__dict__.pop("room", None)
    if room is None or len(room) < most:
        room = mmap.mmap(-1, most)
    room[: len(head)] = head
    try:
        with memoryview(room)[len(head) : most] as bounded:
            if codec == "snappy":
                size = _expand_snappy(bytes(data), bounded)
            else:
                size = int(CODECS[codec].decompress_into(data, bounded))
            plain = room[: len(head) + size]
    except (cramjam.DecompressionError, struct.error, ValueError) as error:
        message = f"{len(data)} bytes are not {codec}, or are more than {most} bytes: {error}"
        raise RecordTooLargeError(message) from error
    if size <= KEPT_BYTES:
        _room_of_thread.room = room
    return plain


def _expand_snappy(data: bytes, room: memoryview) -> int:
    """Write one raw block, or the blocks of the Java library, each after its length."""
    if not data.startswith(_XERIAL):
        return int(cramjam.snappy.decompress_raw_into(data, room))
    start, end = _XERIAL_HEADER, 0
    while start < len(data):
        (size,) = struct.unpack_from(">i", data, start)
        start += 4
        if size <= 0:
            raise ValueError(f"a block of {size} bytes")
        end += int(cramjam.snappy.decompress_raw_into(data[start : start + size], room[end:]))
        start += size
    return end
