"""What is filled column by column is what the rows say, and bytes are what clickhouse-connect would send."""

import dataclasses
import gzip
import struct
import subprocess
import sys
from array import array
from typing import Any

import lz4.frame  # type: ignore[import-untyped]
import pytest
from clickhouse_connect.datatypes.base import ClickHouseType
from clickhouse_connect.datatypes.registry import get_from_name
from clickhouse_connect.driver.exceptions import DataError
from clickhouse_connect.driver.insert import InsertContext
from hypothesis import given
from hypothesis import strategies as st

from rollbus.consumers.clickhouse.rows.events import message_json
from rollbus.consumers.clickhouse.rows.rows import FILLS, PARTS, fills_of
from rollbus.consumers.clickhouse.sink.ranges import PartitionBuffer
from rollbus.consumers.clickhouse.store.columns import column_type, encode
from rollbus.consumers.clickhouse.store.fills import Filled
from rollbus.consumers.clickhouse.store.origin import KafkaRecord, Origin, PartitionOrigin
from rollbus.schemas.codec import encode as encode_record
from rollbus.schemas.ids import canonical_json
from rollbus.schemas.records.events import Message
from tests.builders import START_MS, make_turn
from tests.consumers.all_rows import rows_of
from tests.consumers.story import story

RECORDS = [record for _, _, record in story()]
TYPES = {"id": get_from_name("Int64"), "name": get_from_name("String"), "tokens": column_type("Array(Int32)")}
texts = st.none() | st.text(max_size=20)


@given(message=st.builds(Message, role=st.text(max_size=5), **dict.fromkeys(
    ("content", "name", "tool_call_id", "tool_calls", "parts", "reasoning"), texts
)))  # fmt: skip
def test_a_message_is_kept_as_its_canonical_json(message: Message) -> None:
    set_fields = {name: value for name, value in dataclasses.asdict(message).items() if value is not None}
    assert message_json(message) == canonical_json(set_fields)


@pytest.mark.parametrize("kind", FILLS, ids=lambda kind: kind.__name__)
def test_columns_hold_what_the_rows_of_the_same_records_hold(kind: type) -> None:
    records = [record for record in RECORDS if type(record) is kind]
    for fill in fills_of(records[0]):
        filled = Filled(fill, PartitionOrigin("t.", "episode-events", 3))
        for offset, record in enumerate(records):
            filled.add(record, offset, START_MS + offset)
        rows, columns = list(filled), filled.columns()
        assert len(filled) == len(rows) == len(records)
        assert filled[0] == rows[0]
        assert filled[1:] == rows[1:]
        assert {name: [row[name] for row in rows] for name in rows[0]} == columns


def test_a_table_is_filled_by_columns_or_row_by_row_and_never_both() -> None:
    fills = {fill for fills in FILLS.values() for fill in fills}
    by_columns = {fill.table for fill in fills}
    row_by_row = {table for tables, _ in PARTS.values() for table in tables}
    assert len(fills) == len(by_columns), "a range fills a table in one way only"
    assert not by_columns & row_by_row


def test_a_range_gives_the_rows_of_its_records() -> None:
    reading = PartitionBuffer(namespace="t.", topic="trajectories", partition=0, start=0)
    expected: dict[str, list[Any]] = {}
    for offset, record in enumerate(RECORDS):
        reading.add(KafkaRecord("trajectories", 0, offset, START_MS, b"k", encode_record(record)))
        for table, row in rows_of(record, Origin("t.", "trajectories", 0, offset, START_MS)):
            expected.setdefault(table, []).append(row)
    cut_rows = reading.cut()
    assert cut_rows is not None
    assert {table: list(rows) for table, rows in cut_rows.tables.items()} == expected
    assert cut_rows.rows == sum(map(len, expected.values()))


@pytest.mark.parametrize("field", ["prompt_token_ids", "completion_token_ids", "logprobs"])
def test_tokens_that_are_not_whole_numbers_are_a_dead_letter(field: str) -> None:
    torn: dict[str, Any] = {field: b"\x01\x02\x03"}
    event = dataclasses.replace(make_turn(untrainable="length_mismatch"), **torn)
    reading = PartitionBuffer(namespace="t.", topic="episode-events", partition=0, start=0)
    reading.add(KafkaRecord("episode-events", 0, 0, START_MS, b"k", encode_record(event)))
    cut_rows = reading.cut()
    assert cut_rows is not None
    assert (list(cut_rows.tables), cut_rows.dead_letters) == (["dead_letters"], 1)


