"""Records survive the wire, and broken bytes are refused by name."""

import contextlib
import dataclasses
import typing
from collections.abc import Iterator, Mapping
from io import BytesIO
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus.schemas.avro.types import avro_schema
from rollbus.schemas.codec import HEADER_BYTES, MARKER, decode, encode, record_name
from rollbus.schemas.errors import InvalidRecordError, RecordError, UndecodableError
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.events import RewardReported, TurnRecorded
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.schemas.records.trajectories import History, Location, Span
from rollbus.schemas.topics import RECORDS
from tests.builders import make_reward, make_started, make_turn
from tests.examples import count_examples
from tests.schemas.codecs import using

TICK = Tick(number=7, stream_time_ms=7000, wall_clock_ms=1_700_000_000_000, interval_ms=1000)
EXAMPLES_PER_TYPE = 30
"""The types share their kinds of fields, so all together see each kind a thousand times."""
TEXT = st.text(max_size=8)
LONG = st.integers(-(2**63), 2**63 - 1)
DOUBLE = st.floats(allow_nan=False)
REWARD = make_reward(sequence=0)
HISTORY = History(
    token_ids=encode_token_ids([1, 2, 3]),
    logprobs=encode_logprobs([-0.5]),
    spans=(Span(start=2, end=3, turn=0, policy_version=4),),
)


@pytest.fixture(scope="module", autouse=True, params=["native", "by_fastavro"])
def _each_way_to_write_and_read(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything here holds of the codec in C, and of fastavro."""
    with using(request.param):
        yield


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value that the wire must carry for a field of this type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return st.none() | values_of(inner)
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(values_of(arguments[0]), max_size=2).map(tuple)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(TEXT, values_of(arguments[1]), max_size=2)
    if dataclasses.is_dataclass(hint):
        return records_of(typing.cast(type, hint))
    return {str: TEXT, int: LONG, float: DOUBLE, bool: st.booleans(), bytes: st.binary(max_size=8)}[hint]


def records_of(record: type) -> st.SearchStrategy[Any]:
    """Any valid record of a type; those with rules between fields are given consistent ones."""
    if record is History:
        return st.just(HISTORY)
    fixed: dict[str, Any] = {}
    if record is TurnRecorded:
        fixed = {"trainable": False, "untrainable_reason": "no_logprobs"}
    if record is RewardReported:
        fixed = {"value": 0.25, "alias": "order-123"}
    hints = typing.get_type_hints(record)
    return st.builds(
        record,
        **{
            field.name: st.just(fixed[field.name]) if field.name in fixed else values_of(hints[field.name])
            for field in dataclasses.fields(record)
        },
    )


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_record_survives_the_wire_in_the_bytes_of_the_avro_library(record: type) -> None:
    schema = parse_schema(avro_schema(record))

    @settings(max_examples=count_examples(EXAMPLES_PER_TYPE))
    @given(records_of(record))
    def check(value: Any) -> None:
        data, out = encode(value), BytesIO()
        assert decode(data) == value
        assert record_name(data) == record.__name__
        schemaless_writer(out, schema, sorted_maps(dataclasses.asdict(value)))
        assert data[HEADER_BYTES:] == out.getvalue()

    check()


def sorted_maps(value: Any) -> Any:
    """The same plain value with every map in the order that the wire has."""
    if isinstance(value, dict):
        return {key: sorted_maps(value[key]) for key in sorted(value)}
    return [sorted_maps(item) for item in value] if isinstance(value, list | tuple) else value


@pytest.mark.parametrize("length", [0, 1, 63, 64, 127, 128, 4095, 4096, 8191, 8192, 100_000, 2_000_000])
def test_only_whole_text_of_any_length_survives_the_wire(length: int) -> None:
    reward = dataclasses.replace(REWARD, event_id="e" * length)
    data = encode(reward)
    assert decode(data) == reward
    for kept_bytes in (HEADER_BYTES, HEADER_BYTES + 1, HEADER_BYTES + 2, HEADER_BYTES + 2 + length // 2):
        with pytest.raises(UndecodableError):
            decode(data[:kept_bytes])


@pytest.mark.parametrize("length", [b"\x01", b"\x7f", b"\x81\x01", b"\xff\x7f", b"\xff\xff\x01"])
def test_a_negative_length_of_any_width_is_refused(length: bytes) -> None:
    with pytest.raises(UndecodableError, match=r"negative length|Expected -\d+ bytes"):
        decode(encode(REWARD)[:HEADER_BYTES] + length + bytes(100))


@given(st.permutations(["a", "b", "c"]))
def test_equal_maps_give_equal_bytes(keys: list[str]) -> None:
    ordered, sorted_first = (make_started(labels=dict.fromkeys(names, "x")) for names in (keys, sorted(keys)))
    assert encode(ordered) == encode(sorted_first)


@given(st.binary(max_size=64))
def test_any_bytes_give_a_record_or_a_record_error(data: bytes) -> None:
    for candidate in (data, MARKER + data, encode(TICK)[:HEADER_BYTES] + data):
        with contextlib.suppress(RecordError):
            decode(candidate)


@given(st.integers(0, len(encode(TICK)) - 1))
def test_a_truncated_record_is_undecodable(length: int) -> None:
    with pytest.raises(UndecodableError):
        decode(encode(TICK)[:length])


def test_bytes_left_over_are_refused() -> None:
    with pytest.raises(UndecodableError, match="1 bytes left over"):
        decode(encode(TICK) + b"x")


def test_null_is_undecodable() -> None:
    with pytest.raises(UndecodableError, match="too short"):
        decode(None)


def test_an_unknown_schema_is_named_by_its_fingerprint() -> None:
    with pytest.raises(UndecodableError, match="0102030405060708"):
        decode(MARKER + bytes(range(1, 9)) + b"body")


def test_a_record_that_does_not_travel_cannot_be_encoded() -> None:
    with pytest.raises(InvalidRecordError, match="not a record that travels"):
        encode(Location(topic="t", partition=0, offset=0))


def test_a_records_own_rules_hold_on_reading() -> None:
    good = make_turn(prompt=[1, 2], completion=[3, 4], logprobs=[-0.1, -0.2])
    data = encode(good)
    shorter = data.replace(good.logprobs or b"", encode_logprobs([-0.1])).replace(
        b"\x10" + encode_logprobs([-0.1]), b"\x08" + encode_logprobs([-0.1])
    )
    assert decode(data) == good
    with pytest.raises(InvalidRecordError, match="2 sampled tokens and 1 log-probs"):
        decode(shorter)
