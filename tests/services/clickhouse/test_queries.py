"""Every saved question on ClickHouse's real engine: on an empty database, and on one whose answers are known."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from rollbus.consumers.clickhouse.questions.ids import IdParameter, UnknownIdError
from rollbus.consumers.clickhouse.questions.saved_questions import (
    SavedQuery,
    UnknownRunError,
    ask,
    list_queries,
    load_query,
    run_query,
)
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import load_migrations, migrate, read_applied
from rollbus.consumers.clickhouse.store.origin import Origin, Row
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.health.funnel.counting import count_run
from rollbus.health.funnel.funnel import draw_funnel
from rollbus.health.funnel.numbers import FunnelSettings
from rollbus.local.process.ports import find_free_port
from rollbus.schemas.errors import ConfigurationError, RejectedError, UnavailableError
from rollbus.schemas.ids import event_id, trajectory_id
from rollbus.schemas.records.config import AssemblyConfig, GroupingConfig, RunConfig
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.records.drops import Drop, DropReason
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.groups import GroupMember
from rollbus.schemas.records.steps import DroppedMember, TrainedMember
from rollbus.schemas.records.trajectories import Reward, TurnReward
from rollbus.streams.stages.grouping.stage import GroupingStage
from rollbus.trainer.loop.accounting import StepFacts, record_skipped_step
from rollbus.trainer.loop.door import DoorResult
from rollbus.ui.page_questions import Asking
from tests.builders import (
    MINUTE_MS,
    START_MS,
    make_alias,
    make_alias_reward,
    make_closed,
    make_command,
    make_config,
    make_episode,
    make_group,
    make_letter,
    make_member,
    make_reward,
    make_score,
    make_started,
    make_step,
    make_tool,
    make_trajectory,
    make_turn,
    make_version,
)
from tests.consumers.all_rows import rows_of
from tests.consumers.story import Record, story
from tests.services.databases import name_database
from tests.stepper import Stepper
from tests.trainer.scenario import make_batch

pytestmark = pytest.mark.services

NAMESPACE = "rollbus."


def new_database(clickhouse: tuple[str, int]) -> ClickHouseSettings:
    """Make a database with all tables; return how it is reached."""
    migrate(settings := name_database(clickhouse, "t"))
    return settings


@pytest.fixture(scope="module")
def empty(clickhouse: tuple[str, int]) -> ClickHouseSettings:
    return new_database(clickhouse)


@pytest.fixture(scope="module")
def filled(clickhouse: tuple[str, int]) -> Iterator[ClickHouseSettings]:
    """The story and what belongs to it, each of its records delivered twice at different offsets."""
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    for delivery in range(2):
        write(client, NAMESPACE, [*story(), *beside_the_story()], first_offset=delivery * 1000)
    write(client, "replay-x.", replay_records())
    yield settings
    client.close()


def write(
    client: ClickHouse, namespace: str, records: list[Record], first_offset: int = 0, at_ms: int = START_MS
) -> None:
    """Write the rows of records, at offsets from the first one on, a millisecond after one another."""
    tables: dict[str, list[Row]] = {}
    for offset, (topic, _, record) in enumerate(records):
        origin = Origin(namespace, topic, 0, first_offset + offset, at_ms + offset)
        for table, row in rows_of(record, origin):
            tables.setdefault(table, []).append(row)
    for table, rows in tables.items():
        if columns := columns_of(client, table):  # none in a database of before the table
            client.insert(table, [{name: value for name, value in row.items() if name in columns} for row in rows])


def columns_of(client: ClickHouse, table: str) -> set[str]:
    sql = "SELECT name FROM system.columns WHERE database = currentDatabase() AND table = {table:String}"
    return {name for (name,) in client.query(sql, {"table": table})[1]}


def beside_the_story() -> list[Record]:
    """A third step, from version 0 to 1, which both have played."""
    began_ms = START_MS + 7 * MINUTE_MS
    step = make_step(3, base_version=0, policy_version=1, started_at_ms=began_ms, completed_at_ms=began_ms + MINUTE_MS)
    return [("training-steps", "main", step)]


def replay_records() -> list[Record]:
    """A replay of e1 with another reward, e2 with the same, and of an episode that live has not."""
    rewards = {trajectory_id("e1"): 1.0, trajectory_id("e2"): 1.0, "t-new": 0.0}
    return [("scores", "k", make_score(name, value)) for name, value in rewards.items()]


def answer(settings: ClickHouseSettings, name: str, **values: Any) -> list[dict[str, Any]]:
    table = run_query(settings, name, values)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@pytest.mark.parametrize("name", [query.name for query in list_queries()])
def test_every_question_has_an_answer_on_an_empty_database(empty: ClickHouseSettings, name: str) -> None:
    if any(parameter.kinds != ("step",) for parameter in load_query(name).ids):
        with pytest.raises(UnknownIdError):
            answer(empty, name)
        return
    rows = answer(empty, name)
    assert rows == [] or all(row.get("trajectories", 0) == 0 for row in rows)


def test_an_answer_without_rows_has_its_columns(empty: ClickHouseSettings) -> None:
    table = ask(empty, "SELECT step, 1 AS one FROM steps WHERE run_id = {run:String};\n", {"run": "main"})
    assert (table.columns, table.rows) == (["step", "one"], [])
    assert "error_class" in run_query(empty, "dead_letters_by_class").columns
    assert ask(empty, "SHOW TABLES LIKE 'no such table'").rows == []


@pytest.mark.parametrize("query", [query for query in list_queries() if query.chart], ids=lambda query: query.name)
def test_the_column_of_a_chart_is_a_number(filled: ClickHouseSettings, query: SavedQuery) -> None:
    for row in answer(filled, query.name):
        assert isinstance(row[query.chart or ""], (int, float, type(None)))


def test_reward_is_grouped_by_the_version_that_sampled_it(filled: ClickHouseSettings) -> None:
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


def make_removal(run: str) -> RunCommand:
    return RunCommand(run_id=run, command="removed", command_id=f"removed {run}")


def test_waiting_trajectories_of_a_removed_run_are_dropped_until_it_returns(clickhouse: tuple[str, int]) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    write(client, NAMESPACE, [*story(), *beside_the_story()])
    before = answer(settings, "fate_of_every_trajectory")
    write(client, NAMESPACE, [("run-log", "main", make_removal("main"))], 5000, START_MS + 10_000)
    removed = {
        (row["fate"], row["reason"]): row["trajectories"] for row in answer(settings, "fate_of_every_trajectory")
    }
    pending = sum(row["trajectories"] for row in before if row["fate"] == "pending")
    assert (removed["dropped", "run_removed"], ("pending", "") in removed) == (pending, False)
    back = make_config("grouping", RunConfig(), run_id="main")
    write(client, NAMESPACE, [("scores", "", back)], 6000, START_MS + 20_000)
    assert answer(settings, "fate_of_every_trajectory") == before
    client.close()


def test_staleness_counts_trained_lags_and_what_was_too_old(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "staleness")
    assert [(row["lag"], row["trajectories"], row["sampled_tokens"]) for row in rows] == [
        ("0", 2, 4),
        ("1", 2, 4),
        ("stale", 1, None),
    ]
    assert sum(row["share"] for row in rows) == pytest.approx(1)


def test_groups_without_signal_are_counted_apart(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "groups_without_signal")
    assert [
        (row["policy_version"], row["groups"], row["without_signal"], row["all_failed"], row["all_solved"])
        for row in rows
    ] == [(0, 1, 0, 0, 0), (1, 2, 1, 0, 1)]


def test_the_members_of_a_step_are_a_line_each(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "lineage_of_step")
    assert [(row["group"], row["episode_id"], row["fate"], row["reward"]) for row in rows] == [
        (0, "e1", "trained", 0),
        (0, "e2", "trained", 1),
        (1, "e5", "trained", 0),
        (1, "e6", "trained", 1),
        (1, "e9", "dropped: stale", 1),
    ]


def test_a_step_is_traced_to_the_events_behind_it(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "events_of_step")
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


def test_the_events_behind_a_step_are_in_the_order_of_the_log_though_a_clock_went_back(
    clickhouse: tuple[str, int],
) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    turns = [make_turn("e1", number, at_ms=START_MS - 1000 * number) for number in (1, 2)]
    turn = replace(make_trajectory("e1").turns[0], event_id=turns[0].event_id)
    member = TrainedMember(trajectory_id=trajectory_id("e1"), group_id="g1", lag=0, advantage=1.0, sampled_tokens=2)
    records: list[Record] = [("episode-events", "e1", event) for event in (make_started("e1"), *turns)]
    records += [("trajectories", "e1", make_trajectory("e1", turns=(turn,)))]
    write(client, NAMESPACE, [*records, ("training-steps", "main", make_step(1, trained=(member,)))])
    client.close()
    assert [row["kafka_offset"] for row in answer(settings, "events_of_step")] == [0, 1, 2]


def test_why_shows_the_prompt_that_came_first_though_a_clock_went_back(clickhouse: tuple[str, int]) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    records: list[Record] = []
    for name in ("e1", "e2"):
        said = (f"opening of {name}", f"later in {name}")
        turns = [
            make_turn(
                name, number, at_ms=START_MS - 1000 * number, added_messages=(Message(role="user", content=text),)
            )
            for number, text in enumerate(said, 1)
        ]
        drawn = make_trajectory(name).turns[0]
        members = tuple(replace(drawn, event_id=turn.event_id) for turn in turns)
        records += [("episode-events", name, turn) for turn in turns]
        records += [("trajectories", name, make_trajectory(name, turns=members))]
    mismatch = Drop(
        unit="trajectory",
        unit_id=trajectory_id("e2"),
        trajectory_ids=(trajectory_id("e2"),),
        run_id="main",
        stage="grouping",
        reason="group_mismatch",
        detail=f"its group began with prompt 1 ({trajectory_id('e1')}), and this has prompt 2",
        dropped_at_ms=START_MS,
    )
    write(client, NAMESPACE, [*records, ("drops", "main", mismatch)])
    client.close()
    rows = {row["what"]: row["detail"] for row in answer(settings, "why_not_trained", id="e2")}
    assert "opening of e2" in rows["its prompt"]
    assert "opening of e1" in rows["prompt of its group"]


def test_the_rewards_of_a_step_are_listed_by_member_and_report(clickhouse: tuple[str, int]) -> None:
    settings = new_database(clickhouse)
    client, name = ClickHouse(settings), trajectory_id("e1")
    given = {"first": 0.0, "second": 1.0, "wrong": 5.0, "late": -1.0}
    reports = [
        replace(make_reward("e1", value, sequence=sequence, source="user"), event_id=key)
        for sequence, (key, value) in enumerate(given.items())
    ]
    right = make_reward("e1", 2.0, sequence=7, source="user", supersedes="wrong")
    reports.insert(3, replace(right, event_id="right"))
    in_force = [
        Reward(event_id=report.event_id, name="reward", value=report.value or 0.0, source="user")
        for report in reports
        if report.event_id in ("first", "second", "right")
    ]
    member = replace(make_member(name, 2.0), episode_id="e1", components={"reward": 2.0, "length": -0.1})
    group = make_group("g1", members=(member,))
    trained = TrainedMember(trajectory_id=name, group_id="g1", lag=0, advantage=0.5, sampled_tokens=3)
    decided: list[Record] = [
        ("trajectories", "k", make_trajectory("e1", rewards=tuple(in_force))),
        ("run-log", "main", group),
        ("training-steps", "main", make_step(2, trained=(trained,))),
    ]
    report_records: list[Record] = [("episode-events", "e1", report) for report in reports]
    write(client, NAMESPACE, [*report_records[:4], *decided, *report_records[4:]])
    rows = answer(settings, "rewards_of_step", step=2)
    client.close()
    assert [(row["component"], row["value"], row["source"], row["state"]) for row in rows] == [
        ("length", -0.1, "score", "in force"),
        ("reward", 0.0, "user", "earlier"),
        ("reward", 1.0, "user", "earlier"),
        ("reward", 5.0, "user", "superseded"),
        ("reward", 2.0, "user", "in force"),
        ("reward", -1.0, "user", "too late"),
    ]
    assert {(row["episode_id"], row["reward"]) for row in rows} == {("e1", 2.0)}
    assert rows[1]["at"] is not None


IDS = [(query.name, parameter) for query in list_queries() for parameter in query.ids]


@pytest.mark.parametrize(("name", "parameter"), IDS, ids=lambda value: getattr(value, "name", value))
def test_an_unknown_id_is_refused_by_name(filled: ClickHouseSettings, name: str, parameter: IdParameter) -> None:
    is_number = parameter.kinds == ("step",)
    with pytest.raises(UnknownIdError, match=r"no .* in namespace 'rollbus\.'"):
        answer(filled, name, **{parameter.name: 99 if is_number else "no-such"})
    if not is_number:
        with pytest.raises(UnknownIdError, match=f"say which .*--param {parameter.name}="):
            answer(filled, name, **{parameter.name: ""})


def test_every_question_about_an_id_says_what_it_names() -> None:
    taken = {"id", "episode", "group", "step", "trajectory", "event", "replay", "other"}
    marked = {query.name: {parameter.name for parameter in query.ids} for query in list_queries()}
    for query in list_queries():
        assert {parameter.name for parameter in query.parameters} & taken == marked[query.name]


def test_a_mistyped_id_is_answered_with_those_that_begin_alike(filled: ClickHouseSettings) -> None:
    turn = event_id("e5", "w1", 1)
    with pytest.raises(UnknownIdError, match=turn):
        answer(filled, "lineage_of_event", id=turn[:-1] + "?")
    with pytest.raises(UnknownIdError, match="no event is at that offset"):
        answer(filled, "lineage_of_event", offset=77_777)
    with pytest.raises(UnknownIdError, match="there are 3, 2, 1"):
        answer(filled, "lineage_of_step", step=99)


def test_an_open_episode_is_in_every_answer_about_fates(clickhouse: tuple[str, int]) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    write(client, NAMESPACE, story())
    before = {row["fate"]: row["trajectories"] for row in answer(settings, "fate_of_every_trajectory")}
    opened = make_episode("e77")[:2]
    config = make_config("assembly", AssemblyConfig(inactivity_ms=60_000, pause_ms=90_000))
    write(client, NAMESPACE, [("episode-events", "e77", event) for event in opened], first_offset=500)
    paused = [make_started("e79"), replace(make_closed("e79", 1), paused=True)]
    write(client, NAMESPACE, [("episode-events", "e79", event) for event in paused], first_offset=550)
    write(client, NAMESPACE, [("episode-events", "", config)], first_offset=600)
    dropped = Drop(unit="episode", unit_id="e78", reason="excluded", stage="assembly", dropped_at_ms=START_MS)
    write(client, NAMESPACE, [("drops", "e78", dropped)], first_offset=700)
    client.close()
    row, waiting = answer(settings, "open_episodes")
    assert (row["episode_id"], row["is_paused"], waiting["episode_id"], waiting["is_paused"]) == ("e77", 0, "e79", 1)
    assert row["given_up_at"] - row["newest_event_at"] == timedelta(milliseconds=60_000)
    assert waiting["given_up_at"] - waiting["newest_event_at"] == timedelta(milliseconds=90_000)
    (why,) = answer(settings, "why_not_trained", id="e79")
    assert why["what"] == "open: it has paused, and nothing has resumed it"
    (why,) = answer(settings, "why_not_trained", id="e77")
    assert why["what"] == "open: it has not ended"
    assert "without another it is given up at" in why["detail"]
    fates = answer(settings, "fate_of_every_trajectory")
    assert [(row["reason"], row["trajectories"]) for row in fates if row["fate"] == "open"] == [("", 1), ("paused", 1)]
    assert fates[-1]["trajectories"] == before["all"] + 3


def test_an_episode_is_followed_to_its_step(filled: ClickHouseSettings) -> None:
    (row,) = answer(filled, "lineage_of_episode", episode="e5")
    assert (row["group_id"], row["step"], row["fate"], row["lag"], row["policy_version"]) == ("g3", 1, "trained", 1, 2)


def test_one_question_says_why_a_trajectory_was_not_trained(filled: ClickHouseSettings) -> None:
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


def test_why_shows_both_prompts_of_a_group_that_asks_for_equal_ones(clickhouse: tuple[str, int]) -> None:
    settings = new_database(clickhouse)
    client, stepper = ClickHouse(settings), Stepper(GroupingStage(RunConfig(grouping=GroupingConfig(same_prompt=True))))
    named: dict[str, Any] = {"group_id": "g", "group_size": 2}
    scores = [
        make_score(trajectory_id(name), 1.0, episode_id=name, prompt_hash=prompt, **named)
        for name, prompt in (("e1", "monday"), ("e2", "tuesday"))
    ]
    (drop,) = stepper.feed(*scores)
    records: list[Record] = [("drops", "", drop)]
    for name, day in (("e1", "Monday"), ("e2", "Tuesday")):
        turn = make_turn(name, added_messages=(Message(role="user", content=f"It is {day}."),))
        records += [("episode-events", name, turn), ("trajectories", name, make_trajectory(name))]
    write(client, NAMESPACE, records)
    client.close()
    rows = {row["what"]: row["detail"] for row in answer(settings, "why_not_trained", id="e2")}
    assert "Tuesday" in rows["its prompt"]
    assert "Monday" in rows["prompt of its group"]
    assert "tuesday" in rows["dropped: group_mismatch"]


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
    assert (row["after_the_end"], row["revised_a_trajectory"]) == (9, 0), "what revised e8 is not an event of the log"


def test_evaluations_carry_their_intervals(filled: ClickHouseSettings) -> None:
    (row,) = answer(filled, "evaluation_history")
    assert (row["metric"], row["value"], row["low"], row["high"], row["episodes"]) == ("win", 0.55, 0.5, 0.6, 800)
    assert row["set_hash"] == "set-1"


def test_the_life_of_a_version_has_the_numbers_that_it_was_decided_on(filled: ClickHouseSettings) -> None:
    (row,) = answer(filled, "policy_history", version=2)
    assert (row["action"], row["serving"], row["reason"], row["detail"]) == ("promote", 2, "operator", "it is good")
    assert (row["effect"], row["low"], row["high"], row["canary_episodes"]) == (0.25, 0.125, 0.375, 40)
    assert answer(filled, "policy_history", version=1) == []


def test_tokens_are_counted_by_minute(filled: ClickHouseSettings) -> None:
    (row,) = answer(filled, "tokens_per_minute", model="agent")
    assert (row["turns"], row["prompt_tokens"], row["completion_tokens"]) == (18, 9 * (3 + 7), 36)


def test_errors_say_whether_trying_again_can_help(empty: ClickHouseSettings) -> None:
    nobody = ClickHouse(ClickHouseSettings(port=find_free_port()))
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
    assert list(read_applied(client)) == [migration.id for migration in load_migrations()]
    for migration in load_migrations():
        for statement in migration.statements:
            client.command(statement)
    row = {"id": 9999, "name": "from_the_future", "checksum": "x", "duration_ms": 0}
    client.insert("schema_migrations", [row])
    client.close()
    with pytest.raises(ConfigurationError, match="has migration 9999, this rollbus knows up to"):
        migrate(settings)


def test_an_event_is_followed_to_its_step_by_its_id_or_its_place(filled: ClickHouseSettings) -> None:
    turn = event_id("e5", "w1", 1)
    (row,) = answer(filled, "lineage_of_event", id=turn)
    assert (row["kind"], row["episode_id"], row["turn"]) == ("TurnRecorded", "e5", 0)
    assert (row["group_id"], row["batch"], row["step"], row["fate"], row["policy_version"]) == (
        "g3",
        "b0",
        1,
        "trained",
        2,
    )
    place = {name: row[f"kafka_{name}"] for name in ("topic", "partition", "offset")}
    assert answer(filled, "lineage_of_event", **place) == [row]


def test_a_group_that_was_not_trained_says_why(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "why_group_not_trained", group="g2")
    assert [(row["stage"], row["what"], row["trajectories"]) for row in rows] == [
        ("grouping", "closed: full", 2),
        ("curriculum", "seen by window 0", 0),
        ("curriculum", "dropped: no_signal", 2),
    ]
    assert rows[0]["detail"] == "rewards 1 to 1, mean 1, deviation 0: no signal"
    trained = [row["what"] for row in answer(filled, "why_group_not_trained", group="g1")]
    assert trained == ["closed: full", "admitted by window 0", "in batch 0", "trained in step 1"]


def test_the_fates_of_one_users_traffic_are_listed(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "trained_by_label", value="ada")
    assert [(row["fate"], row["reason"], row["step"], row["policy_version"], row["trajectories"]) for row in rows] == [
        ("dropped", "stale", 1, None, 1),
        ("trained", None, 1, 2, 2),
        ("not in a step", None, 0, None, 2),
    ]
    assert answer(filled, "trained_by_label", value="nobody") == []


def test_rewards_by_label_count_each_trajectory_once(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "reward_by_label")
    assert [(row["label"], row["trajectories"], row["trained_share"]) for row in rows] == [
        ("ada", 4, 0.5),
        ("bob", 4, 0.5),
    ]


def test_the_largest_principal_of_a_step_is_listed(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "share_by_source")
    assert {row["source"] for row in rows} == {"ada", "bob"}
    for step in {row["step"] for row in rows}:
        assert sum(row["share"] for row in rows if row["step"] == step) in (0, 1)
    assert [row["kept_out"] for row in rows] == [0] * len(rows)
    assert answer(filled, "share_by_source", label="nobody")[0]["source"] == ""


def test_the_movers_of_the_model_are_listed_with_their_share(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "who_moved_this_model")
    recorders = {row["label"]: row for row in rows if row["influence"] == "recorded"}
    assert {"ada", "bob"} <= set(recorders)
    assert all(0 <= row["largest_share"] <= 1 for row in rows)
    moved = [row for row in recorders.values() if row["trained"]]
    assert sum(row["mean_share"] for row in moved) == pytest.approx(1.0)
    assert any(row["reports"] for row in rows if row["influence"] == "reported")
    assert {row["label"] for row in answer(filled, "who_moved_this_model", label="nobody")} == {""}


def test_two_versions_are_compared_on_the_same_tasks(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "did_step_help", step=3)
    assert [(row["task"], row["episodes_before"], row["episodes_after"]) for row in rows] == [
        ("play", 3, 5),
        ("all", 3, 5),
    ]
    assert rows[0]["change"] == rows[1]["change"] == pytest.approx(0.8 - 2 / 3)
    assert rows[0]["change_low"] < rows[0]["change"] < rows[0]["change_high"]
    assert answer(filled, "did_step_help", step=1) == [], "version 2 has not played yet"


def test_the_component_that_drives_the_rise_comes_first(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "reward_components", versions=1)
    assert [(row["component"], row["change"]) for row in rows] == [
        ("reward", pytest.approx(0.8 - 2 / 3)),
        ("style", 0.0),
    ]
    assert rows[0]["reward_change"] == pytest.approx(0.8 - 2 / 3)


def test_the_ends_of_a_comparison_never_share_a_version(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "reward_components", versions=50)
    assert (rows[0]["component"], rows[0]["change"]) == ("reward", pytest.approx(0.8 - 2 / 3))
    alone = apart(filled, [("scores", "k", make_score("one", 1.0, components={"reward": 1.0}))])
    assert answer(filled, "reward_components", namespace=alone) == [], "one version is not compared with itself"
    three = [
        make_score(str(number), float(number), version=number, components={"reward": float(number)})
        for number in range(3)
    ]
    (row,) = answer(filled, "reward_components", namespace=apart(filled, [("scores", "k", score) for score in three]))
    assert (row["first_mean"], row["last_mean"]) == (0.0, 2.0)


def test_a_record_refused_by_several_consumers_is_counted_once(
    filled: ClickHouseSettings,
) -> None:
    letter = make_letter(stage="sink", error_class="InvalidRecordError", message="the sink's words")
    refused = [
        letter,
        replace(letter, stage="grouping", error_class="UndecodableError", message="the stage's words"),
        replace(letter, stage="observing", error_class="UndecodableError"),
        replace(letter, offset=8),
    ]
    namespace = apart(filled, [("dead-letters", "k", refused_letter) for refused_letter in refused])
    rows = answer(filled, "dead_letters_by_class", namespace=namespace)
    assert [(row["stage"], row["error_class"], row["records"], row["letters"]) for row in rows] == [
        ("grouping", "UndecodableError", 1, 3),
        ("sink", "InvalidRecordError", 1, 1),
    ]
    assert {(row["topic"], row["newest_place"]) for row in rows} == {
        ("rollbus.scores", "0:7"),
        ("rollbus.scores", "0:8"),
    }
    assert (rows[0]["newest_message"], rows[0]["refused_by"]) == (
        "the stage's words",
        ["grouping", "observing", "sink"],
    )


def test_an_unknown_run_is_refused_by_name(filled: ClickHouseSettings) -> None:
    for run in ("main", "planned"):
        run_query(filled, "fates", {"run": run}, configured=["planned"])
    with pytest.raises(UnknownRunError, match=r"no run 'mian' in namespace 'rollbus.'; did you mean 'main'\?"):
        run_query(filled, "fates", {"run": "mian"}, configured=["planned"])
    run_query(filled, "drops_by_reason", {"run": ""}, configured=[])


def test_every_measure_is_grouped_by_version(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "guards_by_policy_version")
    known_and_mean = {(row["component"], row["policy_version"]): (row["known"], row["mean"]) for row in rows}
    assert {component for component, _ in known_and_mean} == {"reward", "style", "tokens"}
    assert known_and_mean["reward", 1][1] == pytest.approx(0.8)
    only = answer(filled, "guards_by_policy_version", component="tokens")
    assert [(row["component"], row["policy_version"]) for row in only] == [("tokens", 0), ("tokens", 1)]


def test_a_replay_is_held_against_what_it_replayed(filled: ClickHouseSettings) -> None:
    (row,) = answer(filled, "live_against_replay", replay="replay-x.")
    assert (row["trajectories"], row["same_reward"], row["other_reward"]) == (9, 1, 1)
    assert (row["only_live"], row["only_replay"]) == (6, 1)
    assert (row["live_reward_mean"], row["replay_reward_mean"]) == (0.5, 1.0)


def test_a_named_replay_is_found_among_other_replays(clickhouse: tuple[str, int]) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    write(client, "replay-x.", replay_records())
    answers = [answer(settings, "live_against_replay", replay="replay-x.")]
    (_, _, manifest), *_ = [story_record for story_record in story() if story_record[0] == "replays"]
    for number in range(2):
        record = replace(manifest, name=str(number), namespace=f"replay-{number}.")
        write(client, NAMESPACE, [("replays", str(number), record)], first_offset=number)
        answers.append(answer(settings, "live_against_replay", replay="replay-x."))
    client.close()
    assert [[row["only_replay"] for row in rows] for rows in answers] == [[3], [3], [3]]
    assert answer(settings, "shadow_against_live", other="replay-x.") != []


def test_pass_at_k_is_the_unbiased_estimate(filled: ClickHouseSettings) -> None:
    rows = {(row["policy_version"], row["k"]): row["pass"] for row in answer(filled, "pass_at_k")}
    assert rows == {(0, 1): pytest.approx(2 / 3), (0, 2): 1, (1, 1): pytest.approx(0.75), (1, 2): 1}


def test_the_worst_step_names_its_groups(filled: ClickHouseSettings) -> None:
    (row,) = answer(filled, "worst_steps", limit=1)
    assert (row["step"], row["metric"], row["groups"], row["trajectories"], row["dropped"]) == (1, 1.5, 2, 5, 1)
    assert sorted(row["group_ids"]) == ["g1", "g3"]
    assert (row["lag_mean"], row["lag_max"], row["reward_mean"]) == (0.5, 1, pytest.approx(0.6))


def test_smoothing_follows_the_versions(filled: ClickHouseSettings) -> None:
    smooth = [row["smoothed"] for row in answer(filled, "smoothed_reward", weight=0.5)]
    assert smooth == [pytest.approx(2 / 3), pytest.approx((2 / 3 + 0.8) / 2)]


def test_rewards_before_and_after_a_version_are_compared(filled: ClickHouseSettings) -> None:
    (row,) = answer(filled, "before_and_after", version=1)
    assert (row["before_count"], row["after_count"], row["before_mean"]) == (3, 5, pytest.approx(2 / 3))
    assert 0 < row["p"] <= 1


def test_windows_tools_lengths_and_steps_have_their_rows(filled: ClickHouseSettings) -> None:
    (window,) = answer(filled, "curriculum_against_reward")
    assert (window["window"], window["groups"], window["admitted"], window["reward_mean"]) == (0, 3, 2, 0.75)
    (tool,) = answer(filled, "tools_against_reward")
    assert (tool["tool"], tool["calls"], tool["errors"]) == ("search", 1, 0)
    (length,) = answer(filled, "length_against_reward")
    assert (length["trajectories"], length["sampled_tokens_mean"], length["cut_off"]) == (8, 2, 0)
    steps = {row["step"]: (row["loss"], row["entropy"], row["grad_norm"]) for row in answer(filled, "step_metrics")}
    assert steps == {1: (0.25, 1.5, None), 3: (None, None, None)}
    assert answer(filled, "untrainable_turns") == []
    assert answer(filled, "unsolved_tasks") == []
    assert [row["best"] for row in answer(filled, "unsolved_tasks", success=2.0)] == [1.0]


def test_refused_turns_are_counted_once_by_model_and_reason(filled: ClickHouseSettings) -> None:
    client = ClickHouse(filled)
    for delivery in range(2):
        client.command(
            "INSERT INTO turns "
            "(namespace, episode_id, event_id, model, server, trainable, untrainable_reason, kafka_offset) "
            "SELECT 'refused.', 'e1', toString(number), concat('agent@', toString(number % 2)), 'http://a:1', "
            f"number > 1, if(number > 1, NULL, 'no_logprobs'), number + {delivery * 10} FROM numbers(8)"
        )
    client.close()
    (row,) = answer(filled, "untrainable_turns", namespace="refused.")
    assert (row["model"], row["reason"], row["turns"], row["share"]) == ("agent", "no_logprobs", 2, 0.25)
    assert row["servers"] == ["http://a:1"]


def test_the_funnel_counts_a_batch_until_its_step_is_closed(clickhouse: tuple[str, int]) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    (batch,) = [record for topic, _, record in story() if topic == "batches"]
    write(
        client, NAMESPACE, [("batches", "main", batch), ("batches", "main", replace(batch, batch_hash="b-2", number=2))]
    )
    write(client, NAMESPACE, [("training-steps", "main", make_step(1, batch_hash=batch.batch_hash))])
    run = count_run(client, NAMESPACE, FunnelSettings(), START_MS).run
    client.close()
    assert (run.step, run.open_batches) == (1, 1)


def test_a_step_is_owed_since_the_first_episode_after_the_newest_step(clickhouse: tuple[str, int]) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    records: list[Record] = [
        ("episode-events", "e1", make_started("e1")),
        ("training-steps", "main", make_step(1)),
        ("episode-events", "e2", make_started("e2")),
        ("episode-events", "e3", make_started("e3")),
    ]
    owed_ms = []
    for minute, record in enumerate(records):
        write(client, NAMESPACE, [record], minute, START_MS + minute * MINUTE_MS)
        run = count_run(client, NAMESPACE, FunnelSettings(), START_MS + 10 * MINUTE_MS).run
        owed_ms.append(run.owed_since_ms)
    client.close()
    assert owed_ms == [START_MS, 0, START_MS + 2 * MINUTE_MS, START_MS + 2 * MINUTE_MS]


def test_the_funnel_does_not_count_a_reward_that_was_retracted(clickhouse: tuple[str, int]) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    records: list[Record] = []
    for name in ("stays", "retracted", "given-again"):
        records += [("episode-events", name, make_started(name)), ("trajectories", name, make_trajectory(name))]
        records += [("scores", name, make_score(trajectory_id(name), 1.0, episode_id=name))]
    for name, revision, value in (("retracted", 1, None), ("given-again", 2, 0.0), ("given-again", 1, None)):
        records += [("scores", name, make_score(trajectory_id(name), value, episode_id=name, revision=revision))]
    write(client, NAMESPACE, records)
    counts = count_run(client, NAMESPACE, FunnelSettings(), START_MS).episodes
    client.close()
    assert {count.reached: count.episodes for count in counts} == {1: 1, 2: 2}


@pytest.mark.parametrize(
    ("commands", "hold_state"),
    [((), ""), (("pause",), "paused"), (("pause", "resume"), ""), (("resume", "stop"), "stopped")],
)
def test_the_funnel_knows_whether_a_run_takes_batches(
    clickhouse: tuple[str, int], commands: tuple[str, ...], hold_state: str
) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    write(client, NAMESPACE, [("run-log", "main", make_command(name, key=name)) for name in commands])
    run = count_run(client, NAMESPACE, FunnelSettings(), START_MS).run
    client.close()
    assert run.held == hold_state


def test_groups_without_a_remaining_member_are_not_waited_for(clickhouse: tuple[str, int]) -> None:
    """A rollback takes what its versions sampled; a step that no group is left for cannot begin."""
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    lost = ("gone-0", "gone-1", "half-0")
    drops = [
        Drop(unit="trajectory", unit_id=name, run_id="main", reason="off_lineage", stage="curriculum",
             trajectory_ids=(name,), dropped_at_ms=START_MS)
        for name in lost
    ]  # fmt: skip
    records: list[Record] = [("run-log", "main", make_group(name)) for name in ("gone", "half", "whole")]
    write(client, NAMESPACE, [*records, *(("drops", drop.unit_id, drop) for drop in drops)])
    run = count_run(client, NAMESPACE, FunnelSettings(), START_MS).run
    client.close()
    assert (run.groups_with_signal, run.waiting_groups) == (3, 2)


def test_traffic_of_a_version_that_nobody_made_is_counted_with_what_to_do(clickhouse: tuple[str, int]) -> None:
    """What says that it is of version 99 passes every stage, and only the trainer can refuse it."""
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    records: list[Record] = [("policy-versions", "agent", make_version(1, 0))]
    members: list[GroupMember] = []
    for name in (f"e{number}" for number in range(4)):
        turn = make_turn(name, 1, version=99)
        records += [("episode-events", name, event) for event in (make_started(name), turn)]
        records += [
            ("trajectories", name, make_trajectory(name)),
            ("scores", name, make_score(trajectory_id(name), 1.0)),
        ]
        members.append(make_member(trajectory_id(name), float(len(members) % 2), version=99))
    groups = tuple(make_group(f"g{place}", members=tuple(members[place : place + 2])) for place in (0, 2))
    batch = make_batch(0, groups)
    refused = tuple(
        DroppedMember(trajectory_id=member.trajectory_id, group_id=group.group_id, reason="off_lineage")
        for group in groups
        for member in group.members
    )
    facts = StepFacts(batch, 1, 1, START_MS, START_MS + 1)
    skipped = record_skipped_step(
        facts, DoorResult((), refused), None, reason="nothing_to_train", fallback=DropReason.STALE
    )
    records += [("run-log", "main", group) for group in groups]
    records += [("batches", "main", batch), *((out.topic.name, out.key, out.record) for out in skipped)]
    write(client, NAMESPACE, records)
    drawn = draw_funnel(count_run(client, NAMESPACE, FunnelSettings(), START_MS), FunnelSettings())
    client.close()
    assert drawn.verdict == (
        "nothing can train: 4 of 4 episodes were sampled by weights that the run does not continue, and none is in a "
        "step → let the agent ask for the served version"
    )
    assert [notice.what for notice in drawn.notices if notice.code == "other_versions"] == [
        "versions 99 of agent answer the agent, and this run never made them: the learner serves no version that the "
        "agent asked for"
    ]


def spoken(turn: str, component: str, value: float | None, signal: str) -> TurnReward:
    return TurnReward(turn_event_id=turn, component=component, value=value, signal=signal, confidence=0.8)


def test_the_next_turns_of_users_are_counted_from_the_newest_scores(clickhouse: tuple[str, int]) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    good = (spoken("t", "next", 1.0, "thanks"), spoken("t", "judge", 0.0, "judge"))
    bad = (spoken("u", "next", 0.0, "correction"), spoken("u", "judge", 0.2, "judge"))
    verdicts = tuple(Reward(event_id=f"r{value}", name="reward", value=value, turn_event_id=None) for value in (1.0,))
    episode = make_trajectory("e1", rewards=verdicts)
    records: list[Record] = [
        ("scores", "k", make_score(trajectory_id("e1"), 1.0, turn_rewards=bad)),
        ("scores", "k", make_score(trajectory_id("e1"), 1.0, revision=1, turn_rewards=good)),
        ("scores", "k", make_score("t2", 0.0, turn_rewards=bad)),
        ("scores", "k", make_score("t3", None, turn_rewards=(spoken("v", "next", None, "unclear"),))),
        ("scores", "k", make_score("t4", 0.0, turn_rewards=good)),
        ("scores", "k", make_score("t4", None, revision=1)),
        ("trajectories", "k", episode),
    ]
    for delivery in range(2):
        write(client, NAMESPACE, records, first_offset=delivery * 1000)
    counted = count_run(client, NAMESPACE, FunnelSettings(), START_MS).next_turns
    client.close()
    assert {(count.kind, count.name): (count.turns, count.matching) for count in counted} == {
        ("signal", "thanks"): (1, 0),
        ("signal", "correction"): (1, 0),
        ("signal", "judge"): (2, 0),
        ("signal", "unclear"): (1, 1),
        ("pair", "judge and next"): (2, 1),
        ("verdict", "next"): (1, 1),
        ("verdict", "judge"): (1, 0),
    }


def test_a_shadow_is_compared_with_live_number_by_number(filled: ClickHouseSettings) -> None:
    rows = answer(filled, "shadow_against_live", other="replay-x.")
    assert {row["what"]: (row["live"], row["shadow"]) for row in rows} == {
        "trajectories scored": (2, 3),
        "mean reward": (0.5, pytest.approx(2 / 3)),
        "groups": (1, 0),
        "groups with signal": (1, 0),
        "groups in batches": (1, 0),
        "trajectories dropped": (0, 0),
    }
    (batch,) = [record for topic, _, record in story() if topic == "batches"]
    client = ClickHouse(filled)
    write(client, "replay-y.", [("batches", "main", batch)])
    client.close()
    alone = {row["what"]: row["shadow"] for row in answer(filled, "shadow_against_live", other="replay-y.")}
    assert (alone["trajectories scored"], alone["groups"]) == (None, 0)


def test_a_shadow_is_compared_with_what_live_is_worth_after_late_verdicts(filled: ClickHouseSettings) -> None:
    """A user's verdict comes after the first score, which has no value."""
    late = [make_score("t1", None, episode_id="e1"), replace(make_score("t1", 1.0, episode_id="e1"), revision=1)]
    namespace = apart(filled, [("scores", "k", score) for score in late])
    shadow = f"replay-late.{namespace}"
    client = ClickHouse(filled)
    write(client, shadow, [("scores", "k", make_score("t1", 0.5, episode_id="e1"))])
    client.close()
    rows = {row["what"]: row for row in answer(filled, "shadow_against_live", namespace=namespace, other=shadow)}
    assert (rows["mean reward"]["live"], rows["mean reward"]["shadow"]) == (1.0, 0.5)


