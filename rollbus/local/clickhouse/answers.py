"""A statement that may run, on a handle of the engine → its `EngineAnswer`, or the beginning of a long one."""

import re
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from rollbus.local.clickhouse.errors import Code, from_engine, refusal
from rollbus.local.clickhouse.request import EngineRequest
from rollbus.local.clickhouse.settings import execute, quote
from rollbus.local.clickhouse.sql import InsertData, find_format, tokens
from rollbus.local.clickhouse.stream import STREAMED_FORMATS, RemainingPieces, read_ahead

_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    """The answer to one request, or the beginning of a long one."""

    body: bytes
    query_id: str
    format: str | None
    """None when the statement has no result, such as DDL and inserts."""
    summary: dict[str, str]
    """X-ClickHouse-Summary: counts as decimal strings; for a long answer, those known when it began."""
    rest: RemainingPieces | None = None
    """What follows the body; the sender closes it."""


def can_stream(request: EngineRequest) -> bool:
    """Whether the engine can stream it: not SHOW, DESCRIBE and EXPLAIN, whose answers are short, nor non-UTF-8."""
    first = next(tokens(request.sql), None)
    if request.wait_for_end or first is None or first.text not in {"SELECT", "WITH", "FROM", "("}:
        return False
    if not _is_text(request.sql):
        return False
    return (find_format(request.sql) or request.default_format) in STREAMED_FORMATS


def _is_text(sql: bytes) -> bool:
    try:
        sql.decode()
    except UnicodeDecodeError:
        return False
    return True


def begin_answer(handle: Any, request: EngineRequest, stack: ExitStack) -> tuple[EngineAnswer, Iterator[bytes] | None]:
    """Return the first part of an answer, and the pieces after it, None if it is whole; `stack` ends the statement."""
    start_ns = time.monotonic_ns()
    try:
        stream = handle.send_query(request.sql.decode(), request.default_format, params=dict(request.parameters))
        stack.callback(stream.close)
        first, following = read_ahead(stream)
    except Exception as error:
        raise from_engine(error) from error
    body = b"".join(result.bytes() for result in first)
    summary = _write_summary(
        start_ns,
        read=(
            sum(result.storage_rows_read() for result in first),
            sum(result.storage_bytes_read() for result in first),
        ),
        result=(sum(result.rows_read() for result in first), len(body)),
    )
    format_name = find_format(request.sql) or request.default_format
    pieces = None if following is None else (result.bytes() for result in following)
    return EngineAnswer(body, query_id_of(request), format_name, summary), pieces


def run_query(handle: Any, request: EngineRequest, *, reads: bool) -> EngineAnswer:
    """Return a whole answer; a statement that `reads` has a format even if it returned nothing."""
    start_ns = time.monotonic_ns()
    try:
        result = handle.query(request.sql, request.default_format, params=dict(request.parameters))
        body: bytes = result.bytes() or b""
    except Exception as error:
        raise from_engine(error) from error
    written_rows = result.rows_written()
    summary = _write_summary(
        start_ns,
        read=(result.storage_rows_read(), result.storage_bytes_read()),
        written=(written_rows, result.bytes_written()),
        result=(written_rows or result.rows_read(), len(body)),
    )
    format_name = (find_format(request.sql) or request.default_format) if reads or body else None
    return EngineAnswer(body, query_id_of(request), format_name, summary)


def run_insert(handle: Any, request: EngineRequest, insert: InsertData) -> EngineAnswer:
    """Send the data through the engine's insert stream, which takes any bytes; a query would end at a semicolon."""
    for name, value in request.parameters.items():
        if not _PARAMETER.match(name):
            raise refusal(Code.SYNTAX_ERROR, f"{name!r} is not the name of a parameter")
        execute(handle, f"SET param_{name} = {quote(value)}")
    start_ns = time.monotonic_ns()
    try:
        stream = handle.send_insert(insert.statement.decode(), insert.format)
        try:
            if insert.data:
                stream.append(insert.data)
            result = stream.finish()
        finally:
            stream.close()
    except Exception as error:
        raise from_engine(error) from error
    rows_and_bytes = (result.rows_written, result.bytes_written)
    summary = _write_summary(start_ns, read=rows_and_bytes, written=rows_and_bytes, result=rows_and_bytes)
    return EngineAnswer(b"", query_id_of(request), None, summary)


def query_id_of(request: EngineRequest) -> str:
    """Return the id that the request names, else a new one."""
    return request.query_id or str(uuid.uuid4())


def _write_summary(
    started_ns: int, *, read: tuple[int, int], result: tuple[int, int], written: tuple[int, int] = (0, 0)
) -> dict[str, str]:
    """Return X-ClickHouse-Summary; each pair is rows and bytes."""
    counts = {
        "read_rows": read[0],
        "read_bytes": read[1],
        "written_rows": written[0],
        "written_bytes": written[1],
        "total_rows_to_read": read[0],
        "result_rows": result[0],
        "result_bytes": result[1],
        "elapsed_ns": time.monotonic_ns() - started_ns,
    }
    return {name: str(count) for name, count in counts.items()}
