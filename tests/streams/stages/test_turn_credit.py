"""Rewards of turns become advantages of those turns, in groups and of single attempts."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rollbus.schemas.records.config import GroupingConfig, RewardConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.groups import Group
from rollbus.schemas.records.trajectories import Reward, Score, TurnReward
from rollbus.streams.stages.curriculum.batching import batch_hash, centre_single_attempts
from rollbus.streams.stages.grouping.advantages import GroupFrame, make_group, with_members
from rollbus.streams.stages.grouping.stage import GroupingStage
from rollbus.streams.stages.grouping.turn_credit import divide
from rollbus.streams.stages.scoring.stage import ScoringStage
from tests.builders import START_MS, make_score, make_trajectory
from tests.stepper import Stepper


def make_turn_score(
    name: str, rewards: dict[str, float], *, rest: float = 0.0, turns: str = "abc", **fields: Any
) -> Score:
    """A score whose turns earned so much, by a component that is the sum of them, and the rest by another."""
    fields = {
        "turn_ids": tuple(f"{name}.{turn}" for turn in turns) if len(turns) > 1 else (),
        "turn_rewards": tuple(
            TurnReward(turn_event_id=f"{name}.{turn}", component="steps", value=value)
            for turn, value in rewards.items()
        ),
        **fields,
    }
    return make_score(name, rest + math.fsum(rewards.values()), **fields)


def make_credit_group(*scores: Score, kind: str = "leave_one_out", discount: float | None = 0.0) -> Group:
    frame = GroupFrame(
        run_id="main",
        group_key="k",
        strategy="by_example",
        advantage_kind=kind,
        tolerance=1e-9,
        closed_by="full",
        closed_at_ms=START_MS,
        config_hash="",
        turn_discount=discount,
    )
    return make_group(frame, scores)


def by_turn(group: Group) -> dict[str, float]:
    return {turn: value for member in group.members for turn, value in member.turn_advantages.items()}


def test_a_turns_credit_is_its_reward_minus_the_mean_of_turns() -> None:
    group = make_credit_group(make_turn_score("x", {"a": 1.0, "b": 0.0}), make_turn_score("y", {"a": 0.5}))
    assert by_turn(group) == pytest.approx({"x.a": 0.5, "x.b": -0.5, "x.c": 0.0, "y.a": 0.0, "y.b": 0.0, "y.c": 0.0})
    assert group.has_signal
    assert [member.advantage for member in group.members] == pytest.approx([0.0, 0.0])


def test_a_discount_gives_earlier_turns_their_part() -> None:
    group = make_credit_group(
        make_turn_score("x", {"b": 1.0, "c": 0.0}), make_turn_score("y", {"c": 0.5}), discount=0.5
    )
    assert by_turn(group) == pytest.approx(
        {"x.c": -0.5, "x.b": 0.5 - 0.25, "x.a": 0.5 * 0.25, "y.a": 0.0, "y.b": 0.0, "y.c": 0.0}
    )


def test_the_reward_of_no_single_turn_reaches_every_turn() -> None:
    group = make_credit_group(make_turn_score("x", {"a": 1.0}, rest=1.0), make_turn_score("y", {"a": 1.0}, rest=0.0))
    assert by_turn(group) == pytest.approx(
        {**{f"x.{turn}": 1.0 for turn in "abc"}, **{f"y.{turn}": -1.0 for turn in "abc"}}
    )


def test_credit_by_the_mean_of_all_turns_is_process_supervision() -> None:
    """DeepSeekMath: rewards of steps less their mean, by their deviation; a token's advantage is the sum from it on."""
    group = make_credit_group(
        make_turn_score("x", {"a": 1.0, "b": 0.0}),
        make_turn_score("y", {"a": 0.0, "c": 0.0}),
        kind="mean_std",
        discount=1.0,
    )
    mean, std = 0.25, math.sqrt(3 / 16)
    high, low = (1 - mean) / (std + 1e-6), -mean / (std + 1e-6)
    assert by_turn(group) == pytest.approx(
        {"x.a": high + low, "x.b": low, "x.c": 0.0, "y.a": 2 * low, "y.b": low, "y.c": low}
    )


