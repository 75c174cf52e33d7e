"""The list of exclusions in a log → which rows a rebuild leaves out.

`rollbus forget` writes each episode on a list that the log keeps for ever, and deletes its rows. An export may be older
than the list, so what the tables remember of it counts, too.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from rollbus.consumers.clickhouse.chunk_joiner import KafkaRecord
from rollbus.consumers.clickhouse.client_clickhouse import ClickHouse
from rollbus.consumers.clickhouse.forget import KEPT, TABLES, Place, delete_reports
from rollbus.consumers.clickhouse.log_files import Log
from rollbus.consumers.clickhouse.origin import Row
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.events import AliasDeclared, Excluded
from rollbus.schemas.topics import EXCLUSIONS

LIST = "forgotten_rebuild"
"""Table of the ids, which stands as long as a rebuild runs: statements name thousands of them by it."""
_STORED = (
    "SELECT DISTINCT episode_id FROM events WHERE namespace = {namespace:String} "
    "AND kind = 'Excluded' AND writer_id = 'operator' AND sequence = -1"
)
"""As `forget` writes them; a producer that lost events excludes its episode from training, and the rows stay."""


async def read_list(log: Log) -> frozenset[str]:
    """Return the episodes on the list as it is now; raises UnavailableError."""
    found: set[str] = set()
    for partition, span in (await log.spans([EXCLUSIONS.name])).items():
        async for records in log.read(partition, span):
            found.update(record.episode_id for record in _excluded(records))
    return frozenset(found)


def stored_list(client: ClickHouse, namespace: str) -> frozenset[str]:
    """Return the episodes that the tables remember as forgotten."""
    return frozenset(str(episode) for (episode,) in client.query(_STORED, {"namespace": namespace})[1])


def write_list(client: ClickHouse, episodes: frozenset[str]) -> None:
    """Make the table of the ids anew."""
    drop_list(client)
    client.command(f"CREATE TABLE {LIST} (episode_id String) ENGINE = MergeTree ORDER BY episode_id")
    client.insert(LIST, [{"episode_id": episode} for episode in sorted(episodes)])


def drop_list(client: ClickHouse) -> None:
    """Remove the table of the ids."""
    client.command(f"DROP TABLE IF EXISTS {LIST} SYNC")


def stays(table: str) -> str:
    """Return the condition of a table's rows that are not to be forgotten, once the list is written."""
    if table not in TABLES:
        return "true"
    known = f"episode_id NOT IN (SELECT episode_id FROM {LIST})"
    return f"(NOT ({KEPT}) OR {known})" if table == "events" else known


def without(table: str, rows: Sequence[Row], episodes: frozenset[str]) -> list[Row]:
    """Return the rows that are not to be forgotten."""
    if table not in TABLES or not episodes:
        return list(rows)
    return [row for row in rows if row["episode_id"] not in episodes or row.get("kind") == Excluded.__name__]


@dataclass(slots=True)
class LeftReports:
    """What tells the reports by alias of the rows that are left out: those themselves know of no episode."""

    events: set[Place] = field(default_factory=set)
    """By namespace and event id."""
    aliases: set[Place] = field(default_factory=set)

    def take(self, table: str, rows: Sequence[Row], episodes: frozenset[str]) -> None:
        """Take note of what is left out of a table's rows."""
        for row in rows:
            if row["episode_id"] not in episodes:
                continue
            if table == "rewards":
                self.events.add((row["namespace"], row["event_id"]))
            elif row["kind"] == AliasDeclared.__name__:
                self.aliases.add((row["namespace"], json.loads(row["detail"])["alias"]))

    def delete(self, client: ClickHouse, table: str) -> int:
        """Delete these reports, and return how many there were."""
        return delete_reports(client, self.events, self.aliases, table)


def _excluded(records: Sequence[KafkaRecord]) -> list[Excluded]:
    found = []
    for record in records:
        try:
            decoded = decode(record.value or b"")
        except RecordError:
            continue  # the sink has made a dead letter of it
        if isinstance(decoded, Excluded):
            found.append(decoded)
    return found
