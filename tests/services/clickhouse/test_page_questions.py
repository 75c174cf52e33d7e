"""The page's own questions on ClickHouse's real engine: what a search finds, and what is drawn over time."""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rollbus.consumers.clickhouse.maintain.forget import delete_rows
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.consumers.export.reading import select_trajectories
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.records.data_sets import DataSetMember
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.steps import Evaluation
from rollbus.schemas.records.trajectories import Reward
from rollbus.ui.page_questions import Asking
from tests.builders import (
    START_MS,
    make_ended,
    make_excluded,
    make_reward,
    make_score,
    make_started,
    make_step,
    make_tool,
    make_trajectory,
    make_turn,
)
from tests.consumers.story import Record
from tests.services.clickhouse.test_queries import new_database, write

pytestmark = pytest.mark.services

PARTS = json.dumps([{"type": "text", "text": "a picture of Grüße"}], ensure_ascii=False)
MESSAGES = {
    "quoted": Message(role="user", content='He said "stop" at C:\\temp'),
    "plain": Message(role="user", content="nothing of note"),
    "parts": Message(role="user", content="", parts=PARTS),
    "table": Message(role="user", content="name\tvalue\r\nwidth\t7"),
}


def records() -> Iterator[Record]:
    for name, message in MESSAGES.items():
        yield "episode-events", name, make_started(name)
        yield "episode-events", name, make_turn(name, 1, added_messages=(message,), text="Answer")
        yield "trajectories", name, make_trajectory(name, example_id=f"x-{name}")
    yield "episode-events", "lost", make_turn("lost", 3, text="of an episode without its start")
    yield (
        "drops",
        "lost",
        Drop(
            unit="episode",
            unit_id="lost",
            stage="assembly",
            reason="missing_events",
            detail="events 0 to 2 of writer w1",
            dropped_at_ms=START_MS,
        ),
    )
    yield from judged_records()
    for number, loss in enumerate((1.0, math.nan, 0.5, math.inf, 0.4), start=1):
        yield "training-steps", "main", make_step(number, metrics={"loss": loss})
    for number, (version, reward) in enumerate([(5, 0.0), (5, 1.0), (6, 1.0), (6, 1.0)]):
        yield "scores", "k", make_score(f"t{number}", reward, max_policy_version=version)
    estimate = {"effective": 350.0, "clipped": 12.0, "best": 0.6, "best_low": 0.5, "best_high": 0.7}
    yield "evaluations", "agent", evaluation("estimates", estimate)
    measured_last = evaluation("held-out", {"win": 0.5})
    for value, before_ms in ((0.9, 2), (0.5, 0), (0.1, 1)):  # measured again; one was slow to come
        at_ms = measured_last.evaluated_at_ms - before_ms
        yield "evaluations", "agent", replace(measured_last, metrics={"win": value}, evaluated_at_ms=at_ms)


def judged_records() -> Iterator[Record]:
    """Two judges on three cases, of which they see two alike; one case has a sub-agent, whose tool and end failed."""
    verdicts = {"ann": (1.0, 0.0, 1.0), "bob": (1.0, 0.0, 0.0)}
    for at in range(3):
        rewards = tuple(
            Reward(event_id=f"{judge}-{at}", name="reward", value=values[at], source="operator", principal=judge)
            for judge, values in verdicts.items()
        )
        yield "episode-events", f"j{at}", make_started(f"j{at}")
        yield "trajectories", f"j{at}", make_trajectory(f"j{at}", opening_hash=f"o{at}", rewards=rewards)
    child: dict[str, Any] = {"root": "j0"}
    yield "episode-events", "j0", make_started("j0/sub", parent_episode_id="j0", agent="helper", **child)
    yield "episode-events", "j0", make_tool("j0/sub", 1, name="lookup", result=None, error="HTTP 503", **child)
    yield "episode-events", "j0", make_ended("j0/sub", 2, stop_reason="error", error="ValueError: no parse", **child)
    yield "trajectories", "j0", make_trajectory("j0/sub", root_episode_id="j0", parent_episode_id="j0")
    incomplete = Drop(
        unit="trajectory",
        unit_id=trajectory_id("j1"),
        trajectory_ids=(trajectory_id("j1"),),
        run_id="main",
        stage="grouping",
        reason="incomplete_group",
        detail="had 1 of 4 members",
        dropped_at_ms=START_MS,
    )
    yield "drops", "main", incomplete


