"""Read just enough SQL to serve it: where an insert's data begins, which format an answer has, what must be refused.

The engine in this process does things that a server does not. It runs several statements at once, reads and writes
files of the machine, reads Python's objects, and cannot open its data folder again after a table engine that it does
not support. Such statements are refused here, by tokens and not by substrings, so that strings and comments never
match. This guards against accidents. The engine's own parser also checks what the read-only user sends.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from rollbus.local.clickhouse.errors import Code, refusal

_TOKEN = re.compile(
    rb"""
      (?P<skip> \s+ | --[^\n]* | \#[ !][^\n]* | /\*.*?(?:\*/|\Z) )
    | (?P<string> '(?:[^'\\]|\\(?:.|\Z)|'')*+(?:'|\Z) )
    | (?P<heredoc> \$\w*\$ )
    | (?P<name> [A-Za-z_][A-Za-z0-9_$]*
        | `(?:[^`\\]|\\(?:.|\Z)|``)*+(?:`|\Z) | "(?:[^"\\]|\\(?:.|\Z)|"")*+(?:"|\Z) )
    | (?P<other> \d[\w.]* | . )
    """,
    re.VERBOSE | re.DOTALL,
)
"""A quote that is never closed extends to the end, so that each byte is read once."""
_HEREDOC = re.compile(rb"(?=(\$\w*\$))")
_KINDS = ("skip", "string", "heredoc", "name", "other")

STORABLE_ENGINES = frozenset(
    {
        "memory", "log", "tinylog", "stripelog", "null", "set", "join", "buffer", "merge", "view",
        "materializedview", "dictionary", "generaterandom", "url", "file", "atomic", "ordinary",
    }
)  # fmt: skip
"""In addition to the MergeTree family: engines that need nothing outside this process. Others, such as Kafka, fail
after their metadata is written, and then the data folder cannot be opened again."""


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    """'name', 'string' or 'other' (one character or a number)."""
    text: str
    """As written; upper case for an unquoted name."""
    depth: int
    """Open parentheses before it."""
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class InsertData:
    """An INSERT whose rows follow the statement in the same text."""

    statement: bytes
    """Up to, not including, FORMAT."""
    format: str
    data: bytes


def tokens(sql: bytes) -> Iterator[Token]:
    """Yield the tokens of SQL without white space and comments."""
    depth, end = 0, 0
    last_heredocs: dict[bytes, int] | None = None
    while match := _TOKEN.match(sql, end):
        kind = next(name for name in _KINDS if match.group(name) is not None)
        start, end = match.span()
        if kind == "skip":
            continue
        if kind == "heredoc":
            if last_heredocs is None:
                last_heredocs = {heredoc.group(1): heredoc.start() for heredoc in _HEREDOC.finditer(sql)}
            if last_heredocs[match.group()] >= end:
                kind, end = "string", sql.index(match.group(), end) + len(match.group())
            else:
                kind, end = "other", start + 1
        text = sql[start:end].decode("utf-8", errors="replace")
        if kind == "name" and text[0] not in '`"':
            text = text.upper()
        if text == ")":
            depth = max(0, depth - 1)
        yield Token(kind, text, depth, start, end)
        if text == "(":
            depth += 1


def split_insert(sql: bytes) -> InsertData | None:
    """Return the parts of `INSERT … FORMAT name` and its data; None for other statements, also VALUES and SELECT."""
    previous: Token | None = None
    for position, token in enumerate(tokens(sql)):
        if position == 0 and token.text != "INSERT":
            return None
        if token.depth == 0 and token.kind == "name":
            if previous is not None and previous.text == "FORMAT" and position > 2:
                data = _after_format(sql, token.end)
                return InsertData(sql[: previous.start], _name(sql, token), data)
            if token.text in {"SELECT", "VALUES", "WITH", "INFILE"}:
                return None
        previous = token
    return None


def find_format(sql: bytes) -> str | None:
    """Return the format that the statement itself names, or None."""
    format_name = None
    previous: Token | None = None
    for token in tokens(sql):
        is_named = token.kind == "name" and token.text not in _AFTER_A_COLUMN  # else a column has the name format
        if is_named and previous is not None and previous.text == "FORMAT" and previous.depth == token.depth == 0:
            format_name = _name(sql, token)
        previous = token
    return format_name


def _name(sql: bytes, token: Token) -> str:
    """Return a name as written: a token's text is in upper case."""
    return sql[token.start : token.end].decode(errors="replace")


def refuse_unservable(sql: bytes) -> None:
    """Raise for a statement that a ClickHouse server would refuse over HTTP, or that would harm this process."""
    first: Token | None = None
    previous: Token | None = None
    before: Token | None = None
    for token in tokens(sql):
        first = first or token
        if first.text == "INSERT" and token.text == "VALUES" and token.depth == 0:
            return  # rows follow; they may be many
        if previous is not None and previous.kind == "name":
            _refuse_files(previous, token)
            if token.text == "(" and previous.text.strip('`"').upper() == "PYTHON":
                raise refusal(
                    Code.UNKNOWN_FUNCTION,
                    "Table function Python is not served: it reads the objects of the serving process; insert the rows",
                )
        if first.text in {"CREATE", "ATTACH", "REPLACE", "ALTER"} and token.kind == "name" and token.depth == 0:
            _refuse_engine(before, previous, _name(sql, token).strip('`"'))
        before, previous = previous, token


def has_second_statement(sql: bytes) -> bool:
    """Whether anything but white space follows a semicolon."""
    ended = False
    for token in tokens(sql):
        if ended and token.text != ";":
            return True
        ended = token.text == ";"
    return False


def _refuse_files(first: Token, second: Token) -> None:
    if (first.text, second.text) == ("INTO", "OUTFILE"):
        raise refusal(Code.INTO_OUTFILE_NOT_ALLOWED, "INTO OUTFILE is not allowed: the file would lie on the server")
    if (first.text, second.text) == ("FROM", "INFILE"):
        raise refusal(
            Code.UNKNOWN_TYPE_OF_QUERY, "FROM INFILE is not allowed: the file would be the server's; send the data"
        )


def _refuse_engine(before: Token | None, previous: Token | None, name: str) -> None:
    assigned = previous is not None and previous.text == "=" and before is not None and before.text == "ENGINE"
    bare = previous is not None and previous.text == "ENGINE" and name.upper() not in _AFTER_A_COLUMN
    if not (assigned or bare):
        return
    engine = name.lower()
    if engine in STORABLE_ENGINES or (engine.endswith("mergetree") and not engine.startswith("replicated")):
        return
    raise refusal(
        Code.UNKNOWN_STORAGE,
        f"Engine {name} is not available here; the local endpoint serves the MergeTree family and engines without "
        "outside services. Read Kafka with `rollbus sink run`, or use a ClickHouse server",
    )


_AFTER_A_COLUMN = frozenset(
    {"FROM", "AS", "AND", "OR", "IN", "LIKE", "ILIKE", "IS", "NOT", "BETWEEN", "ASC", "DESC", "LIMIT", "WHERE", "ORDER",
     "GROUP", "HAVING", "UNION", "SETTINGS", "FORMAT", "THEN", "ELSE", "END", "WHEN", "GLOBAL", "NULLS", "COMMENT"}
)  # fmt: skip
"""What can follow a column with the name engine or format, as in `CREATE VIEW v AS SELECT engine FROM …`."""


def _after_format(sql: bytes, position: int) -> bytes:
    """Return the data, which begin after blanks and one line end, as ClickHouse reads them."""
    end = position
    while end < len(sql) and sql[end : end + 1] in b" \t\f":
        end += 1
    if sql[end : end + 1] == b";":
        end += 1
        while end < len(sql) and sql[end : end + 1] in b" \t\f":
            end += 1
    if sql[end : end + 1] == b"\r":
        end += 1
    if sql[end : end + 1] == b"\n":
        end += 1
    return sql[end:]
