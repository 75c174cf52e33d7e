"""The page's own questions on ClickHouse's real engine: what a search finds, and what is drawn over time."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.steps import Evaluation
from rollbus.ui.asking import Asking
from tests.builders import START_MS, make_score, make_started, make_trajectory, make_turn
from tests.consumers.story import Record
from tests.services.clickhouse.test_queries import new_database, write

pytestmark = pytest.mark.services

PARTS = json.dumps([{"type": "text", "text": "a picture of Grüße"}], ensure_ascii=False)
SAID = {
    "quoted": Message(role="user", content='He said "stop" at C:\\temp'),
    "plain": Message(role="user", content="nothing of note"),
    "parts": Message(role="user", content="", parts=PARTS),
}


def records() -> Iterator[Record]:
    for name, message in SAID.items():
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
    for number, (version, reward) in enumerate([(5, 0.0), (5, 1.0), (6, 1.0), (6, 1.0)]):
        yield "scores", "k", make_score(f"t{number}", reward, max_policy_version=version)
    estimate = {"effective": 350.0, "clipped": 12.0, "best": 0.6, "best_low": 0.5, "best_high": 0.7}
    yield "evaluations", "agent", evaluation("estimates", estimate)
    yield "evaluations", "agent", evaluation("held-out", {"win": 0.5})


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
def asking(clickhouse: tuple[str, int]) -> Asking:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    write(client, "rollbus.", list(records()))
    client.close()
    return Asking(settings, "rollbus.", {"main": "agent"})


def answer(asking: Asking, name: str, **values: str) -> list[dict[str, Any]]:
    columns, rows = asking.ask(name, values)
    return [dict(zip(columns, row, strict=True)) for row in rows]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('SAID "STOP"', {"quoted"}),
        ("c:\\temp", {"quoted"}),
        ("of note", {"plain"}),
        ("grüße", {"parts"}),
        ("answer", {"quoted", "plain", "parts"}),
        ("content", set()),
        ("user", set()),
    ],
)
def test_a_search_finds_what_was_said_and_not_how_it_is_stored(asking: Asking, text: str, found: set[str]) -> None:
    assert {row["episode_id"] for row in answer(asking, "find_episodes", text=text)} == found


def test_an_evaluation_over_time_is_what_has_an_interval_and_not_the_counts_beside_it(asking: Asking) -> None:
    lines = [row for row in answer(asking, "timeline", run="main", model="agent") if row["kind"] == "line"]
    assert {row["name"]: (row["value"], row["low"]) for row in lines} == {
        "estimates best": (0.6, 0.5),
        "held-out win": (0.5, None),
    }


def test_an_episode_that_became_no_trajectory_is_shown_by_its_events(asking: Asking) -> None:
    (dropped,) = answer(asking, "dropped_units", run="main", stage="assembly", reason="missing_events")
    assert (dropped["unit"], dropped["unit_id"]) == ("episode", "lost")
    assert answer(asking, "find_episodes", id="lost") == []
    (event,) = answer(asking, "conversation", episode="lost")
    assert json.loads(event["completion"])["content"] == "of an episode without its start"


def test_a_difference_has_the_interval_of_so_few_episodes_and_none_where_all_are_equal(asking: Asking) -> None:
    compared = {"left_model": "agent", "right_model": "agent", "left_version": "5"}
    other, *_ = answer(asking, "side_by_side", **compared, right_version="6")
    assert (other["left_count"], other["right_count"], other["difference"]) == (2, 2, 0.5)
    # Welch: the deviation is √(0.5 / 2) with one degree of freedom, of which 12.71 hold 95 %.
    assert other["margin"] == pytest.approx(12.71 * 0.5)
    same, *_ = answer(asking, "side_by_side", **compared, right_version="5")
    assert (same["left_count"], same["right_count"], same["difference"]) == (2, 2, 0)
    equal, *_ = answer(asking, "side_by_side", **compared | {"left_version": "6"}, right_version="6")
    assert (equal["difference"], equal["margin"]) == (0, None)
