"""A root's rewards reach its sub-agents' episodes by the configured rule, whatever comes first and however late."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rollbus.schemas.records.config import AssemblyConfig, ScoringConfig
from rollbus.schemas.records.trajectories import RewardRevised, Score, Trajectory
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.scoring.stage import ScoringStage
from tests.builders import make_config, make_episode, make_excluded, make_reward
from tests.examples import count_examples
from tests.stepper import Stepper

ROOT = make_episode("root", reward=None)


def child(name: str, agent: str = "helper", *, reward: float | None = None) -> list[Any]:
    return make_episode(name, root="root", reward=reward, start={"parent_episode_id": "root", "agent": agent})


def root_reward(value: float | None = 1.0, *, name: str = "reward", key: str = "k", **fields: Any) -> Any:
    return make_reward("root", value, name=name, key=key, writer="user", **fields)


def assembling(restoring: bool = False, **rules: Any) -> Stepper:
    stepper = Stepper(AssemblyStage(AssemblyConfig(pass_down=rules)), restoring=restoring)
    stepper.tick()
    return stepper


def last_rewards(records: list[Any]) -> dict[str, dict[str, float]]:
    """By episode: the rewards in force that were said last, by name."""
    rewards_by_episode: dict[str, dict[str, float]] = {}
    for record in records:
        if isinstance(record, Trajectory | RewardRevised):
            rewards_by_episode[record.episode_id] = {reward.name: reward.value for reward in record.rewards}
    return rewards_by_episode


def test_without_a_rule_a_root_keeps_its_rewards_to_itself() -> None:
    outputs = assembling().feed(*child("c1"), *ROOT, root_reward())
    assert last_rewards(outputs) == {"root": {"reward": 1.0}, "c1": {}}
    assert [type(record).__name__ for record in outputs] == ["Trajectory", "Trajectory", "RewardRevised"]


@pytest.mark.parametrize(
    ("rules", "first", "second"),
    [
        ({"reward": "inherit"}, {"reward": 1.0}, {"reward": 1.0}),
        ({"reward": "split"}, {"reward": 0.5}, {"reward": 0.5}),
        ({"*": "inherit", "cost": "split"}, {"reward": 1.0, "cost": 2.0, "reward.writer": 0.25}, ...),
        ({"*": "inherit", "reward": "none", "reward.writer": "none"}, {"cost": 4.0}, {"cost": 4.0}),
        ({"reward": "by_name"}, {"reward": 0.25}, {}),
    ],
)
def test_each_rule_gives_its_rewards(rules: dict[str, Any], first: dict[str, float], second: Any) -> None:
    reports = [root_reward(), root_reward(4.0, name="cost"), root_reward(0.25, name="reward.writer")]
    stepper = assembling(**rules)
    records = stepper.feed(*child("c1", "writer"), *child("c2", "reader"), *ROOT, *reports)
    rewards_by_episode = last_rewards([*records, *stepper.tick(1)])
    assert (rewards_by_episode["c1"], rewards_by_episode["c2"]) == (first, first if second is ... else second)
    assert rewards_by_episode["root"] == {"reward": 1.0, "cost": 4.0, "reward.writer": 0.25}


def test_an_agent_whose_name_has_a_dot_gets_the_report_of_its_name() -> None:
    reports = [root_reward(0.25, name="reward.writer.eu"), root_reward(0.5, name="reward.eu")]
    stepper = assembling(reward="by_name")
    records = stepper.feed(*child("c1", "writer.eu"), *child("c2", "eu"), *child("c3", "writer"), *ROOT, *reports)
    rewards_by_episode = last_rewards([*records, *stepper.tick(1)])
    assert [rewards_by_episode[name] for name in ("c1", "c2", "c3")] == [{"reward": 0.25}, {"reward": 0.5}, {}]


def test_a_report_of_the_episode_itself_outweighs_its_root() -> None:
    rewards_by_episode = last_rewards(assembling(reward="inherit").feed(*child("c1", reward=0.5), *ROOT, root_reward()))
    assert rewards_by_episode["c1"] == {"reward": 0.5}


def test_a_report_on_a_turn_of_the_root_stays_there() -> None:
    outputs = assembling(reward="inherit").feed(*child("c1"), *ROOT, root_reward(turn_event_id=ROOT[1].event_id))
    assert last_rewards(outputs)["c1"] == {}


def test_the_next_tick_gives_a_late_childs_siblings_their_new_share() -> None:
    """The late child gets its share at once."""
    stepper = assembling(reward="split", restoring=True)
    assert last_rewards(stepper.feed(*child("c1"), *ROOT, root_reward()))["c1"] == {"reward": 1.0}
    assert last_rewards(stepper.feed(*child("c2"))) == {"c2": {"reward": 0.5}}
    assert last_rewards(stepper.tick(1)) == {"c1": {"reward": 0.5}}


def test_a_late_root_and_its_reward_revise_a_closed_child() -> None:
    stepper = assembling(reward="inherit", restoring=True)
    assert last_rewards(stepper.feed(*child("c1"), root_reward())) == {"c1": {}}
    assert last_rewards(stepper.feed(*ROOT))["c1"] == {"reward": 1.0}


def test_a_reward_taken_back_from_the_root_is_taken_back_from_its_children() -> None:
    stepper = assembling(reward="inherit")
    given_first = root_reward()
    stepper.feed(*child("c1"), *ROOT, given_first)
    stepper.feed(root_reward(None, key="undo", supersedes=given_first.event_id, retracted=True))
    assert last_rewards(stepper.tick(1)) == {"root": {}, "c1": {}}


def test_an_excluded_root_or_child_has_no_part_in_passed_rewards() -> None:
    stepper = assembling(reward="split")
    stepper.feed(*child("c1"), *child("c2"), *ROOT, root_reward())
    assert last_rewards(stepper.feed(make_excluded("c2", root="root")))["c1"] == {"reward": 1.0}
    assert last_rewards(stepper.feed(make_excluded("root")))["c1"] == {}


def test_a_root_is_remembered_until_the_last_of_its_family_is_forgotten() -> None:
    stepper = Stepper(AssemblyStage(AssemblyConfig(pass_down={"reward": "inherit"}, late_horizon_ms=10_000)))
    stepper.tick()
    stepper.feed(*ROOT, root_reward())
    stepper.tick(9)
    stepper.feed(*child("c1"))
    stepper.tick(9)
    note = make_reward("c1", 0.1, name="note", writer="user", root="root")
    assert last_rewards(stepper.feed(note))["c1"] == {"note": 0.1, "reward": 1.0}
    stepper.tick(10)
    assert {key.split(b"\x1f")[0] for key in stepper.changelog} == {b"clock"}
    assert not stepper.state.families.root_by_child


def test_a_reward_past_the_horizon_of_its_root_alone_revises_the_child_and_is_an_orphan_for_the_root() -> None:
    config = AssemblyConfig(pass_down={"reward": "inherit"}, late_horizon_ms=10_000)
    assembly, scoring = Stepper(AssemblyStage(config)), Stepper(ScoringStage(ScoringConfig(), keep_ms=10_000))

    def take(*events: Any, seconds: int) -> list[Any]:
        assembled = [*assembly.tick(seconds), *assembly.feed(*events)]
        return [*scoring.tick(seconds), *scoring.feed(*assembled)]

    take(*ROOT, seconds=0)
    take(*child("c1"), seconds=9)
    take(root_reward(), seconds=5)
    drop, score = take(seconds=1)
    assert drop.reason == "orphaned_reward"
    assert (score.episode_id, score.revision, score.value) == ("c1", 1, 1.0)


def test_a_rule_holds_from_its_record_on() -> None:
    stepper = assembling()
    stepper.feed(*child("c1"), *ROOT)
    stepper.feed(make_config("assembly", AssemblyConfig(pass_down={"reward": "inherit"})))
    assert last_rewards(stepper.feed(root_reward()))["c1"] == {"reward": 1.0}


def test_a_wrong_rule_is_refused_and_none_leaves_the_hash_as_it_was() -> None:
    with pytest.raises(ValidationError, match="inherit"):
        AssemblyConfig.model_validate({"pass_down": {"reward": "double"}})
    with pytest.raises(ValidationError, match="by_name needs the name"):
        AssemblyConfig(pass_down={"*": "by_name"})
    assert "pass_down" not in AssemblyConfig().model_dump()


WHOLE = [
    *ROOT,
    *child("c1", "writer"),
    *child("c2", "reader"),
    *child("c3", "writer", reward=0.125),
    root_reward(0.5, key="b"),
    root_reward(0.75, name="reward.writer"),
    root_reward(8.0, name="cost"),
]
RULES: dict[str, Any] = {"reward": "by_name", "*": "split"}
SHARE = 8.0 / 3


@settings(max_examples=count_examples(120), deadline=None)
@given(st.permutations(WHOLE), st.booleans(), st.lists(st.integers(0, len(WHOLE)), max_size=4))
def test_the_order_of_arrival_repetition_and_restarts_change_no_reward(
    events: list[Any], restoring: bool, again: list[int]
) -> None:
    stepper = assembling(restoring, **RULES)
    outputs = stepper.feed(*events, *(events[index] for index in again if index < len(events)))
    outputs += stepper.tick(1)
    assert last_rewards(outputs) == {
        "root": {"reward": 0.5, "reward.writer": 0.75, "cost": 8.0},
        "c1": {"cost": SHARE, "reward": 0.75},
        "c2": {"cost": SHARE},
        "c3": {"cost": SHARE, "reward": 0.125},
    }


def test_a_replay_gives_a_child_the_same_passed_down_score() -> None:
    def play() -> list[Score]:
        assembled = assembling(reward="inherit").feed(*child("c1"), *ROOT, root_reward(0.75))
        scoring = Stepper(ScoringStage(ScoringConfig(), keep_ms=100_000))
        scoring.tick()
        return [record for record in scoring.feed(*assembled) if isinstance(record, Score)]

    scores = play()
    (score,) = [score for score in scores if score.episode_id == "c1" and score.revision]
    assert (score.outcome, score.value) == ("scored", 0.75)
    assert [replace(score) for score in play()] == scores
