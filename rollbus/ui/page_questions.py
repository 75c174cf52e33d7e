"""A question's name and its values → columns and rows that JSON can hold, read from ClickHouse.

The page asks by name and never sends SQL. Its answers are smaller than those of `rollbus sql`: a browser draws them.
"""

import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbus.consumers.clickhouse.questions.output import make_plain
from rollbus.consumers.clickhouse.questions.saved_questions import (
    READ_ONLY,
    SavedQuery,
    bind,
    list_queries,
    parse_query,
    require_run,
)
from rollbus.consumers.clickhouse.store.client import connection
from rollbus.schemas.errors import ConfigurationError, ServiceError

if TYPE_CHECKING:
    from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings

FOLDER = Path(__file__).parent / "questions"
LIMITS = {"max_execution_time": 20, "max_result_rows": 20_000, "result_overflow_mode": "throw", **READ_ONLY}
RUNS = "runs"
CONNECTIONS = 4
"""Questions at a time: a page asks several at once, and ClickHouse uses all its threads for each."""


@cache
def questions() -> Mapping[str, SavedQuery]:
    """Return the questions that can be asked: the saved ones, and those of the page."""
    page_questions = (parse_query(path.stem, path.read_text()) for path in sorted(FOLDER.glob("*.sql")))
    return {query.name: query for query in (*list_queries(), *page_questions)}


def add_configured(rows: list[list[Any]], runs: Mapping[str, str]) -> list[list[Any]]:
    """Return the rows of the question `runs` and the runs of the settings; those that have both come first. Pure."""
    stored = {run: (step, model) for run, step, model in rows}
    ordered = sorted({**runs, **stored}, key=lambda run: (run not in stored, run not in runs))
    entries = {run: stored.get(run, (0, "")) for run in ordered}
    return [[run, step, model or runs.get(run, "")] for run, (step, model) in entries.items()]


class Asking:
    """ClickHouse behind the page. Thread-safe."""

    def __init__(self, settings: "ClickHouseSettings", namespace: str, runs: Mapping[str, str] | None = None) -> None:
        """Ask about a namespace; `runs` are those of the settings with their models: they may have no rows yet."""
        self._settings = settings
        self._namespace = namespace
        self._runs = runs or {}
        self._places = threading.Semaphore(CONNECTIONS)

    def ask(self, name: str, values: Mapping[str, str]) -> tuple[list[str], list[list[Any]]]:
        """Answer one question; raises ConfigurationError for a wrong one, ServiceError if ClickHouse fails.

        A run that neither the settings nor any row names is an UnknownRunError. The runs of the settings are known
        without ClickHouse.
        """
        if name != RUNS:
            return self._ask(name, values)
        try:
            _, stored = self._ask(name, values)
        except ServiceError:
            stored = []
        return ["run_id", "newest_step", "model"], add_configured(stored, self._runs)

    def _ask(self, name: str, values: Mapping[str, str]) -> tuple[list[str], list[list[Any]]]:
        query = questions().get(name)
        if query is None:
            raise ConfigurationError(f"no question {name!r}")
        query_values: dict[str, Any] = dict(values)
        if any(parameter.name == "namespace" for parameter in query.parameters):
            query_values.setdefault("namespace", self._namespace)
        bound = bind(query, query_values)
        with self._places, connection(self._settings) as client:
            if values.get("run"):
                require_run(client, self._namespace, values["run"], self._runs)
            columns, rows = client.query(query.statement(bound), bound, LIMITS)
        return columns, [[make_plain(value) for value in row] for row in rows]
