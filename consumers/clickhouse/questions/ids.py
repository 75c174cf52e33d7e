"""Whether an id that a question was asked about is there; another is refused by name, with those that are near.

A question's header says what its parameter names: `-- id id = trajectory, episode, group`. With `or offset`, a place
given by that parameter does as well. The check is made only where a question has no rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollbus.schemas.errors import ConfigurationError

if TYPE_CHECKING:
    from rollbus.consumers.clickhouse.store.client import ClickHouse

NEAR = 3
"""How many ids that begin alike are offered."""
ALIKE = 4
"""How many characters they share at most; of a short id its first half."""


@dataclass(frozen=True, slots=True)
class NamedThing:
    """Where ids of one kind are."""

    tables: tuple[tuple[str, str], ...]
    """Tables and their column of the id."""
    of_run: bool = False
    """Whether it belongs to a run."""
    is_namespace: bool = False
    """Whether it is the namespace of rows itself, and belongs to none."""


KINDS: Mapping[str, NamedThing] = {
    "episode": NamedThing((("events", "episode_id"),)),
    "trajectory": NamedThing((("trajectories", "trajectory_id"), ("drop_trajectories", "trajectory_id"))),
    "group": NamedThing((("groups", "group_id"), ("group_members", "group_id")), of_run=True),
    "event": NamedThing((("events", "event_id"),)),
    "step": NamedThing((("steps", "step"),), of_run=True),
    "replay": NamedThing(
        (("replays", "replay_namespace"), ("scores", "namespace"), ("batch_groups", "namespace")), is_namespace=True
    ),
}


_BY_ALIAS = """
    SELECT episode_id FROM events
    WHERE namespace = {namespace:String} AND kind = 'AliasDeclared' AND JSONExtractString(detail, 'alias') = {id:String}
    ORDER BY occurred_at DESC LIMIT 1"""


@dataclass(frozen=True, slots=True)
class IdParameter:
    """A parameter that names a thing."""

    name: str
    kinds: tuple[str, ...]
    other: str | None = None
    """Another parameter, not below 0 where it is given, that says which thing is meant."""


class UnknownIdError(ConfigurationError):
    """An id that names nothing, or none at all."""


def require_id(client: "ClickHouse", parameter: IdParameter, values: Mapping[str, Any]) -> None:
    """Raise UnknownIdError unless a question's value names something; 0 of a number asks for the newest."""
    value, kinds = values[parameter.name], " or ".join(parameter.kinds)
    if parameter.other is not None and values[parameter.other] >= 0:
        raise UnknownIdError(f"no {kinds} is at that {parameter.other}: {_describe_place(values)}")
    if value == "":
        raise UnknownIdError(f"say which {kinds}: `--param {parameter.name}=…`")
    if value == 0 or any(_is_there(client, KINDS[kind], value, values) for kind in parameter.kinds):
        return
    near = [name for kind in parameter.kinds for name in _find_near(client, KINDS[kind], value, values)]
    of_run = f" of run {values['run']!r}" if all(KINDS[kind].of_run for kind in parameter.kinds) else ""
    hint = f"; there are {', '.join(dict.fromkeys(near))}" if near else ""
    raise UnknownIdError(f"no {kinds} {value!r}{of_run} in namespace {values['namespace']!r}{hint}")


def find_episode_by_alias(client: "ClickHouse", parameter: IdParameter, values: Mapping[str, Any]) -> str | None:
    """Return the episode that the agent gave this name last, where a question takes an episode; None if none has it."""
    value = values[parameter.name]
    if "episode" not in parameter.kinds or not isinstance(value, str) or not value:
        return None
    rows = client.query(_BY_ALIAS, _bind(values, value))[1]
    return str(rows[0][0]) if rows else None


def _describe_place(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {values[name]}" for name in ("topic", "partition", "offset") if name in values)


def _where(thing: NamedThing) -> str:
    if thing.is_namespace:
        return "true"
    of_run = " AND run_id = {run:String}" if thing.of_run else ""
    return f"namespace = {{namespace:String}}{of_run}"


def _is_there(client: "ClickHouse", thing: NamedThing, value: Any, values: Mapping[str, Any]) -> bool:
    for table, column in thing.tables:
        sql = f"SELECT 1 FROM {table} WHERE {_where(thing)} AND toString({column}) = {{id:String}} LIMIT 1"
        if isinstance(value, str):
            sql = sql.replace(f"toString({column})", column)  # by its index
        if client.query(sql, _bind(values, value))[1]:
            return True
    return False


def _find_near(client: "ClickHouse", thing: NamedThing, value: Any, values: Mapping[str, Any]) -> Sequence[str]:
    """Return ids that begin alike; of numbers the newest."""
    table, column = thing.tables[0]
    sql, order = f"SELECT DISTINCT {column} FROM {table} WHERE {_where(thing)}", f"{column} DESC"
    if isinstance(value, str):
        shared = f"substring({{id:String}}, 1, least({ALIKE}, intDiv(length({{id:String}}) + 1, 2)))"
        sql, order = f"{sql} AND startsWith({column}, {shared})", f"editDistance({column}, {{id:String}})"
    sql += f" ORDER BY {order} LIMIT {NEAR}"
    return [str(name) for (name,) in client.query(sql, _bind(values, value))[1]]


def _bind(values: Mapping[str, Any], value: Any) -> dict[str, Any]:
    return {"namespace": values["namespace"], "run": values.get("run", ""), "id": str(value)}
