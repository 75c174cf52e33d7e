"""Compressed bodies: a request's Content-Encoding → plain bytes; an answer's pieces → the encoding its client reads.

clickhouse-connect compresses an insert block by block, so a body is **several concatenated frames**. A decoder that
stops after the first frame loses rows without an error; cramjam's decoders read all of them, and a test checks this.

JDBC does not use HTTP's encodings by default. It asks with `compress=1` for ClickHouse's own blocks: a CityHash128
(version 1.0.2) of what follows, the method (LZ4), the block's size with this header, the plain size, the data.
"""

import re
import struct
from typing import Protocol

import cramjam
from clickhouse_cityhash.cityhash import CityHash128

from rollbus.local.clickhouse.errors import Code, refusal
from rollbus.runtime.decompression import CODECS, expand
from rollbus.schemas.errors import RecordTooLargeError

_REFUSED = re.compile(r";\s*q\s*=\s*0(\.0*)?\s*$")
"""Ends an encoding that a client does not take: HTTP has the weight 0 with up to three digits behind the point."""
_LZ4_BLOCK = 0x82
_BLOCK_HEADER = struct.Struct("<BII")
_BLOCK_BYTES = 1_048_576
"""Plain bytes of a block, as a server's max_compress_block_size."""


class Packer(Protocol):
    """Takes the pieces of one answer; the bytes that it returns, joined, are the body."""

    def pack(self, piece: bytes) -> bytes: ...
    def end(self) -> bytes: ...


class PlainPacker:
    """The pieces as they are."""

    def pack(self, piece: bytes) -> bytes:
        return piece

    def end(self) -> bytes:
        return b""


class EncodingPacker:
    """One frame of an HTTP encoding: not every client reads a second one."""

    def __init__(self, encoding: str) -> None:
        self._compressor = CODECS[encoding].Compressor()

    def pack(self, piece: bytes) -> bytes:
        self._compressor.compress(piece)
        return bytes(self._compressor.flush())

    def end(self) -> bytes:
        return bytes(self._compressor.finish())


class BlockPacker(PlainPacker):
    """ClickHouse's own blocks."""

    def pack(self, piece: bytes) -> bytes:
        starts = range(0, len(piece), _BLOCK_BYTES)
        return b"".join(_lz4_block(piece[start : start + _BLOCK_BYTES]) for start in starts)


def decompress(body: bytes, content_encoding: str | None, most: int) -> bytes:
    """Return the plain body from any number of frames; raises if it is longer than `most`."""
    name = (content_encoding or "identity").strip().lower()
    if name == "identity" or not body:
        return body
    if name not in CODECS:
        raise refusal(Code.NOT_IMPLEMENTED, f"Unknown Content-Encoding {name!r}; known: {', '.join(CODECS)}")
    try:
        return expand(body, name, most)
    except RecordTooLargeError as error:
        raise refusal(Code.CANNOT_DECOMPRESS, f"The body is not valid {name}: {error}") from error


def choose_encoding(accept_encoding: str | None) -> str | None:
    """Return the first of our encodings that the client accepts, or None."""
    accepted = {
        name.split(";", 1)[0].strip().lower()
        for name in (accept_encoding or "").split(",")
        if not _REFUSED.search(name.lower())
    }
    return next((name for name in CODECS if name in accepted), None)


def _lz4_block(data: bytes) -> bytes:
    packed = bytes(cramjam.lz4.compress_block(data, store_size=False))
    block = _BLOCK_HEADER.pack(_LZ4_BLOCK, _BLOCK_HEADER.size + len(packed), len(data)) + packed
    checksum: int = CityHash128(block)
    return struct.pack("<QQ", checksum >> 64, checksum & 0xFFFF_FFFF_FFFF_FFFF) + block