def test_committed_ranges_come_in_the_order_of_their_partitions(filled: ClickHouseSettings) -> None:
    client = ClickHouse(filled)
    client.command(
        "INSERT INTO sink_ranges (namespace, kafka_topic, kafka_partition, from_offset, next_offset, records, "
        "stored, rows, digest) SELECT 'committed.', 'scores', number % 2, number * 10, number * 10 + 10, 9, "
        "8, 8, toString(number) FROM numbers(4)"
    )
    client.close()
    rows = answer(filled, "committed_ranges", namespace="committed.", topic="scores")
    assert [(row["partition"], row["from_offset"], row["next_offset"], row["digest"]) for row in rows] == [
        (0, 0, 10, "0"),
        (0, 20, 30, "2"),
        (1, 10, 20, "1"),
        (1, 30, 40, "3"),
    ]
    assert {(row["records"], row["stored"], row["rows"]) for row in rows} == {(9, 8, 8)}
    assert answer(filled, "committed_ranges", namespace="committed.", topic="batches") == []


EXAMPLES = {"id": trajectory_id("e3"), "episode": "e5", "group": "g2", "value": "ada", "replay": "replay-x."}


def apart(settings: ClickHouseSettings, records: list[Record]) -> str:
    """Write the records under a namespace of their own, and return it."""
    namespace = f"t-{uuid.uuid4().hex[:6]}."
    client = ClickHouse(settings)
    for delivery in range(2):
        write(client, namespace, records, first_offset=delivery * 1000)
    client.close()
    return namespace


