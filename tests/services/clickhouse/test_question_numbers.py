"""Numbers of the saved questions, by hand: equal names, unequal weights, rewards that come late, go, or are alone."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rollbus.consumers.clickhouse.questions.saved_questions import ask, list_queries
from rollbus.consumers.clickhouse.store.plain_views import make_plain_views
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.steps import TrainedMember
from rollbus.schemas.records.trajectories import Reward, RewardRevised
from tests.builders import (
    MINUTE_MS,
    START_MS,
    make_group,
    make_member,
    make_reward,
    make_score,
    make_started,
    make_step,
    make_tool,
    make_trajectory,
)
from tests.consumers.story import Record, story
from tests.services.clickhouse.test_queries import answer, apart, new_database

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def settings(clickhouse: tuple[str, int]) -> ClickHouseSettings:
    settings = new_database(clickhouse)
    make_plain_views(settings)
    return settings


def test_a_component_named_as_the_score_is_counted_apart_from_it(settings: ClickHouseSettings) -> None:
    """The only component of the default settings is `reward`; here its weight is 2."""
    scores = [make_score(f"t{value}", 2.0 * value, components={"reward": float(value)}) for value in range(3)]
    namespace = apart(settings, [("scores", "k", score) for score in scores])
    rows = answer(settings, "guards_by_policy_version", namespace=namespace)
    assert [(row["component"], row["of"], row["known"], row["mean"]) for row in rows] == [
        ("reward", "component", 3, 1.0),
        ("reward", "score", 3, 2.0),
        ("tokens", "score", 3, 2.0),
    ]


def test_a_tools_latency_is_the_mean_of_its_calls(settings: ClickHouseSettings) -> None:
    calls = [("a", 100, 1), *(("b", 200, number) for number in range(1, 10))]
    records: list[Record] = [
        ("episode-events", episode, replace(make_tool(episode, number), latency_ms=latency_ms))
        for episode, latency_ms, number in calls
    ]
    records.append(("episode-events", "c", replace(make_tool("c", 1), latency_ms=None)))
    (row,) = answer(settings, "tools_against_reward", namespace=apart(settings, records))
    assert (row["calls"], row["latency_ms_mean"]) == (11, pytest.approx((100 + 9 * 200) / 10))


def test_a_replay_of_scores_names_its_trajectories(settings: ClickHouseSettings) -> None:
    """A replay that begins after assembly has scores and groups, and no trajectories."""
    namespace = apart(settings, [record for record in story() if record[0] in ("scores", "run-log")])
    rows = answer(settings, "fates", namespace=namespace)
    episodes = {f"e{number}" for number in (1, 2, 3, 4, 5, 6, 8, 9)}
    assert {(row["trajectory_id"], row["episode_id"], row["task"]) for row in rows} == {
        (trajectory_id(episode), episode, "play") for episode in episodes
    }
    assert {row["ended_at"] for row in rows} == {None}
    sql = (
        f"SELECT trajectory_id, episode_id, task, labels['user'], started_at, policy_version "
        f"FROM {settings.database}_views.fates WHERE namespace = {{namespace:String}} AND run_id = 'main'"
    )
    view = {row[1]: row for row in ask(settings, sql, {"namespace": namespace}).rows}
    assert set(view) == episodes
    assert view["e5"] == (trajectory_id("e5"), "e5", "play", "ada", None, 0)


def test_a_reward_from_another_process_is_as_late_as_it_is(settings: ClickHouseSettings) -> None:
    """Such a report does not know when its episode began, and says 0; a retraction is not a reward."""
    at_ms = START_MS + MINUTE_MS
    by_id = replace(make_reward("a", 1.0), event_id="r1", occurred_at_ms=at_ms, episode_started_at_ms=0)
    taken_back = replace(by_id, event_id="r2", value=None, retracted=True)
    stranger = replace(by_id, event_id="r3", episode_id="b", root_episode_id="b")
    records: list[Record] = [
        ("episode-events", "a", make_started("a")),
        ("trajectories", "k", make_trajectory("a")),
        *(("episode-events", "a", report) for report in (by_id, taken_back)),
        ("episode-events", "b", stranger),
        ("episode-events", "c", make_started("c")),
        ("episode-events", "c", replace(by_id, event_id="r4", episode_id="c", root_episode_id="c")),
    ]
    rows = answer(settings, "feedback_delay", namespace=apart(settings, records))
    assert [(row["task"], row["reports"], row["p50_ms"], row["p99_ms"], row["after_the_end"]) for row in rows] == [
        ("", 2, MINUTE_MS, MINUTE_MS, 0),
        ("play", 1, MINUTE_MS, MINUTE_MS, 1),
    ]


def test_only_a_report_that_came_late_has_revised_a_trajectory(settings: ClickHouseSettings) -> None:
    on_time, late = (replace(make_reward("a", 1.0), event_id=f"of {name}") for name in ("bob", "dan"))
    records: list[Record] = [
        ("episode-events", "a", on_time),
        ("trajectories", "k", make_trajectory("a", rewards=(make_report("bob"),))),
        ("episode-events", "a", late),
        revise(1, START_MS + 20, new=(make_report("dan"),)),
    ]
    (row,) = answer(settings, "feedback_delay", namespace=apart(settings, records))
    assert (row["reports"], row["revised_a_trajectory"]) == (2, 1)


A = trajectory_id("a")


def make_report(name: str, value: float = 1.0) -> Reward:
    return Reward(event_id=f"of {name}", name="reward", value=value, source="user", principal=name)


def revise(revision: int, at_ms: int, *, new: tuple[Reward, ...] = (), gone: tuple[Reward, ...] = ()) -> Record:
    revised = RewardRevised(
        trajectory_id=A,
        episode_id="a",
        group_hint="h",
        revision=revision,
        new=tuple(reward.event_id for reward in new),
        rewards=new,
        withdrawn=gone,
        revised_at_ms=at_ms,
    )
    return "trajectories", "k", revised


def contested_rewards() -> Iterator[Record]:
    """Ann takes her report back before the step, bob's stays, cid takes his back after it, dan reports after it."""
    ann, bob, cid, dan = map(make_report, ("ann", "bob", "cid", "dan"))
    yield "trajectories", "k", make_trajectory("a", labels={"user": "u"}, rewards=(ann, bob, cid))
    yield revise(1, START_MS + 1, gone=(ann,))
    for revision in (0, 1):
        yield "scores", "k", replace(make_score(A, 1.0, episode_id="a", labels={"user": "u"}), revision=revision)
    member = replace(make_member(A, 1.0), episode_id="a", score_revision=1)
    yield "run-log", "main", make_group("g", (1.0,), members=(member,))
    trained = TrainedMember(trajectory_id=A, group_id="g", lag=0, advantage=0.5, sampled_tokens=2)
    yield "training-steps", "main", make_step(1, trained=(trained,), completed_at_ms=START_MS + 10)
    yield revise(2, START_MS + 20, new=(dan,), gone=(cid,))


