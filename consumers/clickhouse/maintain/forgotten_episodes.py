"""The episodes that `rollbus forget` has excluded → the rows that a rebuild leaves out.

`rollbus forget` writes an exclusion of each episode into a topic that is kept for ever, and deletes the episode's rows.
An archive of the log may be older than some exclusions, so those that the tables hold count, too.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollbus.consumers.clickhouse.maintain.forget import (
    NOT_EXCLUDED,
    TABLES,
    Place,
    delete_letters,
    delete_reports,
    empty_errors,
)
from rollbus.consumers.clickhouse.sink.log import Log
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.origin import Row
from rollbus.schemas.codec import decode_if
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.events import AliasDeclared, Excluded
from rollbus.schemas.topics import EXCLUSIONS

FORGOTTEN_TABLE = "forgotten_rebuild"
"""Table of the ids of episodes and trajectories, which exists while a rebuild runs: its statements need thousands."""
_EXCLUSIONS_STORED = (
    "SELECT DISTINCT episode_id FROM events WHERE namespace = {namespace:String} "
    "AND kind = 'Excluded' AND writer_id = 'operator' AND sequence = -1"
)
"""As `forget` writes them. A producer that lost events excludes its episode from training, but its rows stay."""


async def read_exclusions(log: Log) -> frozenset[str]:
    """Return the episodes that the log excludes now; raises UnavailableError."""
    episodes: set[str] = set()
    for partition, span in (await log.spans([EXCLUSIONS.name])).items():
        async for records in log.read(partition, span):
            decoded = (decode_if(record.value, Excluded) for record in records)
            episodes.update(exclusion.episode_id for exclusion in decoded if exclusion is not None)
    return frozenset(episodes)


def find_stored_exclusions(client: ClickHouse, namespace: str) -> frozenset[str]:
    """Return the episodes that the tables hold an exclusion of."""
    return frozenset(str(episode) for (episode,) in client.query(_EXCLUSIONS_STORED, {"namespace": namespace})[1])


def create_forgotten_table(client: ClickHouse, episodes: frozenset[str]) -> None:
    """Create the table of the ids of these episodes and their trajectories; an earlier one is replaced."""
    drop_forgotten_table(client)
    client.command(f"CREATE TABLE {FORGOTTEN_TABLE} (episode_id String) ENGINE = MergeTree ORDER BY episode_id")
    client.insert(
        FORGOTTEN_TABLE,
        [{"episode_id": episode_id} for episode_id in sorted({*episodes, *map(trajectory_id, episodes)})],
    )


def drop_forgotten_table(client: ClickHouse) -> None:
    """Remove the table of the ids."""
    client.command(f"DROP TABLE IF EXISTS {FORGOTTEN_TABLE} SYNC")


def unrestorable_condition(table: str) -> str:
    """Return the condition of the rows that a rebuild from an archive must keep, because it cannot make them again.

    They are those of drops whose error text names a forgotten episode: `forget` removes such a drop from an archive,
    but only its text from the tables.
    """
    return (
        f"unit_id IN (SELECT episode_id FROM {FORGOTTEN_TABLE})" if table in ("drops", "drop_trajectories") else "false"
    )


def forget_texts_in(client: ClickHouse, table: str, episodes: frozenset[str], suffix: str = "") -> int:
    """Do what `forget` does in a table that names episodes only in its texts; return how many rows that changed."""
    forget_texts = {"drops": empty_errors, "dead_letters": delete_letters}.get(table)
    return forget_texts(client, episodes, table + suffix) if forget_texts is not None and episodes else 0


def remaining_condition(table: str) -> str:
    """Return the condition of the rows of no forgotten episode; call `create_forgotten_table` first."""
    if table not in TABLES:
        return "true"
    condition = f"episode_id NOT IN (SELECT episode_id FROM {FORGOTTEN_TABLE})"
    return f"(NOT ({NOT_EXCLUDED}) OR {condition})" if table == "events" else condition


def leave_out_forgotten(table: str, rows: Sequence[Row], episodes: frozenset[str]) -> Sequence[Row]:
    """Return the rows of a table without those of forgotten episodes, but with the exclusions themselves."""
    if table not in TABLES or not episodes:
        return rows
    return [row for row in rows if row["episode_id"] not in episodes or row.get("kind") == Excluded.__name__]


@dataclass(slots=True)
class AliasReports:
    """Deletes the rewards by alias that belong to left-out rows: such a reward does not name its episode."""

    events: set[Place] = field(default_factory=set)
    """Namespace and event id of each left-out reward."""
    aliases: set[Place] = field(default_factory=set)
    """Namespace and alias of each left-out declaration."""

    def add_left_out(self, table: str, rows: Sequence[Row], episodes: frozenset[str]) -> None:
        """Add the event ids or aliases of a table's rows that are left out."""
        for row in rows:
            if row["episode_id"] not in episodes:
                continue
            if table == "rewards":
                self.events.add((row["namespace"], row["event_id"]))
            elif row["kind"] == AliasDeclared.__name__:
                self.aliases.add((row["namespace"], json.loads(row["detail"])["alias"]))

    def delete(self, client: ClickHouse, table: str) -> int:
        """Delete these rewards from a table, and return how many there were."""
        return delete_reports(client, self.events, self.aliases, table)
