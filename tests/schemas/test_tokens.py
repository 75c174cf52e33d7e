"""Token ids and log-probs are facts: they come back exactly, and what is none is refused."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.records.tokens import (
    decode_logprobs,
    decode_token_ids,
    encode_logprobs,
    encode_token_ids,
    token_count,
)


@given(st.lists(st.integers(0, 2**31 - 1)))
def test_token_ids_come_back_exactly(ids: list[int]) -> None:
    data = encode_token_ids(ids)
    assert list(decode_token_ids(data)) == ids
    assert token_count(data) == len(ids)


@given(st.lists(st.floats(max_value=0, allow_nan=False, allow_infinity=False, width=32)))
def test_float32_logprobs_come_back_exactly(logprobs: list[float]) -> None:
    assert list(decode_logprobs(encode_logprobs(logprobs))) == logprobs


def test_bytes_are_little_endian_on_every_machine() -> None:
    assert encode_token_ids([1, 258]) == struct.pack("<2i", 1, 258)
    assert encode_logprobs([-0.5]) == struct.pack("<f", -0.5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 0.1])
def test_an_invalid_logprob_is_refused_with_its_position(bad: float) -> None:
    with pytest.raises(InvalidRecordError, match="at position 1"):
        encode_logprobs([-0.1, bad])


@pytest.mark.parametrize("bad", [-1, 2**31, 2**70])
def test_an_invalid_token_id_is_refused(bad: int) -> None:
    with pytest.raises(InvalidRecordError, match="token ids"):
        encode_token_ids([bad])


def test_torn_bytes_are_refused() -> None:
    with pytest.raises(InvalidRecordError, match="5 bytes is not a multiple of 4"):
        decode_token_ids(b"12345")
