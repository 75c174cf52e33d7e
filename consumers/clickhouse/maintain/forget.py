"""Episode ids → their rows deleted from every table that holds texts of an episode; ids in the ledger stay.

The rows of every namespace go, live's and those of its replays. Deleting twice changes nothing, so after a sink that
was behind has written more rows, the command is given again. The namespace of a replay is deleted whole.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TypeVar

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.cluster import SUFFIX, stored_table
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import trajectory_id

TABLES = (
    *("events", "episodes", "episode_ends", "turns", "turn_tokens", "tool_calls", "rewards"),
    *("trajectories", "trajectory_turns", "trajectory_rewards", "histories", "reward_revisions", "scores"),
    "turn_rewards",
)
"""Tables that hold texts, tokens or labels of an episode, by its id."""
TABLES_OF_IDS = (
    *("groups", "group_members", "curriculum_states", "batches", "batch_groups", "steps", "step_members"),
    *(
        "step_outcomes",
        "policy_versions",
        "policy_decisions",
        "evaluations",
        "run_commands",
        "drop_trajectories",
        "producer_reports",
        "data_set_members",
    ),
    *("config_applied", "sink_ranges", "replays", "schema_migrations"),
)
"""They name trajectories, and stay: a step could not be explained without them."""
TABLES_BY_CONTENT = ("dead_letters", "drops")
"""Bytes that could not be read, deleted where an id of the episode is among them; error texts, emptied."""
NEEDLES = 250
"""Ids that one search through bytes may look for, by ClickHouse's limit of 255."""
NOT_EXCLUDED = "kind != 'Excluded'"
"""Condition of the rows of `events` to delete: the exclusion itself stays, since exporters read it."""
IDS_PER_STATEMENT = 2_000
T = TypeVar("T")
Place = tuple[str, str]
"""A namespace, and the id of an event or an alias there."""
_ALIASES = (
    "SELECT DISTINCT namespace, JSONExtractString(detail, 'alias') FROM events WHERE {chosen} "
    "AND kind = 'AliasDeclared'"
)
REPLAYED = "replay-"
"""How the namespaces of replays begin; the rows of other namespaces stay."""
_TABLES = (
    "SELECT name FROM system.tables WHERE database = {database:String} AND (engine = 'Distributed' OR "
    f"engine LIKE '%MergeTree' AND NOT endsWith(name, '{SUFFIX}')) AND name IN "
    "(SELECT table FROM system.columns WHERE database = {database:String} AND name = 'namespace') ORDER BY name"
)


def find_episodes(
    settings: ClickHouseSettings, namespace: str, labels: Mapping[str, str], episode_ids: Iterable[str] = ()
) -> dict[str, str]:
    """Return root by episode id, for the episodes with these labels or ids and all others of the same roots."""
    conditions = []
    if labels:
        conditions.append(f"({with_labels(labels)})")
    if ids := sorted(episode_ids):
        conditions.append(f"(episode_id IN ({_quote_all(ids)}))")
    with closing(ClickHouse(settings)) as client:
        return _find_with_roots(client, namespace, " OR ".join(conditions))


def with_labels(labels: Mapping[str, str]) -> str:
    """Return the condition of rows with all of these labels; ClickHouse reads a label that is not there as empty."""
    return " AND ".join(
        f"mapContains(labels, {_quote(name)}) AND labels[{_quote(name)}] = {_quote(value)}"
        for name, value in sorted(labels.items())
    )


def find_attempts(settings: ClickHouseSettings, namespace: str, episode_ids: Iterable[str]) -> dict[str, str]:
    """Return root by episode id, for the attempts resampled from these episodes and all others of the same roots."""
    attempts: dict[str, str] = {}
    with closing(ClickHouse(settings)) as client:
        for origins in _portions(sorted(map(trajectory_id, episode_ids))):
            condition = f"labels['resampled_from'] IN ({_quote_all(origins)})"
            attempts |= _find_with_roots(client, namespace, condition)
    return attempts


def _find_with_roots(client: ClickHouse, namespace: str, condition: str) -> dict[str, str]:
    _, rows = client.query(
        "SELECT DISTINCT episode_id, root_episode_id FROM episodes WHERE namespace = {namespace:String} "
        "AND root_episode_id IN (SELECT root_episode_id FROM episodes WHERE namespace = {namespace:String} "
        f"AND ({condition}))",
        {"namespace": namespace},
    )
    return {str(episode): str(root) for episode, root in rows}


