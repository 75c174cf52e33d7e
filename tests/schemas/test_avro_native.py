"""The codec in C reads and refuses what fastavro reads and refuses, and leaves nothing behind."""

import contextlib
import gc
import importlib
import re
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus.schemas.avro import by_fastavro
from rollbus.schemas.avro.by_fastavro import Read
from rollbus.schemas.codec import HEADER_BYTES, decode, encode
from rollbus.schemas.errors import InvalidRecordError, UndecodableError
from rollbus.schemas.records.events import EpisodeStarted
from rollbus.schemas.topics import RECORDS
from tests.builders import make_started, make_turn
from tests.examples import count_examples
from tests.schemas.codecs import using
from tests.schemas.test_codec import EXAMPLES_PER_TYPE, records_of


@pytest.fixture(scope="module", autouse=True)
def _native() -> Any:
    with using("native"):
        yield


TURN: Any = make_turn(untrainable="no_logprobs")
MALFORMED_MESSAGE = re.compile(r"more than 64 bits|branch (1|3|12[89]|1[3-9]\d|2\d\d) of|9223372036854775808 items")
LAX = "malformed"
"""Fastavro may read these: a number of more than 64 bits, the union branches −1 and −2, a branch in two bytes, and a
block of −2⁶³ items, of which it reads none."""


def outcome(read: Read, data: bytes) -> Any:
    """The record and its end, or that it is refused: for its body or for its own rules, whichever is met first."""
    try:
        return read(data, 0)
    except Exception as error:
        return LAX if MALFORMED_MESSAGE.search(str(error)) else "refused"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_both_codecs_give_the_same_for_broken_bytes(record: type) -> None:
    native: Any = importlib.import_module("rollbus.schemas.avro.native")
    in_c, in_python = native.reader(record), by_fastavro.reader(record)

    @settings(max_examples=count_examples(EXAMPLES_PER_TYPE))
    @given(records_of(record), st.data())
    def check(value: Any, chosen: st.DataObject) -> None:
        whole = encode(value)[HEADER_BYTES:]
        at = chosen.draw(st.integers(0, len(whole)))
        broken = whole[:at] + chosen.draw(st.binary(max_size=3)) + whole[at + chosen.draw(st.integers(0, 3)) :]
        outcome_in_c = outcome(in_c, broken)
        assert outcome_in_c == LAX or repr(outcome_in_c) == repr(outcome(in_python, broken))  # NaN is NaN

    check()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task", 7),
        ("task", None),
        ("task", b"bytes"),
        ("task", "\ud800"),
        ("sequence", "seven"),
        ("sequence", 0.5),
        ("sequence", 2**63),
        ("sequence", -(2**63) - 1),
        ("labels", {"a": 1}),
        ("labels", {1: "a"}),
        ("labels", [1]),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_by_both(field: str, value: Any) -> None:
    for way in ("native", "by_fastavro"):
        with using(way), pytest.raises(InvalidRecordError, match="EpisodeStarted cannot be written"):
            encode(replace(make_started(), **{field: value}))


def test_a_record_of_another_type_within_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="expected a Message, not EpisodeStarted"):
        encode(replace(TURN, completion=object.__new__(EpisodeStarted)))


def test_a_field_that_was_never_set_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="not every field is set"):
        encode(object.__new__(EpisodeStarted))


@pytest.mark.parametrize("value", [bytearray(b"\1\0\0\0"), memoryview(b"\1\0\0\0")])
def test_bytes_may_come_as_any_buffer(value: Any) -> None:
    assert decode(encode(replace(TURN, prompt_token_ids=value))).prompt_token_ids == bytes(value)


def test_read_and_refused_bodies_do_not_stay_in_memory() -> None:
    data = encode(TURN)

    def work() -> None:
        for cut in range(HEADER_BYTES, len(data)):
            with contextlib.suppress(UndecodableError):
                decode(data[:cut])
        for _ in range(100):
            encode(decode(data))
            with contextlib.suppress(InvalidRecordError):
                encode(replace(TURN, added_messages=(7,)))

    work()
    gc.collect()
    before = sys.getallocatedblocks()
    work()
    gc.collect()
    assert sys.getallocatedblocks() <= before + 20
