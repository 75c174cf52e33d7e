"""Saved questions: SQL files with a header that names the answer and the parameters.

A header is the comment lines at the top:

    -- name: reward_by_policy_version
    -- Mean reward of each policy version.
    -- param namespace String = 'rollbus.' : which log
    -- param run String = 'main' : which run
    -- id id = trajectory, episode
    -- chart reward_mean

The last two are optional: which parameter names a thing that must be there (`ids`), and which column a chart draws. The
SQL uses ClickHouse's own parameters, `{run:String}`, so a value never becomes part of the statement. A
run is one of the settings, or one that has rows; any other is refused by name.

A filter that holds for everything while its parameter has its default may stand between two comments. The server would
plan its subqueries all the same, so it is left out then:

    -- if text
    AND ({text:String} = '' OR …)
    -- end
"""

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollbus.consumers.clickhouse.questions.ids import IdParameter, find_episode_by_alias, require_id
from rollbus.schemas.errors import ConfigurationError, RejectedError, ServiceError, nearest

if TYPE_CHECKING:  # to list the questions needs no client
    from rollbus.consumers.clickhouse.store.client import ClickHouse
    from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings

FOLDER = Path(__file__).parents[1] / "queries"
LIMITS = {"max_execution_time": 60, "max_result_rows": 1_000_000, "result_overflow_mode": "throw"}
"""A question that takes longer or returns more needs another wording."""
READ_ONLY = {"readonly": 2}
"""Allows reads and the settings above; 1 would refuse those too."""