def delete_rows(settings: ClickHouseSettings, episode_ids: Iterable[str]) -> int:
    """Delete every row of these episodes, empty the error texts about them, and return how many rows that were.

    Raises ServiceError.
    """
    with closing(ClickHouse(settings)) as client:
        return delete_rows_by(client, episode_ids)


def delete_rows_by(client: ClickHouse, episode_ids: Iterable[str]) -> int:
    """Do the same with an open client."""
    deleted, episode_ids = 0, sorted(episode_ids)
    for ids in _portions(episode_ids):
        of_episodes = f"episode_id IN ({_quote_all(ids)})"
        _, reports = client.query(f"SELECT DISTINCT namespace, event_id FROM rewards WHERE {of_episodes}")
        _, aliases = client.query(_ALIASES.format(chosen=of_episodes))
        deleted += delete_reports(client, map(tuple, reports), map(tuple, aliases))
        for table in TABLES:
            condition = f"{of_episodes} AND {NOT_EXCLUDED}" if table == "events" else of_episodes
            deleted += delete_where(client, table, condition)
    return deleted + empty_errors(client, episode_ids, "drops") + delete_letters(client, episode_ids, "dead_letters")


def empty_errors(client: ClickHouse, episode_ids: Iterable[str], table: str) -> int:
    """Empty the error texts about these episodes in the drops, and return how many there were."""
    emptied = 0
    for ids in _portions(sorted(episode_ids)):
        of_units = f"unit_id IN ({_quote_all([*ids, *map(trajectory_id, ids)])}) AND detail != ''"
        emptied += mutate_where(client, table, f"UPDATE detail = '' WHERE {of_units}", of_units)
    return emptied


def delete_letters(client: ClickHouse, episode_ids: Iterable[str], table: str) -> int:
    """Delete the dead letters that name these episodes, and return how many there were."""
    deleted = 0
    for portion in _portions(sorted(episode_ids), NEEDLES // 2):
        ids = _quote_all([*portion, *map(trajectory_id, portion)])
        anywhere = f"multiSearchAny(concat(ifNull(key, ''), ' ', ifNull(value, ''), ' ', message), [{ids}])"
        deleted += delete_where(client, table, anywhere)
    return deleted


def delete_reports(
    client: ClickHouse, events: Iterable[Place], aliases: Iterable[Place], table: str = "rewards"
) -> int:
    """Delete the reports that name only an alias, by their event or by the alias; return how many there were."""
    deleted = 0
    for column, places in (("event_id", events), ("ifNull(alias, '')", aliases)):
        for portion in _portions(sorted(set(places))):
            pairs = ", ".join(f"({_quote_all(place)})" for place in portion)
            deleted += delete_where(client, table, f"episode_id = '' AND (namespace, {column}) IN ({pairs})")
    return deleted


def delete_where(client: ClickHouse, table: str, condition: str) -> int:
    """Delete a table's rows for which a condition holds; return how many there were, once they are gone."""
    return mutate_where(client, table, f"DELETE WHERE {condition}", condition)


def mutate_where(client: ClickHouse, table: str, mutation: str, condition: str) -> int:
    """Change a table's rows for which a condition holds; return how many there were, once it is done."""
    _, ((count,),) = client.query(f"SELECT count() FROM {table} WHERE {condition}")
    if count:
        client.command(f"ALTER TABLE {stored_table(table, client.cluster)} {mutation} SETTINGS mutations_sync = 2")
    return int(count)


def _portions(items: Sequence[T], size: int = IDS_PER_STATEMENT) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _quote_all(texts: Iterable[str]) -> str:
    return ", ".join(map(_quote, texts))


def _quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def delete_namespace(settings: ClickHouseSettings, namespace: str) -> int:
    """Delete every row of a replay's namespace, and return how many there were; raises ServiceError."""
    if not namespace.startswith(REPLAYED):
        raise ConfigurationError(f"{namespace} is not the namespace of a replay; its rows stay")
    with closing(ClickHouse(settings, database="default")) as client:
        _, tables = client.query(_TABLES, {"database": settings.database})
        return sum(
            delete_where(client, f"{settings.database}.{table}", f"namespace = '{namespace}'") for (table,) in tables
        )
