"""Every saved question on ClickHouse's real engine: on an empty database, and on one whose answers are known."""

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from rollbus.consumers.clickhouse import ClickHouseSettings, list_queries, migrate, run_query
from rollbus.consumers.clickhouse.client_clickhouse import ClickHouse
from rollbus.consumers.clickhouse.migrator import applied, load_migrations
from rollbus.consumers.clickhouse.origin import Origin, Row
from rollbus.consumers.clickhouse.rows import rows_of
from rollbus.local.ports import free_port
from rollbus.schemas.errors import ConfigurationError, RejectedError, UnavailableError
from rollbus.schemas.ids import trajectory_id
from tests.builders import START_MS
from tests.consumers.story import story

pytestmark = pytest.mark.services

NAMESPACE = "rollbus."


def new_database(clickhouse: tuple[str, int]) -> ClickHouseSettings:
    host, port = clickhouse
    settings = ClickHouseSettings(host=host, port=port, database=f"queries_{uuid.uuid4().hex[:8]}")
    migrate(settings)
    return settings


@pytest.fixture(scope="module")
def empty(clickhouse: tuple[str, int]) -> ClickHouseSettings:
    return new_database(clickhouse)


@pytest.fixture(scope="module")
def filled(clickhouse: tuple[str, int]) -> Iterator[ClickHouseSettings]:
    """The story, each of its records delivered twice at different offsets."""
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    for delivery in range(2):
        tables: dict[str, list[Row]] = {}
        for offset, (topic, _, record) in enumerate(story()):
            origin = Origin(NAMESPACE, topic, 0, delivery * 1000 + offset, START_MS + offset)
            for table, row in rows_of(record, origin):
                tables.setdefault(table, []).append(row)
        for table, rows in tables.items():
            client.insert(table, rows)
    yield settings
    client.close()


def answer(settings: ClickHouseSettings, name: str, **values: Any) -> list[dict[str, Any]]:
    found = run_query(settings, name, values)
    return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


@pytest.mark.parametrize("name", [query.name for query in list_queries()])
def test_every_question_has_an_answer_on_an_empty_database(empty: ClickHouseSettings, name: str) -> None:
    rows = answer(empty, name)
    assert rows == [] or all(row.get("trajectories", 0) == 0 for row in rows)


def test_reward_is_told_by_the_version_that_sampled_it(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "reward_by_policy_version")
    assert [(row["policy_version"], row["trajectories"]) for row in rows] == [(0, 3), (1, 5)]
    assert [row["reward_mean"] for row in rows] == [pytest.approx(2 / 3), pytest.approx(0.8)]
    assert rows[0]["reward_low"] < rows[0]["reward_mean"] < rows[0]["reward_high"]


def test_the_fates_of_all_trajectories_add_up(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "fate_of_every_trajectory")
    assert [(row["fate"], row["stage"], row["reason"], row["trajectories"]) for row in rows] == [
        ("trained", "", "", 4),
        ("dropped", "curriculum", "no_signal", 2),
        ("dropped", "scoring", "untrainable", 1),
        ("dropped", "trainer", "stale", 1),
        ("pending", "", "", 1),
        ("all", "", "", 9),
    ]
    assert sum(row["trajectories"] for row in rows[:-1]) == rows[-1]["trajectories"]
    assert all(row["more_than_once"] == 0 for row in rows)


def test_each_trajectory_has_one_fate(filled: ClickHouseSettings) -> None:
    fates = {row["episode_id"]: (row["fate"], row["step"], row["reason"]) for row in answer(filled, "fates")}
    assert fates == {
        **dict.fromkeys(("e1", "e2", "e5", "e6"), ("trained", 1, "")),
        **dict.fromkeys(("e3", "e4"), ("dropped", 0, "no_signal")),
        "e7": ("dropped", 0, "untrainable"),
        "e8": ("pending", 0, ""),
        "e9": ("dropped", 0, "stale"),
    }
    assert len(answer(filled, "fates", fate="pending")) == 1


def test_another_run_has_fates_of_its_own(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "fate_of_every_trajectory", run="other")
    assert [(row["fate"], row["reason"], row["trajectories"]) for row in rows] == [
        ("dropped", "untrainable", 1),
        ("pending", "", 8),
        ("all", "", 9),
    ]


def test_staleness_counts_trained_lags_and_what_was_too_old(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "staleness")
    assert [(row["lag"], row["trajectories"], row["sampled_tokens"]) for row in rows] == [
        ("0", 2, 4),
        ("1", 2, 4),
        ("stale", 1, None),
    ]
    assert sum(row["share"] for row in rows) == pytest.approx(1)


def test_groups_without_signal_are_told_apart(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "groups_without_signal")
    assert [
        (row["policy_version"], row["groups"], row["without_signal"], row["all_failed"], row["all_solved"])
        for row in rows
    ] == [(0, 1, 0, 0, 0), (1, 2, 1, 0, 1)]


