"""A question's name and its values → columns and rows that JSON can carry, asked of ClickHouse read-only.

The page asks by name and never sends SQL. Answers are smaller than those of `rollbus sql`: a browser draws them.
"""

import math
import threading
from collections.abc import Mapping
from contextlib import contextmanager
from datetime import date, datetime
from functools import cache
from pathlib import Path
from queue import Empty, LifoQueue
from typing import TYPE_CHECKING, Any

from rollbus.consumers.clickhouse.client_clickhouse import ClickHouse
from rollbus.consumers.clickhouse.saved import SavedQuery, bind, list_queries, parse_query
from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollbus.consumers.clickhouse.settings import ClickHouseSettings

FOLDER = Path(__file__).parent / "questions"
READ_ONLY = {
    "max_execution_time": 20,
    "max_result_rows": 20_000,
    "result_overflow_mode": "throw",
    "readonly": 2,  # reads, and the settings above; 1 would refuse those too
}
CONNECTIONS = 4
"""Questions at a time: a page asks several at once, and ClickHouse answers each with all its threads."""


@cache
def questions() -> Mapping[str, SavedQuery]:
    """Return what can be asked: the saved questions, and those of the page."""
    own = (parse_query(path.stem, path.read_text()) for path in sorted(FOLDER.glob("*.sql")))
    return {query.name: query for query in (*list_queries(), *own)}


class Asking:
    """ClickHouse behind the page. Thread-safe."""

    def __init__(self, settings: "ClickHouseSettings", namespace: str) -> None:
        self._settings = settings
        self._namespace = namespace
        self._idle: LifoQueue[ClickHouse] = LifoQueue()
        self._places = threading.Semaphore(CONNECTIONS)

    def ask(self, name: str, values: Mapping[str, str]) -> tuple[list[str], list[list[Any]]]:
        """Answer one question; raises ConfigurationError for a wrong one, ServiceError if ClickHouse fails."""
        query = questions().get(name)
        if query is None:
            raise ConfigurationError(f"no question {name!r}")
        given: dict[str, Any] = dict(values)
        if any(parameter.name == "namespace" for parameter in query.parameters):
            given.setdefault("namespace", self._namespace)
        bound = bind(query, given)
        with self._client() as client:
            columns, rows = client.query(query.sql, bound, READ_ONLY)
        return columns, [[plain(value) for value in row] for row in rows]

    def close(self) -> None:
        """Close the connections that are idle."""
        while True:
            try:
                self._idle.get_nowait().close()
            except Empty:
                return

    @contextmanager
    def _client(self) -> "Iterator[ClickHouse]":
        with self._places:
            try:
                client = self._idle.get_nowait()
            except Empty:
                client = ClickHouse(self._settings)
            try:
                yield client
            finally:
                self._idle.put(client)


def plain(value: Any) -> Any:
    """Return a value as JSON has it; a number that is none becomes null, bytes that are no text become hex."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)