def test_only_who_was_heard_in_time_has_moved_a_step(settings: ClickHouseSettings) -> None:
    namespace = apart(settings, list(contested_rewards()))
    rows = answer(settings, "who_moved_this_model", namespace=namespace)
    reported = {row["principal"]: (row["reports"], row["trained"]) for row in rows if row["influence"] == "reported"}
    assert reported == {"bob": (1, 1), "cid": (1, 1), "dan": (1, 0)}
    views = f"{settings.database}_views"
    where = "WHERE namespace = {namespace:String}"
    sql = f"SELECT arraySort(reported_by), reports FROM {views}.influence {where}"
    assert ask(settings, sql, {"namespace": namespace}).rows == [(["bob", "cid"], 2)]
    sql = f"SELECT principal, step, training_lag_s >= 0 FROM {views}.feedback_to_gradient {where} ORDER BY principal"
    assert ask(settings, sql, {"namespace": namespace}).rows == [("bob", 1, True), ("cid", 1, True)]


def test_a_trajectory_of_two_steps_is_one_episode_of_its_mover(settings: ClickHouseSettings) -> None:
    trained = TrainedMember(trajectory_id=A, group_id="g", lag=0, advantage=0.5, sampled_tokens=2)
    records: list[Record] = [
        ("trajectories", "k", make_trajectory("a", rewards=(make_report("bob"),))),
        ("scores", "k", make_score(A, 1.0, episode_id="a")),
        *(("training-steps", "main", make_step(number, trained=(trained,))) for number in (1, 2)),
    ]
    rows = answer(settings, "who_moved_this_model", namespace=apart(settings, records))
    assert {row["influence"]: (row["episodes"], row["reports"], row["trained"], row["steps"]) for row in rows} == {
        "recorded": (1, 0, 1, 2),
        "reported": (1, 1, 1, 2),
    }


