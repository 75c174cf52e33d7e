"""ClickHouse's engine (chDB) in this process: one `Request` → one `Answer`, or a ClickHouseError.

One engine serves one data folder and one process; handles on it are cheap, and SET, USE and temporary tables belong
to a handle. A request without a session has a fresh handle, so nothing of it can stick; a session has one handle, one
request at a time. Statements are classified by the engine before they run, as it would run `SELECT 1; DROP TABLE t`
as two.
"""

import fcntl
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from hmac import compare_digest
from pathlib import Path
from typing import Any

import chdb

from rollbus.local.clickhouse_errors import (
    AUTHENTICATION_FAILED,
    READONLY,
    SYNTAX_ERROR,
    TOO_MANY_SIMULTANEOUS_QUERIES,
    from_engine,
    refusal,
)
from rollbus.local.clickhouse_native import for_revision
from rollbus.local.clickhouse_request import (
    READONLY_AT_ONCE,
    READONLY_LIMITS,
    READONLY_USER,
    Request,
    lowered_limits,
)
from rollbus.local.clickhouse_sessions import Sessions
from rollbus.local.clickhouse_settings import SERVER_LIKE, applied, apply, execute, needs_own_handle, quote
from rollbus.local.clickhouse_sql import (
    InsertData,
    answer_format,
    has_second_statement,
    refuse_unservable,
    split_insert,
    tokens,
)
from rollbus.local.clickhouse_stream import STREAMED_FORMATS, Rest, read_ahead
from rollbus.schemas.errors import ConfigurationError

_connect: Callable[[str], Any] = chdb.connect  # it says nothing of its types

_REACHING_OUT = frozenset(
    {"file", "hascolumnintable", "catboostevaluate", "aiclassify", "aiembed", "aiextract", "aifilter",
     "aigenerate", "airedact", "aisimilarity", "aitranslate"}
)  # fmt: skip
"""Files of this machine, tables of other servers, models on disk and elsewhere. Table functions that reach out are
asked of the engine: `readonly` refuses to read them, but DESCRIBE would still connect to learn their columns."""
_OUTSIDE = """SELECT lower(name) FROM system.table_functions
WHERE NOT allow_readonly AND lower(name) NOT IN (SELECT lower(name) FROM system.functions)"""
"""`format` is both: as a table function it parses its own argument."""
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes
    query_id: str
    format: str | None
    """None when the statement has no result, such as DDL and inserts."""
    summary: dict[str, str]
    """X-ClickHouse-Summary: counts as decimal strings; of a long answer, what was known when it began."""
    rest: Rest | None = None
    """What follows the body, to be closed by whoever sends it."""