def test_a_step_is_traced_to_the_events_behind_it(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "lineage_of_step")
    assert {(row["step"], row["batch"]) for row in rows} == {(1, "b0")}
    assert {(row["position"], row["group_id"]) for row in rows} == {(0, "g1"), (1, "g3")}
    assert {row["episode_id"] for row in rows} == {"e1", "e2", "e5", "e6", "e9"}
    e5 = [row for row in rows if row["episode_id"] == "e5"]
    assert sorted(row["kind"] for row in e5) == [
        "EpisodeEnded",
        "EpisodeStarted",
        "RewardReported",
        "TurnRecorded",
        "TurnRecorded",
        "WriterClosed",
    ]
    places = {offset: record for offset, (_, _, record) in enumerate(story())}
    assert all(places[row["kafka_offset"]].event_id == row["event_id"] for row in e5), "the first delivery stands"


def test_an_episode_is_followed_to_its_step(filled: ClickHouseSettings) -> None:
    (row,) = answer(filled, "lineage_of_episode", episode="e5")
    assert (row["group_id"], row["step"], row["fate"], row["lag"], row["policy_version"]) == ("g3", 1, "trained", 1, 2)


def test_why_a_trajectory_was_not_trained_is_one_answer(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "why_not_trained", id="e3")
    assert [(row["stage"], row["what"]) for row in rows] == [
        ("assembly", "assembled"),
        ("scoring", "scored"),
        ("grouping", "in group g2"),
        ("curriculum", "dropped: no_signal"),
    ]
    assert rows[-1]["detail"] == "no_signal at curriculum"
    assert {row["trajectory_id"] for row in answer(filled, "why_not_trained", id="g2")} == {
        trajectory_id("e3"),
        trajectory_id("e4"),
    }


def test_drops_are_counted_once_each(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "drops_by_reason", run="main")
    assert {(row["reason"], row["drops"], row["trajectories"]) for row in rows} == {
        ("no_signal", 1, 2),
        ("untrainable", 1, 1),
        ("stale", 1, 1),
        ("late_event", 1, 0),
    }


def test_feedback_delay_counts_each_report_once(filled: ClickHouseSettings) -> None:
    (row,) = answer(filled, "feedback_delay")
    assert (row["task"], row["reward"], row["reports"], row["p50_ms"]) == ("play", "reward", 9, 30)
    assert (row["after_the_end"], row["revised_a_trajectory"]) == (9, 1)


def test_dead_letters_name_their_newest_place(filled: ClickHouseSettings) -> None:
    (row,) = answer(filled, "dead_letters_by_class")
    assert (row["stage"], row["topic"], row["letters"], row["newest_place"]) == (
        "grouping",
        "rollbus.scores",
        1,
        "0:7",
    )


def test_evaluations_carry_their_intervals(filled: ClickHouseSettings) -> None:
    (row,) = answer(filled, "evaluation_history")
    assert (row["metric"], row["value"], row["low"], row["high"], row["episodes"]) == ("win", 0.55, 0.5, 0.6, 800)


def test_tokens_are_counted_by_minute(filled: ClickHouseSettings) -> None:
    (row,) = answer(filled, "tokens_per_minute", model="agent")
    assert (row["turns"], row["prompt_tokens"], row["completion_tokens"]) == (18, 9 * (3 + 7), 36)


def test_errors_say_whether_trying_again_can_help(empty: ClickHouseSettings) -> None:
    nobody = ClickHouse(ClickHouseSettings(port=free_port()))
    with pytest.raises(UnavailableError, match=r"ClickHouse at 127\.0\.0\.1"):
        nobody.query("SELECT 1")
    client = ClickHouse(empty)
    with pytest.raises(RejectedError):
        client.query("SELECT nothing FROM nowhere")
    with pytest.raises(RejectedError, match="rollbus sink run"):
        ClickHouse(empty, database="absent").query("SELECT 1 FROM events")
    with pytest.raises(RejectedError, match="does not exist"):
        client.insert("nowhere", [{"a": 1}])
    assert client.query("SELECT 1 AS one") == (["one"], [(1,)])
    client.close()


def test_migrations_run_once_and_a_newer_database_is_refused(clickhouse: tuple[str, int]) -> None:
    settings = new_database(clickhouse)
    assert migrate(settings) == []
    client = ClickHouse(settings)
    assert list(applied(client)) == [migration.id for migration in load_migrations()]
    for migration in load_migrations():
        for statement in migration.statements:
            client.command(statement)
    row = {"id": 9999, "name": "from_the_future", "checksum": "x", "duration_ms": 0}
    client.insert("schema_migrations", [row])
    client.close()
    with pytest.raises(ConfigurationError, match="has migration 9999, this rollbus knows up to"):
        migrate(settings)