def test_a_reward_that_was_taken_back_is_not_a_reward_of_zero(settings: ClickHouseSettings) -> None:
    names = [trajectory_id(name) for name in ("a", "b", "c")]
    trained = [
        TrainedMember(trajectory_id=name, group_id="g", lag=0, advantage=0.5, sampled_tokens=1) for name in names
    ]
    users = dict(zip(names, ("ada", "ada", "bob"), strict=True))
    scores = [make_score(name, 1.0, labels={"user": user}) for name, user in users.items()]
    scores += [replace(make_score(name, None, labels={"user": users[name]}), revision=1) for name in names[1:2]]
    records: list[Record] = [("training-steps", "main", make_step(1, trained=tuple(trained)))]
    records += [("scores", "k", score) for score in scores]
    rows = answer(settings, "share_by_source", namespace=apart(settings, records))
    assert {row["source"]: (row["trained"], row["reward_mean"], row["reward_mean_of_others"]) for row in rows} == {
        "ada": (2, 1.0, 1.0),
        "bob": (1, 1.0, 1.0),
    }


def test_verdicts_of_two_judges_are_compared_turn_by_turn(settings: ClickHouseSettings) -> None:
    verdicts = {("ann", "turn 1"): 1.0, ("ann", "turn 2"): 0.0, ("bob", "turn 1"): 1.0, ("bob", None): 1.0}
    rewards = tuple(
        replace(make_report(judge, value), event_id=f"{number}", source="judge", turn_event_id=turn)
        for number, ((judge, turn), value) in enumerate(verdicts.items())
    )
    namespace = apart(settings, [("trajectories", "k", make_trajectory("a", rewards=rewards))])
    (pair,) = answer(settings, "agreement_of_judges", namespace=namespace)
    assert (pair["judge"], pair["other_judge"], pair["cases"], pair["same_share"]) == ("ann", "bob", 1, 1.0)
    assert pair["correlation"] is None


def lonely_records() -> Iterator[Record]:
    """One episode of a task, two with one reward and length, a version of one episode, and a step between them."""
    yield "scores", "k", make_score("alone", 1.0, task="alone")
    for number in range(2):
        yield "scores", "k", make_score(f"equal{number}", 1.0, task="equal")
    yield "scores", "k", make_score("newer", 1.0, task="equal", version=1)
    yield "scores", "k", make_score("unrewarded", None, task="equal", version=2)
    yield "training-steps", "main", make_step(1, base_version=0, policy_version=1)
    yield "episode-events", "e", make_tool("e", 1)


def numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, list | tuple):
        for element in value:
            yield from numbers_in(element)


def test_a_number_that_cannot_be_known_is_missing_and_not_infinite(settings: ClickHouseSettings) -> None:
    namespace = apart(settings, list(lonely_records()))
    asked = [query.name for query in list_queries() if not any(parameter.kinds != ("step",) for parameter in query.ids)]
    wrong = {
        (name, column, str(value))
        for name in asked
        for row in answer(settings, name, namespace=namespace)
        for column, value in row.items()
        for number in numbers_in(value)
        if not math.isfinite(number)
    }
    assert wrong == set()
    lengths = {
        row["task"]: row["correlation"] for row in answer(settings, "length_against_reward", namespace=namespace)
    }
    assert lengths == {"alone": None, "equal": None}
