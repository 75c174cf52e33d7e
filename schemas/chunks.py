"""Split a record that is too large for its topic, and put it together again.

A chunk is a frame of its own: 0xC3 0x02, a 32-byte SHA-256 of the whole, index, count, then its part.
All chunks of a record share its key.
"""

import hashlib
import struct
from dataclasses import dataclass

from rollbus.schemas.errors import RecordTooLargeError, UndecodableError
from rollbus.schemas.topics import MAX_RECORD_BYTES

CHUNK_MARKER = b"\xc3\x02"
_HEADER = struct.Struct(">2s32sHH")
MAX_CHUNKS = 256
"""About 230 MB: beyond any real turn, and a bound on what a broken header can make a reader keep."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One part of a large record."""

    digest: bytes
    index: int
    count: int
    part: bytes


def split(data: bytes, *, limit: int = MAX_RECORD_BYTES) -> list[bytes]:
    """Return the frames to send: the bytes themselves where they fit, else chunks; raises RecordTooLargeError."""
    if len(data) <= limit:
        return [data]
    size = limit - _HEADER.size
    count = -(-len(data) // size)
    if count > MAX_CHUNKS:
        raise RecordTooLargeError(
            f"a record of {len(data)} bytes needs {count} chunks; at most {MAX_CHUNKS} are allowed"
        )
    digest = hashlib.sha256(data).digest()
    return [
        _HEADER.pack(CHUNK_MARKER, digest, index, count) + data[index * size : (index + 1) * size]
        for index in range(count)
    ]


def is_chunk(data: bytes) -> bool:
    """Say whether the bytes are a chunk rather than a record."""
    return data[:2] == CHUNK_MARKER


def parse(data: bytes) -> Chunk:
    """Return the chunk; raises UndecodableError where the header is short or contradicts itself."""
    if len(data) <= _HEADER.size:
        raise UndecodableError(f"{len(data)} bytes are too short for a chunk")
    marker, digest, index, count = _HEADER.unpack_from(data)
    if marker != CHUNK_MARKER or not 2 <= count <= MAX_CHUNKS or index >= count:
        raise UndecodableError(f"chunk {index} of {count} is not possible")
    return Chunk(digest, index, count, data[_HEADER.size :])


def join(chunks: dict[int, bytes], digest: bytes) -> bytes:
    """Return the whole record from its parts by index; raises UndecodableError where the digest differs."""
    data = b"".join(part for _, part in sorted(chunks.items()))
    if hashlib.sha256(data).digest() != digest:
        raise UndecodableError(f"{len(chunks)} chunks do not add up to the record {digest.hex()[:16]}…")
    return data