def evaluation(name: str, metrics: dict[str, float]) -> Evaluation:
    return Evaluation(
        evaluation_id=name,
        model="agent",
        policy_version=1,
        run_id="main",
        name=name,
        episodes=400,
        metrics=metrics,
        evaluated_at_ms=START_MS,
    )


@pytest.fixture(scope="module")
def settings(clickhouse: tuple[str, int]) -> ClickHouseSettings:
    return new_database(clickhouse)


@pytest.fixture(scope="module")
def client(settings: ClickHouseSettings) -> Iterator[ClickHouse]:
    client = ClickHouse(settings)
    write(client, "rollbus.", list(records()))
    yield client
    client.close()


@pytest.fixture(scope="module")
def asking(settings: ClickHouseSettings, client: ClickHouse) -> Asking:
    return Asking(settings, "rollbus.", {"main": "agent"})


def answer(asking: Asking, name: str, **values: str) -> list[dict[str, Any]]:
    columns, rows = asking.ask(name, values)
    return [dict(zip(columns, row, strict=True)) for row in rows]


EPISODES_BY_TEXT: dict[str, set[str]] = {
    'SAID "STOP"': {"quoted"},
    "c:\\temp": {"quoted"},
    "of note": {"plain"},
    "grüße": {"parts"},
    "answer": {"quoted", "plain", "parts", "table"},
    "Name\tvalue": {"table"},
    "value\r\nwidth": {"table"},
    "content": set(),
    "user": set(),
}


def find_episodes_by_text(asking: Asking) -> dict[str, set[str]]:
    return {
        text: {row["episode_id"] for row in answer(asking, "find_episodes", text=text)} for text in EPISODES_BY_TEXT
    }


def test_a_search_finds_the_words_of_a_message_but_not_its_storage_format(asking: Asking, client: ClickHouse) -> None:
    index_bytes = "SELECT sum(secondary_indices_compressed_bytes) FROM system.parts WHERE active AND table = 'turns'"
    assert client.query(f"{index_bytes} AND database = currentDatabase()")[1] == [(0,)]
    assert find_episodes_by_text(asking) == EPISODES_BY_TEXT
    client.command("OPTIMIZE TABLE turns FINAL")
    assert client.query(f"{index_bytes} AND database = currentDatabase()")[1] > [(0,)]
    assert find_episodes_by_text(asking) == EPISODES_BY_TEXT


def test_the_timeline_leaves_out_the_counts_of_an_evaluation(asking: Asking) -> None:
    lines = [row for row in answer(asking, "timeline", run="main", model="agent") if row["kind"] == "line"]
    assert {(row["name"], row["metric"]): (row["value"], row["low"]) for row in lines} == {
        ("estimates", "best"): (0.6, 0.5),
        ("held-out", "win"): (0.5, None),
    }


def test_the_timeline_keeps_evaluations_apart_whose_names_have_spaces(asking: Asking, client: ClickHouse) -> None:
    measured = [evaluation("held", {"out win": 0.25}), evaluation("held out", {"win": 0.75})]
    write(client, "spaces.", [("evaluations", "agent", record) for record in measured])
    lines = answer(asking, "timeline", namespace="spaces.", model="agent")
    assert {(row["name"], row["metric"]): row["value"] for row in lines} == {
        ("held", "out win"): 0.25,
        ("held out", "win"): 0.75,
    }


