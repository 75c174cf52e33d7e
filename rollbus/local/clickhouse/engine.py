"""ClickHouse's engine (chDB) in this process: one `EngineRequest` → one `EngineAnswer`, or a ClickHouseError.

One engine serves one data folder and one process; handles on it are cheap, and SET, USE and temporary tables belong
to a handle. A request without a session has a fresh handle, so it leaves nothing behind; a session has one handle, one
request at a time. Statements are classified by the engine before they run, as it would run `SELECT 1; DROP TABLE t`
as two.
"""

import fcntl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from hmac import compare_digest
from pathlib import Path
from typing import Any

import chdb

from rollbus.local.clickhouse.answers import EngineAnswer, begin_answer, can_stream, query_id_of, run_insert, run_query
from rollbus.local.clickhouse.errors import Code, from_engine, refusal
from rollbus.local.clickhouse.expansion import refuse_doubling
from rollbus.local.clickhouse.go_client import GO_HELLO, answer_go_hello
from rollbus.local.clickhouse.read_only_statements import FUNCTIONS, TABLE_FUNCTIONS, find_reach, refuse_beyond_reading
from rollbus.local.clickhouse.reader_role import READONLY_AT_ONCE, READONLY_LIMITS, READONLY_USER
from rollbus.local.clickhouse.request import EngineRequest, find_reader_settings
from rollbus.local.clickhouse.sessions import EngineSessions
from rollbus.local.clickhouse.settings import SERVER_LIKE, applied, apply, execute, needs_own_handle, use
from rollbus.local.clickhouse.sql import has_second_statement, refuse_unservable, split_insert, tokens
from rollbus.local.clickhouse.stream import RemainingPieces
from rollbus.schemas.errors import ConfigurationError

_connect: Callable[[str], Any] = chdb.connect  # it has no type hints


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
        self._sessions = EngineSessions(self._open)
        self._reach = find_reach(execute(self._keeper, FUNCTIONS), execute(self._keeper, TABLE_FUNCTIONS))
        self.version, self.timezone = execute(self._keeper, "SELECT version(), timezone()").decode().split()

    def authenticate(self, user: str, password: str) -> None:
        """Raise unless the user is known and this is the password; called before a request's body is read."""
        expected_password = self._passwords.get(user)
        if expected_password == "":  # an insecure endpoint; its client may have found the password of another stack
            return
        if expected_password is None or not compare_digest(expected_password.encode(), password.encode()):
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
        if request.names_revision and request.sql.strip() == GO_HELLO:
            return EngineAnswer(answer_go_hello(self.version, self.timezone), query_id_of(request), "Native", {})
        with ExitStack() as stack:
            if request.user == READONLY_USER:
                stack.enter_context(self._reader())
            handle = stack.enter_context(self._handle(request, alters=kind == "CONTROL"))
            if request.user == READONLY_USER:
                self._check_reading(request)
            if insert is not None:
                return run_insert(handle, request, insert)
            if kind == "READ_ONLY" and can_stream(request):
                answer, pieces = begin_answer(handle, request, stack)
                return (
                    answer if pieces is None else replace(answer, rest=RemainingPieces(pieces, stack.pop_all().close))
                )
            return run_query(handle, request, reads=kind == "READ_ONLY")

    def ping(self) -> None:
        """Raise unless the engine answers."""
        handle = self._open()
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
            has_several = has_second_statement(statement)
        else:
            with self._classify_lock:
                classification = self._classify(statement)
            kind, count = classification["query_class"].name, classification["statement_count"]
            has_several = count > 1 or (count == 0 and has_second_statement(statement))
        if has_several:
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
        handle = self._open()  # the request's limits apply to its answer only
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
                session.is_altered |= alters
                with applied(session.handle, request.settings, request.database, altered=session.is_altered):
                    yield session.handle
            return
        reader_settings = find_reader_settings(request) if is_reader else {}
        settings = {name: value for name, value in request.settings.items() if name not in reader_settings}
        handle = self._open(reader_settings if is_reader else None)
        try:
            if request.database:
                use(handle, request.database)
            apply(handle, settings)
            yield handle
        finally:
            handle.close()

    def _open(self, reader_settings: Mapping[str, str] | None = None) -> Any:
        """Return a new handle: with everything allowed, or, with `reader_settings`, with the limits of the reader."""
        handle = _connect(self._path)
        try:
            apply(handle, SERVER_LIKE)
            if reader_settings is not None:
                apply(handle, READONLY_LIMITS | dict(reader_settings))
                apply(handle, {"readonly": "1"})
        except BaseException:
            handle.close()
            raise
        return handle


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
