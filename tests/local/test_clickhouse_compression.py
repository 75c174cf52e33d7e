"""Bodies in any encoding, and in any number of frames."""

import gzip
import struct
from collections.abc import Callable

import cramjam
import pytest
from backports import zstd

from rollbus.local.clickhouse.compression import BlockPacker, EncodingPacker, choose_encoding, decompress
from rollbus.local.clickhouse.errors import ClickHouseError

PARTS = (b"first block " * 5000, b"second block " * 7000, b"third")
ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "lz4": lambda part: bytes(cramjam.lz4.compress(part)),
    "zstd": zstd.compress,
    "gzip": gzip.compress,
}


@pytest.mark.parametrize("encoding", ENCODERS)
def test_every_frame_of_a_body_is_read(encoding: str) -> None:
    body = b"".join(ENCODERS[encoding](part) for part in PARTS)
    assert decompress(body, encoding, 10_000_000) == b"".join(PARTS)


@pytest.mark.parametrize("encoding", ["lz4", "zstd", "gzip", "deflate"])
def test_our_compressed_bodies_are_read_back(encoding: str) -> None:
    packer = EncodingPacker(encoding)
    packed = b"".join(packer.pack(part) for part in PARTS) + packer.end()
    assert len(packed) < len(b"".join(PARTS))
    assert decompress(packed, encoding, 10_000_000) == b"".join(PARTS)


def test_clickhouse_blocks_have_their_sizes_and_the_checksum_of_what_follows() -> None:
    block = BlockPacker().pack(b"one block")
    # The checksum was read from a block that ClickHouse's Java client accepted.
    assert block[:16].hex() == "45cff45b64dcf9be1484ba3ea1d5e041"
    method, size, plain_size = struct.unpack_from("<BII", block, 16)
    assert (method, size, plain_size) == (0x82, len(block) - 16, 9)
    assert bytes(cramjam.lz4.decompress_block(block[25:], output_len=plain_size)) == b"one block"


def test_a_long_piece_is_several_blocks() -> None:
    data, plain = BlockPacker().pack(bytes(2_500_000)), 0
    while data:
        _, size, plain_size = struct.unpack_from("<BII", data, 16)
        data, plain = data[16 + size :], plain + plain_size
    assert plain == 2_500_000


@pytest.mark.parametrize("encoding", ["lz4", "zstd", "gzip", "deflate"])
@pytest.mark.parametrize("body", [b"not compressed at all", b"\x00"])
def test_a_body_that_is_not_what_it_says_is_refused(encoding: str, body: bytes) -> None:
    with pytest.raises(ClickHouseError) as refusal:
        decompress(body, encoding, 10_000_000)
    assert refusal.value.code == 354


@pytest.mark.parametrize("encoding", ["lz4", "zstd", "gzip"])
def test_a_body_that_was_cut_off_is_refused(encoding: str) -> None:
    body = ENCODERS[encoding](PARTS[0]) + ENCODERS[encoding](PARTS[1])[:-9]
    with pytest.raises(ClickHouseError):
        decompress(body, encoding, 10_000_000)


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(ClickHouseError, match="snappy"):
        decompress(b"x", "snappy", 10)


@pytest.mark.parametrize(
    ("accepted", "chosen"),
    [
        ("gzip, zstd;q=0.5, lz4;q=0", "zstd"),
        ("gzip, lz4; q=0.000, zstd;Q=0.0", "gzip"),
        ("gzip", "gzip"),
        ("br", None),
        ("identity", None),
        (None, None),
    ],
)
def test_an_answer_takes_the_first_encoding_that_the_client_accepts(accepted: str | None, chosen: str | None) -> None:
    assert choose_encoding(accepted) == chosen