class Engine:
    """The engine on one data folder. Thread-safe; `close` it before the process ends."""

    def __init__(self, folder: Path, passwords: Mapping[str, str] | None = None) -> None:
        """`passwords` are those of the users `default` and `readonly`; without one a user has none."""
        self._passwords = {"default": "", READONLY_USER: ""} | dict(passwords or {})
        self._readers = threading.BoundedSemaphore(READONLY_AT_ONCE)
        folder.mkdir(parents=True, exist_ok=True)
        _require_unlocked(folder)
        self._path = str(folder.resolve())
        try:
            self._keeper = _connect(self._path)
        except Exception as error:
            raise ConfigurationError(
                f"ClickHouse's data folder {folder} cannot be opened (the engine wrote above why); "
                "if it is half written, move it away or remove it, and start again"
            ) from error
        if not hasattr(self._keeper._conn, "classify_query"):
            raise ConfigurationError("this chdb cannot classify statements; install chdb 4.4 or later")
        self._classify: Callable[[bytes], dict[str, Any]] = self._keeper._conn.classify_query
        self._classify_lock = threading.Lock()
        self._sessions = Sessions(self._open, lambda handle: handle.close())
        outside = execute(self._keeper, _OUTSIDE)
        self._reaching_out = _REACHING_OUT | set(outside.decode().split())
        self.version, self.timezone = execute(self._keeper, "SELECT version(), timezone()").decode().split()

    def authenticate(self, user: str, password: str) -> None:
        """Raise unless the user is known and this is the password; asked before a request's body is read."""
        known = self._passwords.get(user)
        if known is None or not compare_digest(known.encode(), password.encode()):
            raise refusal(
                AUTHENTICATION_FAILED,
                f"{user}: Authentication failed: the local endpoint knows the users "
                f"{' and '.join(map(repr, self._passwords))}; check the password, or that there is none",
            )

    def run(self, request: Request) -> Answer:
        """Check, run and count one statement of a user who was authenticated.

        The `rest` of a long answer holds its session until it is closed.
        """
        insert = split_insert(request.sql)
        statement = insert.statement if insert is not None else request.sql
        kind = self._check(request, statement, is_insert=insert is not None)
        with ExitStack() as held:
            if request.user == READONLY_USER:
                held.enter_context(self._reader())
            handle = held.enter_context(self._handle(request, alters=kind == "CONTROL"))
            if request.user == READONLY_USER:
                self._refuse_reaching_out(request)
            if insert is not None:
                return _insert(handle, request, insert)
            if kind == "READ_ONLY" and _can_stream(request):
                answer, pieces = _begin(handle, request, held)
                return answer if pieces is None else replace(answer, rest=Rest(pieces, held.pop_all().close))
            return _query(handle, request, reads=kind == "READ_ONLY")

    def ping(self) -> None:
        """Raise unless the engine answers."""
        handle = self._open(None)
        try:
            execute(handle, "SELECT 1")
        finally:
            handle.close()

    def close(self) -> None:
        """Close every handle, which closes the data folder."""
        self._sessions.close()
        self._keeper.close()

    def _check(self, request: Request, statement: bytes, *, is_insert: bool) -> str:
        """The class that the engine gives the statement; raises where it must not run."""
        refuse_unservable(statement)
        if is_insert:
            kind = "MUTATING"
            several = has_second_statement(statement)
        else:
            with self._classify_lock:
                found = self._classify(statement)
            kind, count = found["query_class"].name, found["statement_count"]
            several = count > 1 or (count == 0 and has_second_statement(statement))
        if several:
            raise refusal(SYNTAX_ERROR, "Syntax error (Multi-statements are not allowed): send one statement a request")
        may_only_read = not request.writes_allowed or request.user == READONLY_USER
        # What the engine cannot parse passes: it answers with the place of the mistake.
        if may_only_read and kind not in {"READ_ONLY", "UNKNOWN"}:
            reason = "with GET" if not request.writes_allowed else f"as user {READONLY_USER!r}"
            raise refusal(
                READONLY, f"Cannot execute query in readonly mode: only statements that read are served {reason}"
            )
        return str(kind)

    def _refuse_reaching_out(self, request: Request) -> None:
        """Look for functions that `readonly` lets pass in the engine's own parse, under any spelling."""
        handle = self._open(None)  # the request's limits are for its answer, not for this one
        try:
            tree: bytes = handle.query(b"EXPLAIN AST " + request.sql, "TSVRaw", params=dict(request.parameters)).bytes()
        except Exception as error:
            raise from_engine(error) from error
        finally:
            handle.close()
        for line in tree.lower().splitlines():
            kind, _, name = line.strip().partition(b" ")
            found = name.partition(b" ")[0].decode(errors="replace")
            if kind == b"function" and found in self._reaching_out:
                raise refusal(READONLY, f"Function {found} is not served to user {READONLY_USER!r}")

    @contextmanager
    def _reader(self) -> Iterator[None]:
        """A place among the statements of the read-only user."""
        if not self._readers.acquire(blocking=False):
            raise refusal(
                TOO_MANY_SIMULTANEOUS_QUERIES,
                f"Too many simultaneous queries: {READONLY_AT_ONCE} of user {READONLY_USER!r} run already",
            )
        try:
            yield
        finally:
            self._readers.release()

    @contextmanager
    def _handle(self, request: Request, *, alters: bool) -> Iterator[Any]:
        """A handle with the settings and database of the request: the session's, or one of its own."""
        # The read-only user can put nothing into a session, and a limit of its request is set before `readonly`.
        in_session = request.session_id is not None and not needs_own_handle(request.settings)
        if in_session and not (request.user == READONLY_USER and lowered_limits(request)):
            assert request.session_id is not None
            with self._sessions.checkout(
                request.user,
                request.session_id,
                timeout_s=request.session_timeout_s,
                must_exist=request.session_must_exist,
            ) as session:
                session.altered |= alters
                with applied(session.handle, request.settings, request.database, altered=session.altered):
                    yield session.handle
            return
        lowered = lowered_limits(request) if request.user == READONLY_USER else {}
        settings = {name: value for name, value in request.settings.items() if name not in lowered}
        handle = self._open(request.user, lowered)
        try:
            with applied(handle, settings, request.database, altered=False):
                yield handle
        finally:
            handle.close()

    def _open(self, user: str | None, lowered: Mapping[str, str] | None = None) -> Any:
        handle = _connect(self._path)
        try:
            apply(handle, SERVER_LIKE)
            if user == READONLY_USER:
                apply(handle, READONLY_LIMITS | dict(lowered or {}))
                apply(handle, {"readonly": "1"})
        except BaseException:
            handle.close()
            raise
        return handle