_PARAM = re.compile(r"param (\w+) ([\w()]+) = (.+?) : (.+)")
_CHART = re.compile(r"chart (\w+)")
_ID = re.compile(r"id (\w+) = ([\w, ]+?)(?: or (\w+))?")
_FILTER = re.compile(r"^ *-- if ([\w, ]+)\n(.*?)^ *-- end\n", re.MULTILINE | re.DOTALL)
_TABLES = ("groups", "steps", "curriculum_states", "batches", "run_commands", "config_applied", "policy_decisions")
_STORED = " UNION DISTINCT ".join(
    f"SELECT toString(run_id) AS run FROM {table} WHERE namespace = {{namespace:String}} AND run_id != ''"
    for table in _TABLES
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One value that a question needs."""

    name: str
    type: str
    """ClickHouse's."""
    default: str | int | float
    description: str


@dataclass(frozen=True, slots=True)
class SavedQuery:
    """One file."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    sql: str
    chart: str | None = None
    """The column that a chart draws by default."""
    ids: tuple[IdParameter, ...] = ()
    """Parameters that name a thing, which must be there."""

    def statement(self, bound: Mapping[str, Any]) -> str:
        """Return the SQL for these values, without the filters of parameters that have their defaults."""
        changed_names = {parameter.name for parameter in self.parameters if bound[parameter.name] != parameter.default}
        return _FILTER.sub(lambda part: part[2] if changed_names.intersection(part[1].split(", ")) else "", self.sql)


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Columns and rows."""

    columns: list[str] = field(default_factory=list)
    rows: list[tuple[Any, ...]] = field(default_factory=list)


@cache
def list_queries() -> tuple[SavedQuery, ...]:
    """Return every saved question, by name."""
    return tuple(parse_query(path.stem, path.read_text()) for path in sorted(FOLDER.glob("*.sql")))


def load_query(name: str) -> SavedQuery:
    """Return the question; `-` may stand for `_`. Raises ConfigurationError that lists the names."""
    for query in list_queries():
        if query.name == name.replace("-", "_"):
            return query
    names = [query.name for query in list_queries()]
    near = get_close_matches(name.replace("-", "_"), names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
    raise ConfigurationError(f"no saved question {name!r}; {hint}")


def run_query(
    settings: "ClickHouseSettings",
    name: str,
    values: Mapping[str, Any] | None = None,
    *,
    configured: Collection[str] | None = None,
) -> QueryResult:
    """Answer a saved question; values left out have their defaults. Raises ConfigurationError, ServiceError.

    With the runs of the settings, a run that is not one of them and has no rows is refused; so is an id of nothing. An
    episode may be named by its alias.
    """
    from rollbus.consumers.clickhouse.store.client import connection

    query = load_query(name)
    bound = bind(query, values or {})
    if configured is not None and "run" in bound:
        with connection(settings) as client:
            require_run(client, bound["namespace"], bound["run"], configured)
    answer = ask(settings, query.statement(bound), bound)
    if query.ids and not answer.rows:
        with connection(settings) as client:
            for parameter in query.ids:
                episode = find_episode_by_alias(client, parameter, bound)
                if episode is not None:
                    named_values = {**bound, parameter.name: episode}
                    return ask(settings, query.statement(named_values), named_values)
                require_id(client, parameter, bound)
    return answer


def ask(
    settings: "ClickHouseSettings", sql: str, values: Mapping[str, Any] | None = None, *, writes: bool = False
) -> QueryResult:
    """Answer any one statement, with limits on time and size; the server refuses one that changes anything.

    With `writes` it does not.
    """
    from rollbus.consumers.clickhouse.store.client import connection

    with connection(settings) as client:
        columns, rows = client.query(sql, values, LIMITS if writes else LIMITS | READ_ONLY)
        if not columns:  # the server names no columns for an answer without rows
            columns = _read_columns(client, sql, values)
    return QueryResult(columns, rows)


def has_tables(settings: "ClickHouseSettings") -> bool:
    """Whether a sink has made the tables."""
    try:
        ask(settings, "SELECT count() FROM schema_migrations")
    except ServiceError:
        return False
    return True


def _read_columns(client: "ClickHouse", sql: str, values: Mapping[str, Any] | None) -> list[str]:
    """Return the names of a SELECT's columns; nothing for any other statement."""
    try:
        _, described = client.query(f"DESCRIBE (\n{sql.rstrip().removesuffix(';')}\n)", values, LIMITS)
    except RejectedError:
        return []
    return [str(column[0]) for column in described]


def bind(query: SavedQuery, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a value for each parameter; a parameter that is a number may be given as text."""
    parameters = {parameter.name: parameter for parameter in query.parameters}
    if unknown := sorted(set(values) - set(parameters)):
        raise ConfigurationError(
            f"{query.name} has no parameter {', '.join(unknown)}; it has {', '.join(parameters) or 'none'}"
        )
    return {
        name: _value(query, parameter, values.get(name, parameter.default)) for name, parameter in parameters.items()
    }


def _value(query: SavedQuery, parameter: Parameter, value: Any) -> Any:
    convert: type = int if "Int" in parameter.type else float if "Float" in parameter.type else str
    try:
        if value is None:  # as text it would be the word
            raise TypeError
        return convert(value)
    except (TypeError, ValueError):
        raise ConfigurationError(f"{query.name}: {parameter.name} must be {parameter.type}, got {value!r}") from None


def parse_query(stem: str, text: str) -> SavedQuery:
    """Return the question in a file's text; raises ConfigurationError for an incomplete header."""
    header = []
    lines = text.splitlines()
    while lines and lines[0].startswith("--"):
        header.append(lines.pop(0)[2:].strip())
    if not header or header[0] != f"name: {stem}":
        raise ConfigurationError(f"{stem}.sql must begin with '-- name: {stem}'")
    parameters = tuple(_parameter(stem, line) for line in header[1:] if line.startswith("param "))
    charts = [match[1] for line in header[1:] if (match := _CHART.fullmatch(line))]
    ids = tuple(_id_parameter(match) for line in header[1:] if (match := _ID.fullmatch(line)))
    marked = [line for line in header[1:] if line.startswith("param ") or _CHART.fullmatch(line) or _ID.fullmatch(line)]
    description = [line for line in header[1:] if line not in marked]
    sql = "\n".join(lines).strip().removesuffix(";")
    return SavedQuery(stem, " ".join(description), parameters, sql, charts[0] if charts else None, ids)


def _id_parameter(match: re.Match[str]) -> IdParameter:
    name, kinds, other = match.groups()
    return IdParameter(name, tuple(kind.strip() for kind in kinds.split(",")), other)


def _parameter(stem: str, line: str) -> Parameter:
    match = _PARAM.fullmatch(line)
    if match is None:
        raise ConfigurationError(f"{stem}.sql: '{line}' is not like 'param run String = 'main' : which run'")
    name, type_name, default, description = match.groups()
    return Parameter(name, type_name, ast.literal_eval(default), description)


class UnknownRunError(ConfigurationError):
    """A run that neither the settings nor any row names."""


def stored_runs(client: "ClickHouse", namespace: str) -> list[str]:
    """Return the runs that have rows."""
    _, rows = client.query(f"SELECT run FROM ({_STORED}) ORDER BY run", {"namespace": namespace})
    return [str(name) for (name,) in rows]


def require_run(client: "ClickHouse", namespace: str, run: str, configured: Collection[str]) -> None:
    """Raise UnknownRunError for a run that is not there; a configured one may have no rows yet."""
    if not run or run in configured:
        return
    stored = stored_runs(client, namespace)
    if run not in stored:
        runs = sorted({*stored, *configured})
        raise UnknownRunError(f"no run {run!r} in namespace {namespace!r}; {nearest(run, runs)}")