def test_a_task_that_was_played_on_one_side_only_does_not_fail_the_rank_test(filled: ClickHouseSettings) -> None:
    scores = [make_score("old", 0.0), make_score("new", 1.0, version=1), make_score("alone", 1.0, task="only-before")]
    namespace = apart(filled, [("scores", "k", score) for score in scores])
    rows = {row["task"]: row for row in answer(filled, "before_and_after", namespace=namespace, version=1)}
    assert (rows["only-before"]["before_count"], rows["only-before"]["after_count"]) == (1, 0)
    assert rows["only-before"]["p"] is None
    assert 0 < rows["play"]["p"] <= 1
    assert [row["p"] for row in answer(filled, "before_and_after", namespace=namespace, version=9)] == [None, None]


def test_a_reward_by_alias_is_one_event_of_its_episode(filled: ClickHouseSettings) -> None:
    records: list[Record] = [("episode-events", "e1", event) for event in make_episode("e1", reward=None)]
    records.append(("aliases", "ticket", make_alias("ticket", "e1")))
    for key in ("taken", "late", "lost"):
        alias_reward = make_alias_reward("ticket", key=key)
        records.append(("aliases", "ticket", alias_reward))
        if key != "lost":
            resolved_reward = replace(
                alias_reward, episode_id="e1", root_episode_id="e1", episode_started_at_ms=START_MS
            )
            records.append(("episode-events", "e1", resolved_reward))
    for key, reason in (("late", "late_event"), ("lost", "unresolved_alias")):
        lost = make_alias_reward("ticket", key=key).event_id
        drop = Drop(unit="event", unit_id=lost, reason=reason, stage="assembly", dropped_at_ms=START_MS)
        records.append(("drops", lost, drop))
    records.append(("trajectories", "k", make_trajectory("e1")))
    namespace = apart(filled, records)
    rows = {row["unit"]: row for row in answer(filled, "accounts", namespace=namespace)}
    events = len(make_episode("e1", reward=None)) + 1 + 3
    row = rows["event"]
    assert (row["emitted"], row["used"], row["dropped"], row["pending"]) == (events, events - 2, 2, 0)
    assert row["dropped_by_reason"] == {"late_event": 1, "unresolved_alias": 1}


