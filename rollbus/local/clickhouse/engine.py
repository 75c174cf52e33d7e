"""ClickHouse's engine (chDB) in this process: one `EngineRequest` → one `EngineAnswer`, or a ClickHouseError.

One engine serves one data folder and one process; handles on it are cheap, and SET, USE and temporary tables belong
to a handle. A request without a session has a fresh handle, so it leaves nothing behind; a session has one handle, one
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

from rollbus.local.clickhouse.errors import Code, from_engine, refusal
from rollbus.local.clickhouse.expansion import refuse_doubling
from rollbus.local.clickhouse.read_only_statements import FUNCTIONS, TABLE_FUNCTIONS, find_reach, refuse_beyond_reading
from rollbus.local.clickhouse.reader_role import READONLY_AT_ONCE, READONLY_LIMITS, READONLY_USER
from rollbus.local.clickhouse.request import EngineRequest, find_reader_settings
from rollbus.local.clickhouse.sessions import EngineSessions
from rollbus.local.clickhouse.settings import SERVER_LIKE, applied, apply, execute, needs_own_handle, quote, use
from rollbus.local.clickhouse.sql import (
    InsertData,
    find_format,
    has_second_statement,
    refuse_unservable,
    split_insert,
    tokens,
)
from rollbus.local.clickhouse.stream import STREAMED_FORMATS, Rest, read_ahead
from rollbus.schemas.errors import ConfigurationError

_connect: Callable[[str], Any] = chdb.connect  # it has no type hints

_GO_HELLO = b"SELECT displayName(), version(), revision(), timezone()"
_PARAMETER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True, slots=True)
class EngineAnswer:
    body: bytes
    query_id: str
    format: str | None
    """None when the statement has no result, such as DDL and inserts."""
    summary: dict[str, str]
    """X-ClickHouse-Summary: counts as decimal strings; for a long answer, those known when it began."""
    rest: Rest | None = None
    """What follows the body; the sender closes it."""


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
                f"ClickHouse's data folder {folder} cannot be opened (the engine has printed the reason above); "
                "if it is half written, move it away or remove it, and start again"
            ) from error
        if not hasattr(self._keeper._conn, "classify_query"):
            raise ConfigurationError("this chdb cannot classify statements; install chdb 4.4 or later")
        self._classify: Callable[[bytes], dict[str, Any]] = self._keeper._conn.classify_query
        self._classify_lock = threading.Lock()
        self._sessions = EngineSessions(lambda: self._open(None))
        self._reach = find_reach(execute(self._keeper, FUNCTIONS), execute(self._keeper, TABLE_FUNCTIONS))
        self.version, self.timezone = execute(self._keeper, "SELECT version(), timezone()").decode().split()

    def authenticate(self, user: str, password: str) -> None:
        """Raise unless the user is known and this is the password; called before a request's body is read."""
        passwords = self._passwords.get(user)
        if passwords == "":  # an insecure endpoint; its client may have found the password of another stack
            return
        if passwords is None or not compare_digest(passwords.encode(), password.encode()):
            raise refusal(
                Code.AUTHENTICATION_FAILED,
                f"{user}: Authentication failed: the local endpoint knows the users "
                f"{' and '.join(map(repr, self._passwords))}; check the password",
            )

    def run(self, request: EngineRequest) -> EngineAnswer:
        """Check, run and count one statement of an authenticated user.

        The `rest` of a long answer holds its session until it is closed.
        """
        insert = split_insert(request.sql)
        statement = insert.statement if insert is not None else request.sql
        kind = self._check(request, statement, is_insert=insert is not None)
        if request.names_revision and request.sql.strip() == _GO_HELLO:
            return EngineAnswer(_go_hello(self.version, self.timezone), _query_id(request), "Native", {})
        with ExitStack() as stack:
            if request.user == READONLY_USER:
                stack.enter_context(self._reader())
            handle = stack.enter_context(self._handle(request, alters=kind == "CONTROL"))
            if request.user == READONLY_USER:
                self._check_reading(request)
            if insert is not None:
                return _insert(handle, request, insert)
            if kind == "READ_ONLY" and _can_stream(request):
                answer, pieces = _begin_answer(handle, request, stack)
                return answer if pieces is None else replace(answer, rest=Rest(pieces, stack.pop_all().close))
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

    def _check(self, request: EngineRequest, statement: bytes, *, is_insert: bool) -> str:
        """Return the class that the engine gives the statement; raises if it must not run."""
        refuse_unservable(statement)
        if is_insert:
            kind = "MUTATING"
            several = has_second_statement(statement)
        else:
            with self._classify_lock:
                classified = self._classify(statement)
            kind, count = classified["query_class"].name, classified["statement_count"]
            several = count > 1 or (count == 0 and has_second_statement(statement))
        if several:
            raise refusal(Code.SYNTAX_ERROR, "Syntax error (Multi-statements are not allowed): send one a request")
        asks_to_read = request.settings.get("readonly", "0") != "0"  # the engine would still run KILL and SYSTEM
        may_only_read = not request.writes_allowed or asks_to_read or request.user == READONLY_USER
        # A statement that the engine cannot parse passes: the engine answers with the place of the mistake.
        if may_only_read and kind not in {"READ_ONLY", "UNKNOWN"}:
            raise refusal(
                Code.READONLY,
                "Cannot execute query in readonly mode: only statements that read are served to GET, with the setting "
                f"readonly, and to user {READONLY_USER!r}",
            )
        return str(kind)

    def _check_reading(self, request: EngineRequest) -> None:
        """Raise unless a reader may ask this, by the engine's own parse, with the values of its parameters."""
        if request.database == "system":
            raise refusal(Code.READONLY, f"Database system is not served to user {READONLY_USER!r} as the current one")
        refuse_doubling(tokens(request.sql))
        handle = self._open(None)  # the request's limits apply to its answer only
        try:
            tree: bytes = handle.query(b"EXPLAIN AST " + request.sql, "TSVRaw", params=dict(request.parameters)).bytes()
        except Exception as error:
            raise from_engine(error) from error
        finally:
            handle.close()
        words = {token.text for token in tokens(request.sql) if token.kind == "name"}
        refuse_beyond_reading(tree.decode(errors="replace").splitlines(), words, self._reach)

    @contextmanager
    def _reader(self) -> Iterator[None]:
        """Take a place among the statements of the read-only user."""
        if not self._readers.acquire(blocking=False):
            raise refusal(
                Code.TOO_MANY_SIMULTANEOUS_QUERIES,
                f"Too many simultaneous queries: {READONLY_AT_ONCE} of user {READONLY_USER!r} are running",
            )
        try:
            yield
        finally:
            self._readers.release()

    @contextmanager
    def _handle(self, request: EngineRequest, *, alters: bool) -> Iterator[Any]:
        """Give a handle with the settings and database of the request: the session's, or a new one."""
        is_reader = request.user == READONLY_USER  # the reader can store nothing in a session
        if request.session_id is not None and not is_reader and not needs_own_handle(request.settings):
            with self._sessions.checkout(request.session_id) as session:
                session.altered |= alters
                with applied(session.handle, request.settings, request.database, altered=session.altered):
                    yield session.handle
            return
        of_reader = find_reader_settings(request) if is_reader else {}
        settings = {name: value for name, value in request.settings.items() if name not in of_reader}
        handle = self._open(request.user, of_reader)
        try:
            if request.database:
                use(handle, request.database)
            apply(handle, settings)
            yield handle
        finally:
            handle.close()

    def _open(self, user: str | None, of_reader: Mapping[str, str] | None = None) -> Any:
        handle = _connect(self._path)
        try:
            apply(handle, SERVER_LIKE)
            if user == READONLY_USER:
                apply(handle, READONLY_LIMITS | dict(of_reader or {}))
                apply(handle, {"readonly": "1"})
        except BaseException:
            handle.close()
            raise
        return handle