@given(values=st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4), min_size=1, max_size=5))
def test_token_arrays_are_sent_as_the_library_would_send_lists(values: list[list[int]]) -> None:
    arrays = [array("i", value) for value in values]
    expected = encode_values(get_from_name("Array(Int32)"), values)
    assert encode_values(column_type("Array(Int32)"), arrays) == expected
    assert (
        encode_values(column_type("Array(Int32)"), [struct.pack(f"<{len(value)}i", *value) for value in values])
        == expected
    )
    assert encode_values(column_type("Array(Int32)"), [values[0], *arrays[1:]]) == expected


def test_numbers_of_another_width_are_not_copied_as_they_are() -> None:
    sent = encode_values(column_type("Array(Int32)"), [array("q", [1, 2])])
    assert sent == (2).to_bytes(8, "little") + (1).to_bytes(4, "little") + (2).to_bytes(4, "little")


ALIKE: list[tuple[str, list[Any]]] = [
    ("LowCardinality(String)", ["a"] * 300),
    ("LowCardinality(String)", ["a", "b", "a"]),
    ("LowCardinality(Nullable(String))", ["é" * 70_000] * 3),
    ("LowCardinality(Nullable(String))", [None] * 3),
    ("LowCardinality(Nullable(String))", [None, "a", None]),
    *((f"Nullable({kind})", [None] * 300) for kind in ("String", "Int64", "Float64", "DateTime64(3)")),
    ("Nullable(Int64)", [None, 1, None]),
    ("Bool", [True, 1, True]),
]


@pytest.mark.parametrize(("name", "values"), ALIKE)
def test_a_column_of_one_value_is_sent_as_the_library_would_send_it(name: str, values: list[Any]) -> None:
    kind = get_from_name(name)
    body = encode("t", [{"it": value} for value in values], {"it": kind}, None)
    assert body.endswith(bytes(encode_values(kind, values)))


def encode_values(kind: ClickHouseType, values: list[Any]) -> bytearray:
    sent = bytearray()
    kind.write_column(values, sent, InsertContext("t", [], []))
    return sent


def test_an_insert_is_statement_and_data() -> None:
    body = encode("t", [{"id": 1, "name": "a"}, {"name": "b", "id": 2}], TYPES, None)
    head = b"INSERT INTO t (`id`, `name`) FORMAT Native\n"
    assert body == head + b"\x02\x02\x02id\x05Int64" + b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0" + (
        b"\x04name\x06String\x01a\x01b"
    )


def test_a_row_of_one_column_is_a_column() -> None:
    assert encode("t", [{"name": "a"}], TYPES, None).endswith(b"\x01\x01\x04name\x06String\x01a")


def test_a_value_that_a_column_cannot_hold_stops_the_whole_insert() -> None:
    with pytest.raises(DataError, match="id"):
        encode("t", [{"id": 2**70, "name": "a"}], TYPES, None)


def test_an_insert_in_compressed_form_is_the_same_insert() -> None:
    rows = [{"id": number, "name": "a" * number} for number in range(100)]
    plain = encode("t", rows, TYPES, None)
    for name, decompress in (("lz4", lz4.frame.decompress), ("gzip", gzip.decompress)):
        assert decompress(encode("t", rows, TYPES, name)) == plain


LIST_LOADED = """
import sys
from rollbus.consumers.clickhouse.sink.sink import run_sink
from rollbus.consumers.clickhouse.store.columns import column_type, encode
encode("t", [{"name": "a", "at": 1}], {"name": column_type("String"), "at": column_type("DateTime64(3)")}, "lz4")
print(sorted({"numpy", "pandas", "pyarrow", "polars"} & set(sys.modules)))
"""


def test_the_sink_loads_no_table_library() -> None:
    process = subprocess.run([sys.executable, "-c", LIST_LOADED], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"
