"""The list of exclusions in a log → the rows that a rebuild leaves out.

`rollbus forget` writes each episode on a list that the log keeps for ever, and deletes its rows. An archive of the log
may be older than the list, so the exclusions that the tables remember count, too.
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

LIST = "forgotten_rebuild"
"""Table of the ids of episodes and trajectories, which exists while a rebuild runs: its statements need thousands."""
_STORED = (
    "SELECT DISTINCT episode_id FROM events WHERE namespace = {namespace:String} "
    "AND kind = 'Excluded' AND writer_id = 'operator' AND sequence = -1"
)
"""As `forget` writes them. A producer that lost events excludes its episode from training, but its rows stay."""


async def read_list(log: Log) -> frozenset[str]:
    """Return the episodes that are on the list now; raises UnavailableError."""
    episodes: set[str] = set()
    for partition, span in (await log.spans([EXCLUSIONS.name])).items():
        async for records in log.read(partition, span):
            decoded = (decode_if(record.value, Excluded) for record in records)
            episodes.update(exclusion.episode_id for exclusion in decoded if exclusion is not None)
    return frozenset(episodes)


def stored_list(client: ClickHouse, namespace: str) -> frozenset[str]:
    """Return the episodes that the tables remember as forgotten."""
    return frozenset(str(episode) for (episode,) in client.query(_STORED, {"namespace": namespace})[1])


def write_list(client: ClickHouse, episodes: frozenset[str]) -> None:
    """Create the table of the ids of these episodes and their trajectories, in place of an earlier one."""
    drop_list(client)
    client.command(f"CREATE TABLE {LIST} (episode_id String) ENGINE = MergeTree ORDER BY episode_id")
    client.insert(
        LIST, [{"episode_id": episode_id} for episode_id in sorted({*episodes, *map(trajectory_id, episodes)})]
    )


def drop_list(client: ClickHouse) -> None:
    """Remove the table of the ids."""
    client.command(f"DROP TABLE IF EXISTS {LIST} SYNC")


def lacking_condition(table: str) -> str:
    """Return the condition of rows to keep though a rebuild from an archive cannot make them: it has no record of them.

    `forget` takes a drop whose error text names an episode out of an archive; its rows stay in the tables without it.
    """
    return f"unit_id IN (SELECT episode_id FROM {LIST})" if table in ("drops", "drop_trajectories") else "false"


def empty_content(client: ClickHouse, table: str, episodes: frozenset[str], suffix: str = "") -> int:
    """Do what `forget` does in a table that names episodes in its texts alone, and return how many rows that were."""
    forget_texts = {"drops": empty_errors, "dead_letters": delete_letters}.get(table)
    return forget_texts(client, episodes, table + suffix) if forget_texts is not None and episodes else 0


def kept_condition(table: str) -> str:
    """Return the condition of a table's rows that are of no forgotten episode; `write_list` comes before it."""
    if table not in TABLES:
        return "true"
    condition = f"episode_id NOT IN (SELECT episode_id FROM {LIST})"
    return f"(NOT ({NOT_EXCLUDED}) OR {condition})" if table == "events" else condition


def kept_rows(table: str, rows: Sequence[Row], episodes: frozenset[str]) -> Sequence[Row]:
    """Return the rows of a table that are of no forgotten episode, and the exclusions themselves."""
    if table not in TABLES or not episodes:
        return rows
    return [row for row in rows if row["episode_id"] not in episodes or row.get("kind") == Excluded.__name__]


@dataclass(slots=True)
class AliasReports:
    """Finds the rewards by alias that belong to left-out rows: such a reward names no episode itself."""

    events: set[Place] = field(default_factory=set)
    """By namespace and event id."""
    aliases: set[Place] = field(default_factory=set)

    def note_left_out(self, table: str, rows: Sequence[Row], episodes: frozenset[str]) -> None:
        """Note the ids and aliases of a table's rows that are left out."""
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
