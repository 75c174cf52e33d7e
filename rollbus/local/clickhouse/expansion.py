"""How many queries a statement becomes once each `WITH` name is put in where it is used: it can double each time.

The engine puts them in before it looks at the clock, so no limit on time ends a statement that doubles thirty times.
Pure: it counts by tokens.
"""

from collections.abc import Iterable

from rollbus.local.clickhouse.errors import Code, refusal
from rollbus.local.clickhouse.sql import Token

MOST_QUERIES = 10_000
"""Fifty times what the largest saved question has, and twelve doublings."""
_BEFORE_A_TABLE = frozenset({"FROM", "JOIN", "IN"})
_CLAUSES = frozenset(
    {"SELECT", "WITH", "PREWHERE", "WHERE", "GROUP", "HAVING", "WINDOW", "ORDER", "LIMIT", "ON", "USING", "SETTINGS"}
)
"""After one of them a comma separates no tables."""
_NOWHERE = Token("other", "", 0, 0, 0)


def refuse_doubling(tokens: Iterable[Token]) -> None:
    """Raise ClickHouseError for a statement that stands for more queries than a useful one has."""
    queries = count_queries(list(tokens))
    if queries > MOST_QUERIES:
        raise refusal(
            Code.READONLY,
            f"WITH makes this statement {queries:,} queries once each name is put in where it is used, at most "
            f"{MOST_QUERIES:,} are served; use a part less often",
        )


def count_queries(tokens: list[Token]) -> int:
    """Return how many queries a statement has once each `WITH` name stands for what it names, up to a bound."""
    queries_by_name: dict[str, int] = {}
    query_by_depth: dict[int, tuple[str, int]] = {}
    """By the depth of its parenthesis: the open `name AS (`, and the total before it."""
    total, table_depths = 1, set[int]()
    for before, token, following in zip([_NOWHERE, *tokens], tokens, [*tokens[1:], _NOWHERE], strict=False):
        if token.text == ")" and token.depth in query_by_depth:
            name, earlier = query_by_depth.pop(token.depth)
            queries_by_name[name] = 1 + total - earlier
        elif token.text == "AS" and token.kind == "name" and following.text == "(" and before.kind == "name":
            query_by_depth[following.depth] = (_plain(before.text), total)
        if token.kind != "name":
            continue
        if token.text in _CLAUSES:
            table_depths.discard(token.depth)
        elif token.text in _BEFORE_A_TABLE:
            table_depths.add(token.depth)
        elif before.text in _BEFORE_A_TABLE or (before.text == "," and token.depth in table_depths):
            total = min(total + queries_by_name.get(_plain(token.text), 0), MOST_QUERIES**2)
    return total


def _plain(name: str) -> str:
    return name.strip('`"').upper()
