"""Blocks for clients that name their protocol revision: as before, with what such a client expects in between."""

from collections.abc import Callable
from typing import Any

import chdb
import pytest

from rollbus.local.clickhouse_errors import ClickHouseError
from rollbus.local.clickhouse_native import BLOCK_INFO, for_revision

REVISION = 54479


def native(sql: str) -> bytes:
    query: Callable[[str, str], Any] = chdb.query
    return bytes(query(sql, "Native").bytes())


def test_a_block_gets_its_information_and_each_column_its_flag() -> None:
    plain = b"\x02\x01\x01a\x05UInt8\x01\x01b\x06String\x01x"
    assert for_revision(plain, REVISION) == BLOCK_INFO + b"\x02\x01\x01a\x05UInt8\x00\x01\x01b\x06String\x00\x01x"


def test_an_older_client_gets_what_the_engine_wrote() -> None:
    assert for_revision(b"\x01\x01\x01a\x05UInt8\x01", 54405) == b"\x01\x01\x01a\x05UInt8\x01"


@pytest.mark.parametrize(
    "column",
    [
        "toString(number)",
        "toFixedString('abc', 3)",
        "toNullable(number)",
        "[toString(number), 'x']",
        "[]::Array(String)",
        "map('a', [number])",
        "(number, 'a', [1])",
        "CAST((1, 'x'), 'Tuple(a UInt8, `b` LowCardinality(String))')",
        "toLowCardinality(toString(number % 3))",
        "CAST(NULL, 'LowCardinality(Nullable(String))')",
        "[toLowCardinality('a'), 'b']",
        "toDateTime64(number, 3, 'UTC')",
        "toDecimal128(number, 4)",
        "generateUUIDv4(number)",
        "CAST('a', 'Enum8(\\'a\\' = 1, \\'b, (\\' = 2)')",
        "NULL",
        "toIPv6('::1')",
    ],
)
def test_the_end_of_a_column_is_found_whatever_its_type(column: str) -> None:
    plain = native(f"SELECT {column} AS c, 'end' AS last FROM numbers(5)")
    made = for_revision(plain, REVISION)
    tail = b"\x04last\x06String" + b"\x03end" * 5
    assert plain.endswith(tail)
    assert made.endswith(b"\x04last\x06String\x00" + b"\x03end" * 5)
    assert len(made) == len(plain) + len(BLOCK_INFO) + 2


def test_a_type_whose_end_is_not_known_is_refused() -> None:
    with pytest.raises(ClickHouseError, match="cast it"):
        for_revision(native("SELECT uniqState(number) AS u FROM numbers(3)"), REVISION)