def _can_stream(request: EngineRequest) -> bool:
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


def _begin_answer(handle: Any, request: EngineRequest, stack: ExitStack) -> tuple[EngineAnswer, Iterator[bytes] | None]:
    """Return the first part of an answer, and the pieces that follow it."""
    start_ns = time.monotonic_ns()
    try:
        stream = handle.send_query(request.sql.decode(), request.default_format, params=dict(request.parameters))
        stack.callback(stream.close)
        first, following = read_ahead(stream)
    except Exception as error:
        raise from_engine(error) from error
    body = b"".join(result.bytes() for result in first)
    summary = _summary(
        start_ns,
        read=(
            sum(result.storage_rows_read() for result in first),
            sum(result.storage_bytes_read() for result in first),
        ),
        result=(sum(result.rows_read() for result in first), len(body)),
    )
    format_name = find_format(request.sql) or request.default_format
    pieces = None if following is None else (result.bytes() for result in following)
    return EngineAnswer(body, _query_id(request), format_name, summary), pieces


def _query(handle: Any, request: EngineRequest, *, reads: bool) -> EngineAnswer:
    start_ns = time.monotonic_ns()
    try:
        result = handle.query(request.sql, request.default_format, params=dict(request.parameters))
        body: bytes = result.bytes() or b""
    except Exception as error:
        raise from_engine(error) from error
    written_rows_and_bytes = result.rows_written()
    summary = _summary(
        start_ns,
        read=(result.storage_rows_read(), result.storage_bytes_read()),
        written=(written_rows_and_bytes, result.bytes_written()),
        result=(written_rows_and_bytes or result.rows_read(), len(body)),
    )
    format_name = (find_format(request.sql) or request.default_format) if reads or body else None
    return EngineAnswer(body, _query_id(request), format_name, summary)