def test_a_data_set_counts_no_members_that_are_forgotten_or_excluded(
    asking: Asking, client: ClickHouse, settings: ClickHouseSettings
) -> None:
    """As many as an export takes: without the excluded ones, those of an excluded root, and what was forgotten."""
    namespace, roots = (
        "picked.",
        {"stays": "stays", "excluded": "excluded", "sub": "excluded", "forgotten": "forgotten"},
    )
    records: list[Record] = [
        ("trajectories", root, make_trajectory(name, root_episode_id=root)) for name, root in roots.items()
    ]
    for name in roots:
        member = DataSetMember(
            data_set="set", trajectory_id=trajectory_id(name), episode_id=name, changed_at_ms=START_MS
        )
        records.append(("data-sets", "set", member))
    records += [("exclusions", name, make_excluded(name)) for name in ("excluded", "forgotten")]
    write(client, namespace, records)
    delete_rows(settings, ["forgotten"])
    (counted,) = answer(asking, "data_sets", namespace=namespace, trajectory=trajectory_id("excluded"))
    assert (counted["data_set"], counted["members"], counted["has_it"]) == ("set", 1, True)
    exported = select_trajectories(client, namespace, "main", "", None, "set")
    assert [row["episode_id"] for row in exported] == ["stays"]


def test_an_episode_that_became_no_trajectory_is_shown_by_its_events(asking: Asking) -> None:
    (dropped,) = answer(asking, "dropped_units", run="main", stage="assembly", reason="missing_events")
    assert (dropped["unit"], dropped["unit_id"]) == ("episode", "lost")
    assert answer(asking, "find_episodes", id="lost") == []
    (event,) = answer(asking, "conversation", episode="lost")
    assert json.loads(event["completion"])["content"] == "of an episode without its start"


def test_a_difference_has_welchs_interval_unless_all_rewards_are_equal(asking: Asking) -> None:
    compared = {"left_model": "agent", "right_model": "agent", "left_version": "5"}
    other, *_ = answer(asking, "side_by_side", **compared, right_version="6")
    assert (other["left_count"], other["right_count"], other["difference"]) == (2, 2, 0.5)
    # Welch: the deviation is √(0.5 / 2) with one degree of freedom, of which 12.71 hold 95 %.
    assert other["margin"] == pytest.approx(12.71 * 0.5)
    same, *_ = answer(asking, "side_by_side", **compared, right_version="5")
    assert (same["left_count"], same["right_count"], same["difference"]) == (2, 2, 0)
    equal, *_ = answer(asking, "side_by_side", **compared | {"left_version": "6"}, right_version="6")
    assert (equal["difference"], equal["margin"]) == (0, None)


def test_cases_are_found_by_their_judges(asking: Asking) -> None:
    by_ann = answer(asking, "find_episodes", judge="ann")
    assert {row["episode_id"] for row in by_ann} == {"j0", "j1", "j2"}
    assert by_ann[0]["judges"] == ["ann", "bob"]
    assert "j0" not in {row["episode_id"] for row in answer(asking, "find_episodes", judged="no")}
    assert answer(asking, "find_episodes", judge="cid") == []


@pytest.mark.parametrize("words", ["no parse", "http 503", "*"])
def test_a_case_is_found_by_the_error_that_ended_it_or_its_tool(asking: Asking, words: str) -> None:
    assert [row["episode_id"] for row in answer(asking, "find_episodes", error=words)] == ["j0/sub"]


def test_a_case_is_found_by_the_tool_that_it_called(asking: Asking) -> None:
    assert [row["episode_id"] for row in answer(asking, "find_episodes", tool="lookup")] == ["j0/sub"]


def test_the_conversation_has_the_text_of_the_error(asking: Asking) -> None:
    events = {event["kind"]: event for event in answer(asking, "conversation", episode="j0/sub")}
    assert events["ToolCalled"]["tool_error"] == "HTTP 503"
    assert (events["EpisodeEnded"]["stop_reason"], events["EpisodeEnded"]["error"]) == ("error", "ValueError: no parse")


