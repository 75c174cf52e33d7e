"""Every record has rows, and every row says where it came from."""

import dataclasses
from typing import Any

import pytest

from rollbus.consumers.clickhouse.rows.rows import FILLS, NOT_STORED, fills_of, tables_of, topics_of
from rollbus.consumers.clickhouse.store.migrator import load_migrations
from rollbus.consumers.clickhouse.store.origin import MAX_TIME_MS, Origin
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.schemas.topics import RECORDS, TOPICS
from rollbus.streams.operate.forget import RootedEpisode, exclusions
from tests.builders import make_config, make_started, make_trajectory, make_turn
from tests.consumers.all_rows import rows_of
from tests.consumers.story import story

ORIGIN = Origin("t.", "episode-events", 3, 41, 1_700_000_000_000)
TABLES = " ".join(statement for migration in load_migrations() for statement in migration.statements)


def row(record: Any, table: str) -> dict[str, Any]:
    (only,) = [columns for name, columns in rows_of(record, ORIGIN) if name == table]
    return only


def test_every_record_type_has_rows_or_a_reason_why_not() -> None:
    assert set(FILLS) | set(NOT_STORED) == set(RECORDS)
    assert not set(FILLS) & set(NOT_STORED)


def test_the_story_holds_every_record_type() -> None:
    assert {type(record) for _, _, record in story()} == {record for topic in TOPICS for record in topic.records}


@pytest.mark.parametrize("record", [record for _, _, record in story()], ids=lambda record: type(record).__name__)
def test_every_row_has_kafka_coordinates_and_a_table_of_its_record_type(record: Any) -> None:
    rows = rows_of(record, ORIGIN)
    assert bool(rows) is (type(record) not in NOT_STORED)
    assert {table for table, _ in rows} <= set(tables_of(type(record)))
    for table, columns in rows:
        assert f"CREATE TABLE IF NOT EXISTS {table}\n" in TABLES
        assert columns["namespace"] == "t."
        assert (columns["kafka_topic"], columns["kafka_partition"], columns["kafka_offset"]) == (
            "episode-events",
            3,
            41,
        )


def test_rows_of_one_table_all_have_the_same_columns() -> None:
    columns: dict[str, list[str]] = {}
    for _, _, record in story():
        for table, values in rows_of(record, ORIGIN):
            assert columns.setdefault(table, list(values)) == list(values)


def test_tokens_and_logprobs_are_packed_in_a_table_of_their_own() -> None:
    tokens = row(make_turn(prompt=(1, 2), completion=(3,), logprobs=(-0.5,)), "turn_tokens")
    assert tokens["prompt_token_ids"] == encode_token_ids([1, 2])
    assert tokens["completion_token_ids"] == encode_token_ids([3])
    assert tokens["logprobs"] == encode_logprobs([-0.5])
    assert "turn_tokens" not in {name for name, _ in rows_of(make_turn(untrainable="no_token_ids"), ORIGIN)}


SAMPLING: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.05,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.2,
    "repetition_penalty": 1.1,
}


def test_the_event_and_the_trajectory_both_keep_how_a_turn_was_sampled() -> None:
    of_event = row(make_turn(**SAMPLING), "turns")
    (turn,) = make_trajectory().turns
    of_trajectory = row(make_trajectory(turns=(dataclasses.replace(turn, **SAMPLING),)), "trajectory_turns")
    assert {name: of_event[name] for name in SAMPLING} == SAMPLING
    assert {name: of_trajectory[name] for name in SAMPLING} == SAMPLING


def test_a_trajectory_row_has_its_versions_and_sampled_tokens() -> None:
    trajectory_row = row(make_trajectory(), "trajectories")
    assert (trajectory_row["tokens"], trajectory_row["sampled_tokens"]) == (5, 2)
    assert (trajectory_row["min_policy_version"], trajectory_row["max_policy_version"]) == (0, 0)
    assert row(make_trajectory(histories=()), "trajectories")["min_policy_version"] is None


@pytest.mark.parametrize(("claimed_ms", "stored_ms"), [(10**17, MAX_TIME_MS), (-5, 0)])
def test_a_clock_that_is_far_off_is_held_to_what_a_column_can_hold(claimed_ms: int, stored_ms: int) -> None:
    event = dataclasses.replace(make_started(), episode_started_at_ms=claimed_ms)
    assert row(event, "episodes")["started_at"] == stored_ms


def test_every_table_is_rebuilt_from_the_topics_that_its_records_are_in() -> None:
    assert topics_of(["rewards"]) == ("episode-events", "aliases")
    assert topics_of(["policy_versions"]) == ("run-log", "policy-versions", "delivery-log")
    assert set(topics_of(["dead_letters"])) == {topic.name for topic in TOPICS}


def test_control_is_stored_from_the_owners_topics_alone() -> None:
    """A producer's word that an episode is forgotten made a rebuild leave out its rows."""
    (forgotten,) = exclusions([RootedEpisode("e1", "e1")], reason="", now_ms=0)
    config = make_config("assembly", AssemblyConfig())
    for record, owners_topic in ((forgotten, "exclusions"), (config, "trajectories")):
        assert fills_of(record, owners_topic)
        assert not fills_of(record, "episode-events")
        assert not fills_of(record, "aliases")
    assert fills_of(dataclasses.replace(forgotten, writer_id="w1"), "episode-events")
