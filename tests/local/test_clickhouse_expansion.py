"""A statement that doubles itself by names is counted before the engine puts them in."""

from itertools import pairwise

import pytest

from rollbus.consumers.clickhouse.questions.saved_questions import list_queries
from rollbus.local.clickhouse.errors import ClickHouseError
from rollbus.local.clickhouse.expansion import MOST_QUERIES, count_queries, refuse_doubling
from rollbus.local.clickhouse.sql import tokens


def doubling_query(times: int, second: str = "CROSS JOIN {}") -> str:
    """WITH c0 AS (SELECT 1 AS x), c1 AS (SELECT l.x FROM c0 AS l CROSS JOIN c0 AS r), …"""
    parts = ["c0 AS (SELECT 1 AS x)"]
    parts += [
        f"c{n} AS (SELECT l.x AS x FROM c{n - 1} AS l {second.format(f'c{n - 1}')} AS r)" for n in range(1, times + 1)
    ]
    return f"WITH {', '.join(parts)} SELECT count() FROM c{times}"


def test_each_doubling_doubles_the_count() -> None:
    counts = [count_queries(list(tokens(doubling_query(times).encode()))) for times in (2, 4, 6, 8)]
    assert all(later > 3.5 * earlier for earlier, later in pairwise(counts))


@pytest.mark.parametrize(
    "sql",
    [
        doubling_query(15),
        doubling_query(15, ", {}"),
        doubling_query(15, "CROSS JOIN `{}`"),
        doubling_query(400),
        doubling_query(15).lower(),
    ],
)
def test_a_statement_that_doubles_too_often_is_refused(sql: str) -> None:
    with pytest.raises(ClickHouseError, match="once each name is put in"):
        refuse_doubling(tokens(sql.encode()))


def test_no_saved_question_is_near_the_limit_of_doubling() -> None:
    most = max(count_queries(list(tokens(query.sql.encode()))) for query in list_queries())
    assert most * 20 < MOST_QUERIES


@pytest.mark.parametrize(
    "sql", ["", "SELECT 1", ")", "((", "AS AS AS", "WITH", "SELECT x AS x FROM t", doubling_query(3)]
)
def test_a_statement_that_does_not_double_passes(sql: str) -> None:
    refuse_doubling(tokens(sql.encode()))