def test_a_conversation_is_in_its_order_though_a_clock_went_back(asking: Asking, client: ClickHouse) -> None:
    """As assembly and exports order it: each writer's events in their sequence."""
    turns = [make_turn("back", number, at_ms=START_MS - 1000 * number, text=f"answer {number}") for number in (1, 2)]
    report = make_reward("back", 1.0, at_ms=START_MS + 1)
    records = [make_started("back"), *turns, replace(make_ended("back", 3), occurred_at_ms=START_MS - 5000), report]
    write(client, "rollbus.", [("episode-events", "back", record) for record in records], first_offset=7000)
    kinds = [row["kind"] for row in answer(asking, "conversation", episode="back")]
    assert kinds == ["EpisodeStarted", "TurnRecorded", "TurnRecorded", "EpisodeEnded", "RewardReported"]
    said = [json.loads(row["completion"])["content"] for row in answer(asking, "conversation", episode="back")[1:3]]
    assert said == ["answer 1", "answer 2"]


@pytest.mark.parametrize("episode", ["j0", "j0/sub"])
def test_a_family_is_found_from_its_root_and_from_its_sub_agent(asking: Asking, episode: str) -> None:
    family = answer(asking, "family", episode=episode)
    assert {(row["episode_id"], row["parent_episode_id"], row["agent"]) for row in family} == {
        ("j0", None, "player"),
        ("j0/sub", "j0", "helper"),
    }


def test_a_fate_says_how_many_prompts_its_example_had(asking: Asking) -> None:
    (fate,) = answer(asking, "fate_of_case", trajectory=trajectory_id("j1"))
    assert (fate["fate"], fate["reason"], fate["detail"]) == ("dropped", "incomplete_group", "had 1 of 4 members")
    assert (fate["attempts"], fate["prompts"]) == (4, 4)


def test_a_reward_names_its_principal(asking: Asking) -> None:
    rewards = answer(asking, "rewards_of_episode", trajectory=trajectory_id("j2"), episode="j2")
    assert {(row["principal"], row["value"], row["in_force"]) for row in rewards} == {
        ("ann", 1.0, True),
        ("bob", 0.0, True),
    }


@pytest.mark.parametrize("rewards", [(0.0, 1.0, 1e308), (-1.7e308, 0.0, 1.7e308), (0.0, 5e-324), (0.1, 0.1)])
def test_the_largest_reward_that_there_can_be_is_in_a_bin(
    asking: Asking, client: ClickHouse, rewards: tuple[float, ...]
) -> None:
    """Any user may report it, and the overview asks for the spread."""
    namespace = f"spread-{len(rewards)}-{rewards[-1]}."
    scores = [make_score(f"s{number}", reward) for number, reward in enumerate(rewards)]
    write(client, namespace, [("scores", "k", score) for score in scores])
    bins = [row for row in answer(asking, "distributions", namespace=namespace) if row["kind"] == "reward"]
    assert sum(row["trajectories"] for row in bins) == len(rewards)
    assert bins[0]["from_value"] == min(rewards)
    assert bins[-1]["to_value"] == pytest.approx(max(rewards), rel=1e-9, abs=0)


def test_the_agreement_of_two_judges_is_a_number(asking: Asking) -> None:
    (pair,) = answer(asking, "agreement_of_judges")
    assert (pair["judge"], pair["other_judge"], pair["cases"]) == ("ann", "bob", 3)
    assert pair["same_share"] == pytest.approx(2 / 3)
    # by chance: 2/3 · 1/3 for one, 1/3 · 2/3 for zero
    assert pair["kappa"] == pytest.approx((2 / 3 - 4 / 9) / (1 - 4 / 9))


def test_a_loss_that_is_not_a_number_is_counted_but_not_averaged(asking: Asking) -> None:
    points = answer(asking, "thin_steps", run="main")
    assert [(row["step"], row["mean"], row["broken"], row["first_broken"]) for row in points] == [
        (1, 1.0, 0, None),
        (2, None, 1, 2),
        (3, 0.5, 0, None),
        (4, None, 1, 4),
        (5, 0.4, 0, None),
    ]
    thinned = answer(asking, "thin_steps", run="main", points="2")
    assert [(row["low"], row["high"], row["broken"]) for row in thinned] == [(0.5, 1.0, 1), (0.4, 0.4, 1)]
    newest = {row["step"]: row["not_finite"] for row in answer(asking, "newest_steps", run="main")}
    assert newest == {1: [], 2: ["loss"], 3: [], 4: ["loss"], 5: []}
