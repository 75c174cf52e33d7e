"""The same tables on a cluster: the engine's parser reads each statement; a row and its repetition share a shard."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from rollbus.consumers.clickhouse.maintain.rebuild import rebuild
from rollbus.consumers.clickhouse.questions.saved_questions import list_queries, run_query
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.cluster import spread, stored_table
from rollbus.consumers.clickhouse.store.migrator import RECORD_TABLE, load_migrations
from rollbus.schemas.errors import ConfigurationError, RejectedError
from tests.consumers.story import story
from tests.services.clickhouse.test_namespaces_apart import ABOUT_THE_STORY
from tests.services.clickhouse.test_queries import new_database, replay_records, write

pytestmark = pytest.mark.services

STATEMENTS = (RECORD_TABLE, *(statement for migration in load_migrations() for statement in migration.statements))
SPREAD = [part for statement in STATEMENTS for part in spread(statement, "prod")]
DISTRIBUTED_TABLE = re.compile(r"\nENGINE = Distributed\(prod, currentDatabase\(\), (\w+)_local, (.*)\)")
KEYS = {table_match[1]: table_match[2] for statement in SPREAD if (table_match := DISTRIBUTED_TABLE.search(statement))}
"""Sharding key by table."""


@pytest.fixture(scope="module")
def filled(clickhouse: tuple[str, int]) -> Iterator[ClickHouse]:
    """One server that is asked as a cluster is, with a small log whose records were delivered twice."""
    client = ClickHouse(new_database(clickhouse).model_copy(update={"cluster": "prod"}))
    for delivery in range(2):
        write(client, "rollbus.", story(), first_offset=1000 * delivery)
    write(client, "replay-x.", replay_records())
    yield client
    client.close()


def ask(client: ClickHouse, sql: str, **values: Any) -> list[tuple[Any, ...]]:
    return client.query(sql, values)[1]


def test_the_engines_parser_reads_every_statement(filled: ClickHouse) -> None:
    for statement in SPREAD:
        ((formatted,),) = ask(filled, "SELECT formatQuery({statement:String})", statement=statement)
        assert "ON CLUSTER prod" in formatted
    with pytest.raises(RejectedError, match="SYNTAX_ERROR"):
        ask(filled, "SELECT formatQuery({statement:String})", statement=SPREAD[0].replace("ENGINE =", "ENGINE IS"))


def test_every_table_is_replicated_and_spread_under_its_own_name(filled: ClickHouse) -> None:
    rows = ask(filled, "SELECT name, engine_full FROM system.tables WHERE database = currentDatabase()")
    assert {name for name, engine in rows if "MergeTree" in engine} == set(KEYS)
    for table in KEYS:
        (local,) = (
            statement
            for statement in SPREAD
            if statement.startswith(f"CREATE TABLE IF NOT EXISTS {table}_local ON CLUSTER prod")
        )
        assert "Replicated" in local
        assert "'/clickhouse/tables/{shard}/{database}/{table}', '{replica}'" in local
        assert "non_replicated" not in local, "repeated inserts are known by their token there too"


def test_a_repeated_row_is_on_the_shard_of_the_first(filled: ClickHouse) -> None:
    orders = dict(ask(filled, "SELECT name, sorting_key FROM system.tables WHERE database = currentDatabase()"))
    for table, key in KEYS.items():
        apart = f"SELECT count() FROM (SELECT 1 FROM {table} GROUP BY {orders[table]} HAVING uniqExact({key}) > 1)"
        assert ask(filled, apart) == [(0,)], table


def test_rows_of_one_episode_are_on_one_shard() -> None:
    by_episode = {table for table, key in KEYS.items() if key == "cityHash64(episode_id)"}
    assert by_episode >= {
        "events",
        "episodes",
        "turns",
        "turn_tokens",
        "rewards",
        "tool_calls",
        "trajectories",
        "scores",
    }


def test_every_question_is_answered_with_the_settings_of_a_cluster(filled: ClickHouse) -> None:
    for query in list_queries():
        run_query(filled._settings, query.name, ABOUT_THE_STORY.get(query.name))


def test_rows_are_deleted_on_every_server() -> None:
    assert stored_table("events", "prod") == "events_local ON CLUSTER prod"
    assert stored_table("events", None) == "events"


def test_a_later_migration_reaches_the_local_and_distributed_tables() -> None:
    assert spread("ALTER TABLE events ADD COLUMN more String", "c") == (
        "ALTER TABLE events_local ON CLUSTER c ADD COLUMN more String",
        "ALTER TABLE events ON CLUSTER c ADD COLUMN more String",
    )
    assert spread("ALTER TABLE events MODIFY TTL a", "c") == ("ALTER TABLE events_local ON CLUSTER c MODIFY TTL a",)


def test_a_statement_that_a_cluster_cannot_run_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="RENAME TABLE a"):
        spread("RENAME TABLE a TO b", "c")


async def test_a_rebuild_on_a_cluster_is_refused_with_what_to_do_instead(filled: ClickHouse) -> None:
    with pytest.raises(ConfigurationError, match=r"reset the offsets of the group rollbus\.sink"):
        await rebuild(filled, None, "rollbus.")  # type: ignore[arg-type]