def _insert(handle: Any, request: EngineRequest, insert: InsertData) -> EngineAnswer:
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
    written_rows_and_bytes = (result.rows_written, result.bytes_written)
    return EngineAnswer(
        b"",
        _query_id(request),
        None,
        _summary(start_ns, read=written_rows_and_bytes, written=written_rows_and_bytes, result=written_rows_and_bytes),
    )


def _summary(
    started_ns: int, *, read: tuple[int, int], result: tuple[int, int], written: tuple[int, int] = (0, 0)
) -> dict[str, str]:
    """X-ClickHouse-Summary; each pair is rows and bytes."""
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


def _go_hello(version: str, timezone: str) -> bytes:
    """Return the answer to the Go client's first question: one Native block that gives revision 0.

    Go reads this block in its own newest revision, and all later ones in the revision that the block gives. The engine
    writes blocks of revision 0: without the information before a block and the flag after a column's type.
    """

    def text(value: str) -> bytes:
        return bytes([len(value.encode())]) + value.encode()

    columns = (
        ("displayName()", "String", text("rollbus")),
        ("version()", "String", text(version)),
        ("revision()", "UInt32", bytes(4)),
        ("timezone()", "String", text(timezone)),
    )
    flag = b"\x00"
    block = b"".join(text(name) + text(kind) + flag + value for name, kind, value in columns)
    return b"\x01\x00\x02\xff\xff\xff\xff\x00" + bytes([len(columns), 1]) + block


def _query_id(request: EngineRequest) -> str:
    return request.query_id or str(uuid.uuid4())


def _require_unlocked(folder: Path) -> None:
    """Raise if another process has locked the engine's status file; the engine reports that only on stderr."""
    try:
        with (folder / "status").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return
    except BlockingIOError:
        raise ConfigurationError(
            f"ClickHouse's data folder {folder} is in use by another process; stop it, or use another folder"
        ) from None
