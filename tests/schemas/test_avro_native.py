"""The codec in C refuses what the one in Python refuses, and leaves nothing behind."""

import contextlib
import gc
import importlib
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas import avro_compiled
from rollbus.schemas.avro_compiled import Read
from rollbus.schemas.codec import HEADER_BYTES, decode, encode
from rollbus.schemas.errors import InvalidRecordError, UndecodableError
from rollbus.schemas.events import EpisodeStarted, Message, TurnRecorded
from rollbus.schemas.registry import RECORDS
from tests.schemas.codecs import using
from tests.schemas.test_codec import records_of


@pytest.fixture(scope="module", autouse=True)
def _native() -> Any:
    with using("native"):
        yield


def outcome(read: Read, data: bytes) -> Any:
    """The record and its end, or the kind of refusal."""
    try:
        return read(data, 0)
    except InvalidRecordError:
        return InvalidRecordError
    except Exception:
        return "undecodable"


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_of_broken_bytes_both_make_the_same(record: type) -> None:
    avro_native: Any = importlib.import_module("rollbus.schemas.avro_native")
    in_c, in_python = avro_native.reader(record), avro_compiled.reader(record)

    @given(records_of(record), st.data())
    def check(value: Any, chosen: st.DataObject) -> None:
        whole = encode(value)[HEADER_BYTES:]
        at = chosen.draw(st.integers(0, len(whole)))
        broken = whole[:at] + chosen.draw(st.binary(max_size=3)) + whole[at + chosen.draw(st.integers(0, 3)) :]
        assert repr(outcome(in_c, broken)) == repr(outcome(in_python, broken))  # NaN is NaN

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
    fields: dict[str, Any] = {"event_id": "e", "episode_id": "p", "root_episode_id": "p", "writer_id": "w"}
    fields |= {"sequence": 0, "occurred_at_ms": 0, "episode_started_at_ms": 0, "task": "t", field: value}
    for way in ("native", "compiled"):
        with using(way), pytest.raises(InvalidRecordError, match="EpisodeStarted cannot be written"):
            encode(EpisodeStarted(**fields))


def test_a_record_of_another_type_within_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="expected a Message, not EpisodeStarted"):
        encode(_turn(completion=object.__new__(EpisodeStarted)))


def test_a_field_that_was_never_set_is_refused() -> None:
    with pytest.raises(InvalidRecordError, match="not every field is set"):
        encode(object.__new__(EpisodeStarted))


@pytest.mark.parametrize("value", [bytearray(b"\1\0\0\0"), memoryview(b"\1\0\0\0")])
def test_bytes_may_come_as_any_buffer(value: Any) -> None:
    turn = _turn(prompt_token_ids=value)
    assert decode(encode(turn)).prompt_token_ids == bytes(value)


def test_neither_what_is_read_nor_what_is_refused_stays_in_memory() -> None:
    data = encode(_turn())

    def work() -> None:
        for cut in range(HEADER_BYTES, len(data)):
            with contextlib.suppress(UndecodableError):
                decode(data[:cut])
        for _ in range(100):
            encode(decode(data))
            with contextlib.suppress(InvalidRecordError):
                encode(_turn(added_messages=(7,)))

    work()
    gc.collect()
    before = sys.getallocatedblocks()
    work()
    gc.collect()
    assert sys.getallocatedblocks() <= before + 20


def _envelope() -> dict[str, Any]:
    ids = {"event_id": "e", "episode_id": "p", "root_episode_id": "p", "writer_id": "w"}
    return {**ids, "sequence": 0, "occurred_at_ms": 0, "episode_started_at_ms": 0}


def _turn(**changes: Any) -> TurnRecorded:
    fields: dict[str, Any] = {
        **_envelope(),
        "model": "agent@3",
        "completion": Message(role="assistant", content="5"),
        "added_messages": (Message(role="user", content="2 + 3?"),),
        "trainable": False,
        "untrainable_reason": "no_logprobs",
    }
    return TurnRecorded(**{**fields, **changes})
