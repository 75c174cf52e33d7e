"""Episode ids → their rows deleted from every table that holds what was said; ids in the ledger stay.

The rows go for good, of every namespace: live's and those of its replays. To delete again what is gone already does
nothing, so a sink that was behind is followed by asking once more.
"""

from collections.abc import Iterable, Mapping

from rollbus.consumers.clickhouse.client_clickhouse import ClickHouse
from rollbus.consumers.clickhouse.settings import ClickHouseSettings
from rollbus.schemas.ids import trajectory_id

TABLES = (
    *("events", "episodes", "episode_ends", "turns", "turn_tokens", "tool_calls", "rewards"),
    *("trajectories", "trajectory_turns", "trajectory_rewards", "histories", "reward_revisions", "scores"),
)
"""Groups, batches, steps and drops name trajectories and hold nothing that was said."""
KEPT = "kind != 'Excluded'"
"""Of `events`: the exclusion itself stays, and exporters look at it."""
PORTION = 2_000
"""Ids of one statement."""
Place = tuple[str, str]
"""A namespace, and the id of an event or an alias there."""
_ALIASES = (
    "SELECT DISTINCT namespace, JSONExtractString(detail, 'alias') FROM events WHERE {chosen} "
    "AND kind = 'AliasDeclared'"
)


def find_episodes(
    settings: ClickHouseSettings, namespace: str, labels: Mapping[str, str], episode_ids: Iterable[str] = ()
) -> dict[str, str]:
    """Return root by episode id of every episode with these labels or ids, and of all that belong to the same root."""
    conditions = [f"labels[{_quoted(name)}] = {_quoted(value)}" for name, value in sorted(labels.items())]
    wanted = [" AND ".join(conditions)] if conditions else []
    if ids := sorted(episode_ids):
        wanted.append(f"episode_id IN ({', '.join(map(_quoted, ids))})")
    client = ClickHouse(settings)
    try:
        return _below(client, namespace, " OR ".join(f"({each})" for each in wanted))
    finally:
        client.close()


def find_attempts(settings: ClickHouseSettings, namespace: str, episode_ids: Iterable[str]) -> dict[str, str]:
    """Return root by episode id of what was resampled of these episodes, with all that belongs to the same root."""
    origins = sorted(map(trajectory_id, episode_ids))
    found: dict[str, str] = {}
    client = ClickHouse(settings)
    try:
        for first in range(0, len(origins), PORTION):
            chosen = ", ".join(map(_quoted, origins[first : first + PORTION]))
            found |= _below(client, namespace, f"labels['resampled_from'] IN ({chosen})")
    finally:
        client.close()
    return found


def _below(client: ClickHouse, namespace: str, condition: str) -> dict[str, str]:
    """Return root by episode id of all that belongs to the root of an episode for which a condition holds."""
    _, rows = client.query(
        "SELECT DISTINCT episode_id, root_episode_id FROM episodes WHERE namespace = {namespace:String} "
        "AND root_episode_id IN (SELECT root_episode_id FROM episodes WHERE namespace = {namespace:String} "
        f"AND ({condition}))",
        {"namespace": namespace},
    )
    return {str(episode): str(root) for episode, root in rows}


def delete_rows(settings: ClickHouseSettings, episode_ids: Iterable[str]) -> int:
    """Delete every row of these episodes, and return how many there were; raises ServiceError."""
    client = ClickHouse(settings)
    try:
        return delete_rows_by(client, episode_ids)
    finally:
        client.close()


def delete_rows_by(client: ClickHouse, episode_ids: Iterable[str]) -> int:
    """Do what `delete_rows` does, by a client that is there."""
    ids = sorted(episode_ids)
    deleted = 0
    for first in range(0, len(ids), PORTION):
        chosen = f"episode_id IN ({', '.join(map(_quoted, ids[first : first + PORTION]))})"
        _, reports = client.query(f"SELECT DISTINCT namespace, event_id FROM rewards WHERE {chosen}")
        _, aliases = client.query(_ALIASES.format(chosen=chosen))
        deleted += delete_reports(client, map(tuple, reports), map(tuple, aliases))
        for table in TABLES:
            condition = f"{chosen} AND {KEPT}" if table == "events" else chosen
            deleted += delete_where(client, table, condition)
    return deleted


def delete_reports(
    client: ClickHouse, events: Iterable[Place], aliases: Iterable[Place], table: str = "rewards"
) -> int:
    """Delete the reports of which an alias alone is known, by their events or by the alias; return how many."""
    deleted = 0
    for column, places in (("event_id", sorted(set(events))), ("ifNull(alias, '')", sorted(set(aliases)))):
        for first in range(0, len(places), PORTION):
            pairs = ", ".join(f"({_quoted(of)}, {_quoted(one)})" for of, one in places[first : first + PORTION])
            deleted += delete_where(client, table, f"episode_id = '' AND (namespace, {column}) IN ({pairs})")
    return deleted


def delete_where(client: ClickHouse, table: str, condition: str) -> int:
    """Delete a table's rows for which a condition holds, and return how many there were once they are gone."""
    _, ((count,),) = client.query(f"SELECT count() FROM {table} WHERE {condition}")
    if count:
        client.command(f"ALTER TABLE {table} DELETE WHERE {condition} SETTINGS mutations_sync = 2")
    return int(count)


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