def _can_stream(request: Request) -> bool:
    """SHOW, DESCRIBE and EXPLAIN have no stream; their answers are short. Nor has what is not UTF-8."""
    first = next(tokens(request.sql), None)
    if request.wait_for_end or first is None or first.text not in {"SELECT", "WITH", "FROM", "("}:
        return False
    if not _is_text(request.sql):
        return False
    return (answer_format(request.sql) or request.default_format) in STREAMED_FORMATS


def _is_text(sql: bytes) -> bool:
    try:
        sql.decode()
    except UnicodeDecodeError:
        return False
    return True


def _begin(handle: Any, request: Request, held: ExitStack) -> tuple[Answer, Iterator[bytes] | None]:
    """The first part of an answer, and the pieces that follow it."""
    started = time.monotonic_ns()
    try:
        stream = handle.send_query(request.sql.decode(), request.default_format, params=dict(request.parameters))
        held.callback(stream.close)
        first, following = read_ahead(stream)
    except Exception as error:
        raise from_engine(error) from error
    body = b"".join(result.bytes() for result in first)
    read_rows = sum(result.storage_rows_read() for result in first)
    summary = {
        "read_rows": str(read_rows),
        "read_bytes": str(sum(result.storage_bytes_read() for result in first)),
        "written_rows": "0",
        "written_bytes": "0",
        "total_rows_to_read": str(read_rows),
        "result_rows": str(sum(result.rows_read() for result in first)),
        "result_bytes": str(len(body)),
        "elapsed_ns": str(time.monotonic_ns() - started),
    }
    named = answer_format(request.sql) or request.default_format
    revision = request.revision if named == "Native" else 0
    pieces = None if following is None else (for_revision(result.bytes(), revision) for result in following)
    return Answer(for_revision(body, revision), _query_id(request), named, summary), pieces


def _query(handle: Any, request: Request, *, reads: bool) -> Answer:
    try:
        result = handle.query(request.sql, request.default_format, params=dict(request.parameters))
        body: bytes = result.bytes() or b""
    except Exception as error:
        raise from_engine(error) from error
    written = result.rows_written()
    summary = {
        "read_rows": str(result.storage_rows_read()),
        "read_bytes": str(result.storage_bytes_read()),
        "written_rows": str(written),
        "written_bytes": str(result.bytes_written()),
        "total_rows_to_read": str(result.storage_rows_read()),
        "result_rows": str(written or result.rows_read()),
        "result_bytes": str(len(body)),
        "elapsed_ns": str(int(result.elapsed() * 1e9)),
    }
    named = (answer_format(request.sql) or request.default_format) if reads or body else None
    if named == "Native":
        body = for_revision(body, request.revision)
    return Answer(body, _query_id(request), named, summary)


def _insert(handle: Any, request: Request, insert: InsertData) -> Answer:
    """Push the data through the engine's insert stream, which takes any bytes; a query would end at a semicolon."""
    for name, value in request.parameters.items():
        if not _PARAMETER.match(name):
            raise refusal(SYNTAX_ERROR, f"{name!r} is not the name of a parameter")
        execute(handle, f"SET param_{name} = {quote(value)}")
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
    summary = {
        "read_rows": str(result.rows_written),
        "read_bytes": str(result.bytes_written),
        "written_rows": str(result.rows_written),
        "written_bytes": str(result.bytes_written),
        "total_rows_to_read": "0",
        "result_rows": str(result.rows_written),
        "result_bytes": str(result.bytes_written),
        "elapsed_ns": str(int(result.elapsed * 1e9)),
    }
    return Answer(b"", _query_id(request), None, summary)


def _query_id(request: Request) -> str:
    return request.query_id or str(uuid.uuid4())


def _require_unlocked(folder: Path) -> None:
    """The engine locks its status file, and reports a lock held by another only on stderr."""
    try:
        with (folder / "status").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return
    except BlockingIOError:
        raise ConfigurationError(
            f"ClickHouse's data folder {folder} is in use by another process; stop it, or use another folder"
        ) from None
