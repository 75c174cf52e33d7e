"""A gRPC call as the bytes of HTTP/2 that a client sends: no header is compressed, so that each can be mutated."""

import struct
from collections.abc import Mapping

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_END_STREAM, _END_HEADERS = 1, 4


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """RFC 9113, 4.1."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text: str) -> bytes:
    """A string of less than 127 bytes, RFC 7541, 5.2."""
    return bytes([len(text)]) + text.encode()


def make_call(authority: str, path: str, metadata: Mapping[str, str], message: bytes) -> bytes:
    """Return one call with one message; the server's settings are not waited for."""
    named = {":method": "POST", ":scheme": "http", ":path": path, ":authority": authority, "te": "trailers"}
    named |= {"content-type": "application/grpc", **metadata}
    headers = b"".join(b"\0" + _text(name) + _text(value) for name, value in named.items())  # 6.2.2: not indexed
    body = struct.pack(">BI", 0, len(message)) + message
    return b"".join(
        (
            PREFACE,
            _frame(_SETTINGS, 0, 0),
            _frame(_HEADERS, _END_HEADERS, 1, headers),
            _frame(_DATA, _END_STREAM, 1, body),
        )
    )
