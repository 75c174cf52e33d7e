"""Bodies in any encoding, and in any number of frames."""

import gzip
from collections.abc import Callable

import cramjam
import pytest
from backports import zstd

from rollbus.local.clickhouse_compression import compress, decompress
from rollbus.local.clickhouse_errors import ClickHouseError

PARTS = (b"first block " * 5000, b"second block " * 7000, b"third")
ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "lz4": lambda part: bytes(cramjam.lz4.compress(part)),
    "zstd": zstd.compress,
    "gzip": gzip.compress,
}


@pytest.mark.parametrize("encoding", ENCODERS)
def test_every_frame_of_a_body_is_read(encoding: str) -> None:
    body = b"".join(ENCODERS[encoding](part) for part in PARTS)
    assert decompress(body, encoding) == b"".join(PARTS)


@pytest.mark.parametrize("encoding", ["lz4", "zstd", "gzip", "deflate"])
def test_what_we_compress_we_read(encoding: str) -> None:
    packed, name = compress(PARTS[0], encoding)
    assert name == encoding
    assert len(packed) < len(PARTS[0])
    assert decompress(packed, encoding) == PARTS[0]


@pytest.mark.parametrize("encoding", ["lz4", "zstd", "gzip", "br", "deflate"])
@pytest.mark.parametrize("body", [b"not compressed at all", b"\x00"])
def test_a_body_that_is_not_what_it_says_is_refused(encoding: str, body: bytes) -> None:
    with pytest.raises(ClickHouseError) as caught:
        decompress(body, encoding)
    assert caught.value.code == 354


@pytest.mark.parametrize("encoding", ["lz4", "zstd", "gzip"])
def test_a_body_that_was_cut_off_is_refused(encoding: str) -> None:
    body = ENCODERS[encoding](PARTS[0]) + ENCODERS[encoding](PARTS[1])[:-9]
    with pytest.raises(ClickHouseError):
        decompress(body, encoding)


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(ClickHouseError, match="snappy"):
        decompress(b"x", "snappy")


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        ("gzip, zstd;q=0.5, lz4;q=0", "zstd"),
        ("gzip", "gzip"),
        ("br", None),
        ("identity", None),
        (None, None),
    ],
)
def test_an_answer_takes_the_first_encoding_that_the_client_accepts(accepted: str | None, chosen: str | None) -> None:
    body, name = compress(b"body", accepted)
    assert name == chosen
    assert (body == b"body") is (chosen is None)
