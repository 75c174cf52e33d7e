"""ClickHouse over HTTP: commands, inserts by column and queries, with our errors instead of the driver's.

After an UnavailableError (no answer, too busy, too many parts) another try may succeed; after a RejectedError it will
not. The client blocks, keeps no session on the server, and serves one thread at a time; the sink calls it in a thread.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from queue import Empty, LifoQueue
from typing import TYPE_CHECKING, Any

import clickhouse_connect
from clickhouse_connect.datatypes.base import ClickHouseType
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, OperationalError
from urllib3.exceptions import HTTPError

from rollbus.consumers.clickhouse.store import cluster
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings, TableRetention
from rollbus.schemas.errors import RejectedError, ServiceError, UnavailableError

if TYPE_CHECKING:
    from rollbus.consumers.clickhouse.store.origin import Row

EXPECTED_WORDS = re.compile(r" Expected one of: .*(?=\(SYNTAX_ERROR\))", re.DOTALL)
"""What the server's parser expected instead: two kilobytes for one missing letter."""
SCOPE = re.compile(r"[.:]? [Ii]n scope .*?(?=\s\([A-Z_0-9]+\) \(version)", re.DOTALL)
"""The statement around a mistake; around a filter it is all ours."""
WRAPPING = re.compile(r"\AReceived ClickHouse exception, code: \d+, server response: | \(for url \S+\)\Z")
"""What the client adds: the code a second time, and the address, which our message names."""
NOT_REACHED = ("Failed to establish a new connection", "Connection aborted", "NameResolutionError")
PASSING_CODES = frozenset(
    {
        3,  # UNEXPECTED_END_OF_FILE
        159,  # TIMEOUT_EXCEEDED
        202,  # TOO_MANY_SIMULTANEOUS_QUERIES
        209,  # SOCKET_TIMEOUT
        210,  # NETWORK_ERROR
        236,  # ABORTED
        241,  # MEMORY_LIMIT_EXCEEDED
        242,  # TABLE_IS_READ_ONLY
        243,  # NOT_ENOUGH_SPACE
        252,  # TOO_MANY_PARTS
        394,  # QUERY_WAS_CANCELLED
        439,  # CANNOT_SCHEDULE_TASK
    }
)
"""Errors that may pass (src/Common/ErrorCodes.cpp of ClickHouse)."""

WRONG_PASSWORD_CODE = 516
"""AUTHENTICATION_FAILED."""
PASSWORD_ELSEWHERE = (
    "the password of a stack of `rollbus start` is in its folder: run this there, or let ROLLBUS_SECRETS name that "
    "folder's .rollbus/secrets; that of another server is `clickhouse: password:`"
)
NOT_MIGRATED_CODES = frozenset({60, 81})
"""UNKNOWN_TABLE, UNKNOWN_DATABASE."""

INSERT_SETTINGS = {
    "async_insert": 0,  # so the answer means that the rows are written
    "throw_on_max_partitions_per_insert_block": 0,  # a producer's clock may spread a block over many months
}
INSERT_SETTINGS_IF_KNOWN = {"exclude_materialize_skip_indexes_on_insert": "by_words"}
"""Of newer servers. The index of words is two fifths of what an insert of turns costs; merges of their parts make it,
and what is not merged yet is searched without."""


AHEAD = 4
"""Inserts that are encoded or on their way. A small one ends before the large one behind it is encoded, so with two the
server waits a quarter of the time, with four a sixth. More would only take memory."""


@dataclass(frozen=True, slots=True)
class Insert:
    """Rows of one table that are written together."""

    table: str
    rows: "Sequence[Row]"
    """At least one; all have the same columns."""
    token: str | None = None
    """The name under which ClickHouse knows a repeated insert."""


_idle: dict[ClickHouseSettings, LifoQueue["ClickHouse"]] = {}


@contextmanager
def connection(settings: ClickHouseSettings) -> Iterator["ClickHouse"]:
    """Lend a connection that is idle in this process, or a new one. Thread-safe.

    A new one asks for all settings of the server first, which takes three times as long as a small question.
    """
    idle = _idle.setdefault(settings, LifoQueue())
    try:
        client = idle.get_nowait()
    except Empty:
        client = ClickHouse(settings)
    try:
        yield client
    finally:
        idle.put(client)