def test_a_single_turn_leaves_the_advantage_to_the_trajectory() -> None:
    group = make_credit_group(make_turn_score("x", {"a": 1.0}, turns="a"), make_turn_score("y", {"a": 0.0}, turns="a"))
    assert [(member.advantage, member.turn_advantages) for member in group.members] == [(1.0, {}), (-1.0, {})]


def scored(name: str, *values: float, clip_low: float | None = None, clip_high: float | None = None) -> Score:
    """A score of a trajectory whose turns were rewarded so, by users' reports that add up."""
    trajectory = make_trajectory(name, reward=None)
    ids = [f"{name}.{number}" for number in range(len(values))]
    reports = tuple(
        Reward(event_id=f"r.{turn}", name="reward", value=value, turn_event_id=turn)
        for turn, value in zip(ids, values, strict=True)
    )
    turns = tuple(replace(trajectory.turns[0], event_id=turn) for turn in ids)
    component = RewardConfig(options={"report": "*", "combine": "sum"})
    stepper = Stepper(
        ScoringStage(ScoringConfig(rewards=(component,), clip_low=clip_low, clip_high=clip_high), keep_ms=1_000)
    )
    (score,) = stepper.feed(replace(trajectory, turns=turns, rewards=reports))
    assert isinstance(score, Score)
    return score


def test_turns_of_a_clipped_score_are_credited_as_they_were_rewarded() -> None:
    bounds = {"clip_low": 0.0, "clip_high": 1.0}
    good, bad = scored("good", 1.0, 1.0, 1.0, 1.0, **bounds), scored("bad", 0.0, 0.0, 0.0, 0.0, **bounds)
    credit = divide(good)
    assert (credit.rest, list(credit.earned.values())) == (0.0, [0.25] * 4)
    raised = {turn: advantage > 0 for turn, advantage in by_turn(make_credit_group(good, bad)).items()}
    assert raised == {turn: turn.startswith("good") for turn in raised}


@pytest.mark.parametrize("values", [(1e9, 0.0), (1e9, -1e9), (-1e9, 1.0)])
def test_no_turn_earns_more_than_the_score_may_differ(values: tuple[float, ...]) -> None:
    credit = divide(scored("x", *values, clip_low=0.0, clip_high=1.0))
    assert all(abs(earned) <= 1.0 for earned in (credit.rest, *credit.earned.values()))


def test_turns_of_a_score_within_its_bounds_keep_what_they_earned() -> None:
    assert divide(scored("x", 0.75, -0.5, clip_low=0.0, clip_high=1.0)) == divide(scored("x", 0.75, -0.5))


def test_without_rewards_of_turns_credit_changes_nothing() -> None:
    scores = [make_turn_score("x", {}, rest=1.0), make_turn_score("y", {}, rest=0.0)]
    assert make_credit_group(*scores, discount=0.5) == make_credit_group(*scores, discount=None)


def test_turns_that_all_earned_alike_have_no_signal() -> None:
    group = make_credit_group(make_turn_score("x", {"a": 0.3, "b": 0.3}), make_turn_score("y", {"c": 0.3}))
    assert (group.has_signal, by_turn(group)) == (False, {})


def test_unclear_and_measured_rewards_give_no_credit() -> None:
    score = make_turn_score("x", {}, rest=1.0)
    unclear = TurnReward(turn_event_id="x.a", component="next")
    measured = TurnReward(turn_event_id="x.a", component="next", value=1.0, weight=0.0)
    assert divide(replace(score, turn_rewards=(unclear, measured))).earned == {}


def test_the_mean_of_turn_rewards_is_subtracted_from_the_rest() -> None:
    turns = tuple(
        TurnReward(turn_event_id=f"x.{turn}", component="next", value=value, share=0.5, weight=2.0)
        for turn, value in (("a", 1.0), ("b", 0.0))
    )
    credit = divide(make_score("x", 1.0 + 3.0, turn_ids=("x.a", "x.b"), turn_rewards=turns))
    assert (credit.rest, credit.earned) == (3.0, {"x.a": 2.0, "x.b": 0.0})


def test_a_report_on_an_unknown_turn_counts_for_the_trajectory() -> None:
    stray = TurnReward(turn_event_id="elsewhere", component="steps", value=1.0)
    credit = divide(replace(make_turn_score("x", {"a": 1.0}, rest=1.0), turn_rewards=(stray,)))
    assert (credit.rest, credit.earned) == (2.0, {})


