"""A large record is split and comes back whole, or is refused."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas import chunks
from rollbus.schemas.errors import RecordTooLargeError, UndecodableError


@given(st.binary(min_size=1, max_size=4000), st.integers(60, 500), st.randoms())
def test_chunks_in_any_order_give_the_record_back(data: bytes, limit: int, random: object) -> None:
    frames = chunks.split(data, limit=limit)
    if len(data) <= limit:
        assert frames == [data]
        return
    assert all(len(frame) <= limit and chunks.is_chunk(frame) for frame in frames)
    random.shuffle(frames)  # type: ignore[attr-defined]
    parsed = [chunks.parse(frame) for frame in frames]
    assert chunks.join({chunk.index: chunk.part for chunk in parsed}, parsed[0].digest) == data


def test_a_missing_part_does_not_pass_for_the_record() -> None:
    parsed = [chunks.parse(frame) for frame in chunks.split(b"x" * 300, limit=100)]
    with pytest.raises(UndecodableError, match="do not add up"):
        chunks.join({chunk.index: chunk.part for chunk in parsed[1:]}, hashlib.sha256(b"x" * 300).digest())


def test_a_record_beyond_all_chunks_is_too_large() -> None:
    with pytest.raises(RecordTooLargeError, match="at most 256"):
        chunks.split(b"x" * 10_000, limit=60)


@pytest.mark.parametrize("frame", [b"", b"\xc3\x02", chunks.CHUNK_MARKER + bytes(32) + b"\x00\x05\x00\x02" + b"part"])
def test_impossible_chunks_are_undecodable(frame: bytes) -> None:
    with pytest.raises(UndecodableError):
        chunks.parse(frame)
