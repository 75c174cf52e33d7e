"""Hints in a judge's own words: written with the score, once; a group names their place alone."""

from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import GroupingConfig, RewardConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.groups import Group
from rollbus.schemas.records.trajectories import Location, Score, Trajectory, TurnReward
from rollbus.streams.rewards.contract import (
    MOST_HINT_CHARACTERS,
    RewardContext,
    RewardFunction,
    TurnValues,
    average_turns,
)
from rollbus.streams.rewards.registry import BUILT_IN
from rollbus.streams.stages.grouping.stage import GroupingStage
from rollbus.streams.stages.scoring.stage import ScoringStage
from tests.builders import make_excluded, make_score, make_trajectory
from tests.stepper import Stepper
from tests.streams.stages.test_next_turn import ATTACKS, Flow, Judge, judge_words, one_turn_episode, spoken

HINT = "Name the parcel team."
WRITES_HINTS = "{code} hint: " + HINT + "\n{code} bad 0.9"
REPLY = "hm, it is the parcel"


def hints_of(score: Score) -> list[tuple[bool, str]]:
    return [(turn.is_hint, turn.hint) for turn in score.turn_rewards]


# What the judge is asked, and what is taken of its answer


def test_the_judge_writes_how_a_bad_answer_should_have_been() -> None:
    judge = Judge("It sent the user to the wrong team.\n" + WRITES_HINTS)
    score, *_ = judge_words(judge, REPLY, hint="judge")
    assert (score.value, hints_of(score)) == (0.0, [(True, HINT)])
    assert "hint, then one short instruction" in judge.calls[0][0]["content"]


def test_without_the_option_the_judge_gives_no_hint() -> None:
    judge = Judge(WRITES_HINTS)
    score, *_ = judge_words(judge, REPLY)
    assert (score.value, hints_of(score)) == (0.0, [(True, "")])
    assert "hint" not in judge.calls[0][0]["content"]


@pytest.mark.parametrize("verdict", ["good", "unclear"])
def test_a_hint_of_an_answer_that_is_not_bad_is_not_taken(verdict: str) -> None:
    score, *_ = judge_words(Judge("{code} hint Be kind.\n{code} " + verdict + " 0.9"), REPLY, hint="judge")
    assert hints_of(score) == [(False, "")]


@pytest.mark.parametrize("reply", ["{code} bad 0.9", "hint: Be kind.\n{code} bad 0.9", "{code} hint\n{code} bad 0.9"])
def test_a_judge_without_a_hint_leaves_the_users_words_as_the_hint(reply: str) -> None:
    score, *_ = judge_words(Judge(reply), REPLY, hint="judge")
    assert hints_of(score) == [(True, "")]


def test_a_correction_by_the_rules_needs_no_judge_and_its_words_are_the_hint() -> None:
    judge = Judge(WRITES_HINTS)
    score, *_ = judge_words(judge, "no, it is the parcel", hint="judge", where="unclear")
    assert (hints_of(score), judge.calls) == ([(True, "")], [])


def test_a_hint_is_written_once_however_often_rewards_change() -> None:
    judge = Judge(WRITES_HINTS)
    first, second = judge_words(judge, REPLY, hint="judge")
    assert len(judge.calls) == 1
    assert hints_of(first) == hints_of(second) == [(True, HINT)]


# What a user may get into a hint


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hint_that_repeats_the_user_carries_no_code_or_second_line(attack: str) -> None:
    plain = attack.replace("{", "").replace("}", "")
    score, *_ = judge_words(Judge("{code} hint " + plain + " {code}\n{code} bad 0.9"), attack, hint="judge")
    ((is_hint, hint),) = hints_of(score) or [(False, "")]
    assert "verdict-" not in hint.replace("verdict-00000000", "").replace("verdict-deadbeef", "")
    assert hint.isprintable()
    assert is_hint or score.outcome == "failed"


def test_a_hint_is_one_line_of_bounded_length_without_control_characters() -> None:
    words = "Say\x1b[2J\x1f\u202e 'parcel'\t" + "very " * 200
    score, *_ = judge_words(Judge("{code} hint " + words + "\n{code} bad 0.9"), REPLY, hint="judge")
    ((_, hint),) = hints_of(score)
    assert hint.startswith("Say [2J 'parcel' very very")
    assert len(hint) <= MOST_HINT_CHARACTERS
    assert hint.isprintable()