class ClickHouse:
    """One connection; it connects at the first use, and again after a failure."""

    def __init__(self, settings: ClickHouseSettings, *, database: str | None = None) -> None:
        """Use the settings' database, or another (`default` before it exists)."""
        self._settings = settings
        self._database = database or settings.database
        self._client: Client | None = None
        self._type_names: dict[str, dict[str, str]] = {}
        """Of each column of each table, once one is asked for."""

    @property
    def database(self) -> str:
        """The database that statements run in."""
        return self._database

    @property
    def cluster(self) -> str | None:
        """The cluster that the tables are spread over; None for one server."""
        return self._settings.cluster

    @property
    def retention(self) -> TableRetention:
        """How long rows are kept."""
        return self._settings.retention

    def command(self, sql: str) -> None:
        """Run one statement that has no result."""
        with self._raising_ours(f"statement {sql.split(chr(10))[0][:80]!r}"):
            self._connect().command(sql)

    def query(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return column names and rows; settings that this user may not change are left as they are for it."""
        with self._raising_ours("query"):
            client = self._connect()
            fixed = {name for name, setting in client.server_settings.items() if setting.readonly}
            all_settings = {**(cluster.QUERY_SETTINGS if self.cluster else {}), **(settings or {})}
            free_settings = {name: value for name, value in all_settings.items() if name not in fixed}
            result = client.query(sql, parameters=dict(parameters or {}), settings=free_settings)
            return list(result.column_names), [tuple(row) for row in result.result_rows]

    def insert(self, table: str, rows: "Sequence[Row]") -> None:
        """Insert rows that all have the same columns; returns once they are written."""
        if rows:
            self.insert_in_turn(deque([Insert(table, rows)]))

    def insert_in_turn(self, waiting: deque[Insert]) -> None:
        """Insert one after the other, and remove what is written from `waiting`; after an error it holds the rest.

        While the server works on one insert, a thread encodes the next.
        """
        with ThreadPoolExecutor(1, "clickhouse-encode") as encoder:
            bodies: deque[Future[bytes]] = deque()
            while waiting:
                insert = waiting[0]
                with self._raising_ours(f"insert of {len(insert.rows)} rows into {insert.table}"):
                    while len(bodies) < min(AHEAD, len(waiting)):
                        bodies.append(encoder.submit(self.encoding(waiting[len(bodies)])))
                    self.send(bodies[0].result(), insert.token)
                waiting.popleft()
                bodies.popleft()

    def encoding(self, insert: Insert) -> Callable[[], bytes]:
        """Return the function that encodes an insert; it needs no connection and may run in another thread."""
        from rollbus.consumers.clickhouse.store.columns import encode  # it knows every record; who only asks, none

        client = self._connect()
        return partial(encode, insert.table, insert.rows, self._types(client, insert.table), client.write_compression)

    def send(self, body: bytes, token: str | None = None) -> None:
        """Send an encoded insert; returns once it is written."""
        settings: dict[str, Any] = {**INSERT_SETTINGS, **(cluster.INSERT_SETTINGS if self.cluster else {})}
        if token is not None:
            settings["insert_deduplication_token"] = token
        client = self._connect()
        settings |= {name: value for name, value in INSERT_SETTINGS_IF_KNOWN.items() if name in client.server_settings}
        client.raw_insert("", insert_block=body, settings=settings, compression=client.write_compression)

    def close(self) -> None:
        """Close the connection; the next use opens another."""
        client, self._client = self._client, None
        self._type_names.clear()
        if client is not None:
            client.close()

    def _connect(self) -> Client:
        if self._client is None:
            self._client = clickhouse_connect.get_client(
                host=self._settings.host,
                port=self._settings.port,
                username=self._settings.user,
                password=self._settings.password.get_secret_value(),
                database=self._database,
                secure=self._settings.secure,
                send_receive_timeout=self._settings.timeout_s,
                autogenerate_session_id=False,
                tz_mode="aware",  # a time without its zone is read as one of the reader's
                query_retries=0,
            )
        return self._client

    def _types(self, client: Client, table: str) -> dict[str, ClickHouseType]:
        from rollbus.consumers.clickhouse.store.columns import column_type

        if table not in self._type_names:
            sql = "SELECT table, name, type FROM system.columns WHERE database = {database:String}"
            for table_name, name, type_name in client.query(sql, parameters={"database": self._database}).result_rows:
                self._type_names.setdefault(table_name, {})[name] = type_name
        if table not in self._type_names:
            raise RejectedError(
                f"table {self._database}.{table} does not exist; start the sink, which says how to get it back"
            )
        return {name: column_type(type_name) for name, type_name in self._type_names[table].items()}

    @contextmanager
    def _raising_ours(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ClickHouseError, HTTPError, OSError) as error:
            self.close()
            raise self._our_error(what, error) from error

    def _our_error(self, what: str, error: Exception) -> ServiceError:
        where = f"ClickHouse at {self._settings.host}:{self._settings.port}, database {self._database}"
        message = f"{where}: {what}: {_short_message(error)}"
        code = getattr(error, "code", None)
        if isinstance(error, (HTTPError, OSError)) or (isinstance(error, OperationalError) and code is None):
            return UnavailableError(message)
        if code in PASSING_CODES:
            return UnavailableError(message)
        if code == WRONG_PASSWORD_CODE:
            message += f"; {PASSWORD_ELSEWHERE}"
        if code in NOT_MIGRATED_CODES:
            message += (
                "; the sink creates database and tables when it starts, or says which is lost: `rollbus sink run`"
            )
        return RejectedError(message)


def _short_message(error: Exception) -> str:
    """Return an error's message without the client's wrapping and the parser's hundred alternatives."""
    text = str(error)
    if any(mark in text for mark in NOT_REACHED):
        return (
            "it cannot be reached; does it run (`rollbus status`), and are `clickhouse: host:` and `port:` its address?"
        )
    return SCOPE.sub("", EXPECTED_WORDS.sub("", WRAPPING.sub("", text)))