def test_a_retracted_reward_is_not_in_a_tools_mean(filled: ClickHouseSettings) -> None:
    first = make_score("t1", 1.0, episode_id="e1")
    taken_back = replace(make_score("t1", None, episode_id="e1"), revision=1)
    tool = make_tool("e1", 9, error="no answer")
    namespace = apart(filled, [("episode-events", "e1", tool), ("scores", "k", first), ("scores", "k", taken_back)])
    (row,) = answer(filled, "tools_against_reward", namespace=namespace)
    assert (row["calls"], row["errors"], row["reward_with_error"]) == (1, 1, None)


def test_turns_without_token_ids_count_by_what_the_model_said(filled: ClickHouseSettings) -> None:
    plain = make_turn("e1", 1, prompt=None, completion=(), untrainable="no_logprobs")
    turns = [replace(plain, prompt_tokens=10, completion_tokens=20), make_turn("e1", 2)]
    namespace = apart(filled, [("episode-events", "e1", turn) for turn in turns])
    for minutes in (1440, 100_000_000):
        (row,) = answer(filled, "tokens_per_minute", namespace=namespace, minutes=minutes)
        assert (row["turns"], row["prompt_tokens"], row["completion_tokens"]) == (2, 13, 22)


def test_tokens_without_a_reward_cost_as_much(filled: ClickHouseSettings) -> None:
    scores = [
        make_score("a", 0.0),
        make_score("b", None, sampled_tokens=1000),
        make_score("c", 1.0, version=1),
    ]
    namespace = apart(filled, [("scores", "k", score) for score in scores])
    rows = answer(filled, "cost_per_reward", namespace=namespace, price=1e6)
    assert [(row["trajectories"], row["sampled_tokens"], row["cost_so_far"]) for row in rows] == [
        (2, 1002, 1002),
        (1, 2, 1004),
    ]
    assert [(row["reward_mean"], row["cost_per_point"]) for row in rows] == [(0.0, None), (1.0, 1004)]