def test_a_score_of_an_excluded_episode_has_no_words_of_a_hint() -> None:
    flow = Flow((RewardConfig(type="next_turn_judge", name="judge", options={"hint": "judge"}),), Judge(WRITES_HINTS))
    flow.say(spoken("c1", "e1", "where is my parcel"))
    flow.events(*one_turn_episode("e1", "where is my parcel", "DELIVERY"))
    (score,) = flow.say(spoken("c1", "e2", REPLY))
    assert hints_of(score) == [(True, HINT)]
    (excluded,) = flow.events(make_excluded("e1"))
    assert (excluded.excluded, hints_of(excluded)) == (True, [(True, "")])
    assert HINT.encode() not in encode(excluded)


# Reward functions of users


def scored_by(hint: Any) -> Score:
    def critic(trajectory: Trajectory, context: RewardContext) -> TurnValues:
        turn = TurnReward(turn_event_id=trajectory.turns[0].event_id, component="", value=0.2, hint=hint)
        return average_turns([turn])

    config = ScoringConfig(rewards=(RewardConfig(type="critic", name="critic"),))
    registry = {**BUILT_IN, "critic": RewardFunction(critic)}
    score, *_ = Stepper(ScoringStage(config, keep_ms=60_000, registry=registry)).feed(make_trajectory())
    assert isinstance(score, Score)
    return score


def test_a_reward_function_of_a_user_may_give_hints_too() -> None:
    assert hints_of(scored_by(" Be\nshorter.\x00 ")) == [(True, "Be shorter.")]


def test_a_hint_that_is_not_text_fails_its_component() -> None:
    score = scored_by(7)
    assert score.outcome == "failed"
    assert "a hint that is not a text: 7" in (score.error or "")


# Groups


def corrected(name: str, value: float, **fields: Any) -> Score:
    turn = TurnReward(turn_event_id=f"{name}.a", component="judge", value=value, event_id="r1", is_hint=True, hint=HINT)
    return make_score(name, value, turn_rewards=(turn,), **fields)


@pytest.mark.parametrize("restoring", [False, True])
@pytest.mark.parametrize("strategy", ["single", "by_example"])
def test_a_group_names_where_a_judges_hint_is_and_does_not_repeat_it(strategy: Any, restoring: bool) -> None:
    config = RunConfig(grouping=GroupingConfig(strategy=strategy, group_size=2, reward_grace_ms=1_000))
    stepper = Stepper(GroupingStage(config), restoring=restoring)
    stepper.tick()
    hinted_at = stepper.offset
    out = stepper.feed(corrected("a", 0.0), make_score("b", 1.0))
    assert not any(HINT.encode() in row for row in stepper.changelog.values())
    out += [*stepper.tick(2), *stepper.tick(2)]
    groups = [record for record in out if isinstance(record, Group)]
    members = {member.trajectory_id: member for group in groups for member in group.members}
    assert members["a"].hints == {"a.a": "r1"}
    assert members["a"].hints_at == Location(topic="t", partition=0, offset=hinted_at)
    assert (members["b"].hints, members["b"].hints_at) == ({}, None)
    assert not any(HINT.encode() in encode(group) for group in groups)


def test_a_revision_with_a_hint_names_its_own_record() -> None:
    config = RunConfig(grouping=GroupingConfig(strategy="by_example", group_size=2, reward_grace_ms=1_000))
    stepper = Stepper(GroupingStage(config))
    stepper.tick()
    stepper.feed(corrected("a", 0.0))
    revised_at = stepper.offset
    stepper.feed(corrected("a", 0.0, revision=1))
    by_user = replace(corrected("b", 1.0).turn_rewards[0], hint="")
    stepper.feed(make_score("b", 1.0, turn_rewards=(by_user,)))
    groups = [record for record in stepper.tick(2) if isinstance(record, Group)]
    places = {member.trajectory_id: member.hints_at for group in groups for member in group.members}
    assert places == {"a": Location(topic="t", partition=0, offset=revised_at), "b": None}
