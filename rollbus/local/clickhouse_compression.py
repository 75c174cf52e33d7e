"""Bodies under Content-Encoding: bytes and the name of their encoding → plain bytes, and back for answers.

clickhouse-connect compresses an insert block by block, so a body is **several concatenated frames**. A decoder that
stops after the first frame loses rows without a sign; cramjam's read all of them, and a test holds them to it.
"""

from collections.abc import Callable
from typing import Any

import cramjam

from rollbus.local.clickhouse_errors import CANNOT_DECOMPRESS, NOT_IMPLEMENTED, refusal

_DECODERS: dict[str, Any] = {
    "lz4": cramjam.lz4,
    "zstd": cramjam.zstd,
    "gzip": cramjam.gzip,
    "deflate": cramjam.zlib,
    "br": cramjam.brotli,
}
_ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "lz4": lambda data: bytes(cramjam.lz4.compress(data)),
    "zstd": lambda data: bytes(cramjam.zstd.compress(data)),
    "gzip": lambda data: bytes(cramjam.gzip.compress(data)),
    "deflate": lambda data: bytes(cramjam.zlib.compress(data)),
}
"""In the order in which an answer prefers them."""


def decompress(body: bytes, content_encoding: str | None, most: int | None = None) -> bytes:
    """The plain body, whatever number of frames it was sent in; refused where it is longer than `most`."""
    name = (content_encoding or "identity").strip().lower()
    if name == "identity" or not body:
        return body
    decoder = _DECODERS.get(name)
    if decoder is None:
        raise refusal(NOT_IMPLEMENTED, f"Unknown Content-Encoding {name!r}; known: {', '.join(_DECODERS)}")
    try:
        if most is None:
            return bytes(decoder.decompress(body))
        room = bytearray(most)
        return bytes(room[: decoder.decompress_into(body, room)])
    except cramjam.DecompressionError as error:
        raise refusal(CANNOT_DECOMPRESS, f"The body is not valid {name}: {error}") from error


_STREAMS: dict[str, Callable[[], Any]] = {
    "lz4": cramjam.lz4.Compressor,
    "zstd": cramjam.zstd.Compressor,
    "gzip": cramjam.gzip.Compressor,
    "deflate": cramjam.zlib.Compressor,
}
"""One frame over many pieces: not every client reads a second one."""


def compress(body: bytes, accept_encoding: str | None) -> tuple[bytes, str | None]:
    """The body in the first encoding that the client accepts, with its name; unchanged if there is none."""
    name = accepted_encoding(accept_encoding)
    return (body, None) if name is None else (_ENCODERS[name](body), name)


def compressor(name: str) -> Any:
    """What takes pieces with `compress` and gives bytes with `flush` and `finish`."""
    return _STREAMS[name]()


def accepted_encoding(accept_encoding: str | None) -> str | None:
    """The first encoding that the client accepts; None if there is none."""
    accepted = {
        name.split(";", 1)[0].strip().lower()
        for name in (accept_encoding or "").split(",")
        if not name.replace(" ", "").lower().endswith(";q=0")
    }
    return next((name for name in _ENCODERS if name in accepted), None)