def test_an_episode_that_no_group_took_has_no_reward_of_a_group(filled: ClickHouseSettings) -> None:
    (row,) = answer(filled, "lineage_of_episode", episode="e8")
    assert (row["group_id"], row["reward"], row["advantage"], row["step"]) == ("", None, None, 0)
    (row,) = answer(filled, "lineage_of_event", id=event_id("e8", "w1", 1))
    assert (row["group_id"], row["reward"], row["step"]) == ("", None, 0)


def test_an_episode_that_became_no_trajectory_says_why(filled: ClickHouseSettings) -> None:
    drop = Drop(unit="episode", unit_id="lost", reason="missing_events", stage="assembly", detail="no start came",
                dropped_at_ms=START_MS)  # fmt: skip
    namespace = apart(filled, [("drops", "lost", drop)])
    (row,) = answer(filled, "why_not_trained", namespace=namespace, id="lost")
    assert (row["trajectory_id"], row["stage"], row["what"]) == ("", "assembly", "dropped: missing_events")
    assert row["detail"] == "no start came"


def test_a_step_whose_groups_are_not_written_yet_has_no_mean_reward(filled: ClickHouseSettings) -> None:
    namespace = apart(filled, [record for record in story() if record[0] == "training-steps"])
    for name in ("staleness", "worst_steps"):
        assert {row["reward_mean"] for row in answer(filled, name, namespace=namespace)} == {None}, name


def test_a_run_is_listed_with_the_model_that_it_trains(filled: ClickHouseSettings) -> None:
    other = make_group("g9", run_id="second", model="other")
    namespace = apart(
        filled, [*(record for record in story() if record[0] == "training-steps"), ("run-log", "k", other)]
    )
    asking = Asking(filled, namespace)
    columns, rows = asking.ask("runs", {})
    assert [dict(zip(columns, row, strict=True)) for row in rows] == [
        {"run_id": "main", "newest_step": 2, "model": "agent"},
        {"run_id": "second", "newest_step": 0, "model": "other"},
    ]