rewards_of = st.dictionaries(st.sampled_from("abc"), st.floats(-10, 10), max_size=3)


@given(st.lists(st.tuples(rewards_of, st.floats(-10, 10)), min_size=2, max_size=6), st.floats(0, 1))
def test_an_equal_gain_of_all_members_changes_no_advantage(
    rewards_and_rest: list[tuple[dict[str, float], float]], gamma: float
) -> None:
    def group(shift: float) -> Group:
        return make_credit_group(
            *(
                make_turn_score(f"t{number}", rewards, rest=rest + shift)
                for number, (rewards, rest) in enumerate(rewards_and_rest)
            ),
            discount=gamma,
        )

    plain, shifted = group(0.0), group(1.0)
    assert by_turn(shifted) == pytest.approx(by_turn(plain), abs=1e-6)
    if any(rewards for rewards, _ in rewards_and_rest) and plain.has_signal:
        members = [member for member in plain.members if member.turn_advantages]
        for member in members:
            assert member.advantage == pytest.approx(sum(member.turn_advantages.values()) / 3, abs=1e-6)


def single(discount: float = 0.0) -> Stepper:
    config = GroupingConfig(strategy="single", credit="turn", turn_discount=discount)
    stepper = Stepper(GroupingStage(RunConfig(grouping=config)), restoring=True)
    stepper.tick()
    return stepper


def test_single_attempts_compare_each_turn_with_earlier_turns() -> None:
    stepper = single()
    stepper.feed(make_turn_score("x", {"a": 1.0, "b": 1.0}), make_turn_score("y", {"a": 0.0, "b": 0.0}))
    first = [record for record in stepper.tick(1) if isinstance(record, Group)]
    assert by_turn(first[0]) | by_turn(first[1]) == pytest.approx(
        {"x.a": 1.0, "x.b": 1.0, "x.c": 0.0, "y.a": -1.0, "y.b": -1.0, "y.c": 0.0}
    )
    (group,) = stepper.feed(make_turn_score("z", {"b": 1.0}))
    (member,) = group.members
    assert (member.expected, member.expected_turn) == (0.0, 0.5)
    assert member.turn_advantages == pytest.approx({"z.a": 0.0, "z.b": 0.5, "z.c": 0.0})
    assert member.advantage == pytest.approx(0.5 / 3)
    assert group.has_signal


def test_centring_keeps_the_distances_of_turns() -> None:
    groups = []
    for number in range(8):
        stepper = single()
        stepper.feed(make_turn_score("p", {"a": 1.0, "b": 1.0}), make_turn_score("q", {"a": 0.0, "b": 0.0}))
        stepper.tick(1)
        groups += stepper.feed(
            make_turn_score(f"t{number}", {"a": float(number % 2), "b": 1.0}, example_id=f"x{number}")
        )
    for before, after in zip(groups, centre_single_attempts(groups, "mean"), strict=True):
        shift = after.members[0].advantage - before.members[0].advantage
        moved = {turn: value + shift for turn, value in before.members[0].turn_advantages.items()}
        assert after.members[0].turn_advantages == pytest.approx(moved)
    assert sum(group.members[0].advantage for group in centre_single_attempts(groups, "mean")) == pytest.approx(
        0.0, abs=1e-9
    )


def test_a_batch_is_another_one_if_turns_are_trained_differently() -> None:
    group = make_credit_group(make_turn_score("x", {"a": 1.0, "b": 0.0}), make_turn_score("y", {"a": 0.5}))
    members = tuple(replace(member, turn_advantages={}) for member in group.members)
    assert batch_hash("main", 0, [group]) != batch_hash("main", 0, [replace(group, members=members)])


def test_members_that_stay_keep_the_advantages_of_their_turns() -> None:
    group = make_credit_group(
        make_turn_score("x", {"a": 1.0, "b": 0.0}), make_turn_score("y", {"a": 0.5}), make_turn_score("z", {"a": 0.5})
    )
    assert with_members(group, group.members[:2]).members == group.members[:2]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"turn_discount": 0.5}, "is of `credit: turn`"),
        ({"credit": "turn", "rewards": (RewardConfig(type="judge_relative"),)}, "are of whole trajectories"),
        ({"credit": "turn", "turn_discount": 1.5}, "less than or equal to 1"),
    ],
)
def test_impossible_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GroupingConfig(**fields)
