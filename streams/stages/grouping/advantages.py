"""Scores of one group become advantages: how much better a member did than the others.

    mean            A_i = r_i − mean(r)
    mean_std        A_i = (r_i − mean(r)) / (std(r) + 1e-6), std of the population, as ART computes it
    unbiased_std    A_i = (r_i − mean(r)) / (std(r) + 1e-4), std with G − 1, as TRL and verl (with 1e-6) compute it
    leave_one_out   A_i = r_i − mean(r without r_i) = G / (G − 1) · (r_i − mean(r)), right for groups of unequal size

    expected        A = r − what was expected of a single attempt (`tracker.py`)

With `credit: turn` this is the advantage of what no turn earned alone; `turn_credit.py` adds what turns earned.

A group whose rewards are all equal within the tolerance has no signal, and its advantages are 0.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rollbus.schemas.ids import stable_id
from rollbus.schemas.record_makers import copier
from rollbus.schemas.records.groups import Group, GroupClosedBy, GroupMember
from rollbus.schemas.records.trajectories import Score
from rollbus.streams.stages.grouping.tracker import Expectation
from rollbus.streams.stages.grouping.turn_credit import (
    TurnCredit,
    centre,
    divide,
    expected_of_others,
    turn_advantages,
)

STD_FLOOR = 1e-6
"""As in ART: it keeps near-constant groups finite."""
UNBIASED_STD_FLOOR = 1e-4
"""As in TRL."""
ROUNDING = 1e-12
"""Of a reward: what a running mean of equal rewards may be off."""

_member_of = copier(
    *(Score, GroupMember),
    *("reward", "advantage", "min_policy_version", "max_policy_version", "score_revision", "expected", "expected_from"),
    *("expected_turn", "turn_advantages", "hints", "revised_at"),
)


@dataclass(frozen=True, slots=True)
class Statistics:
    """Of the rewards of one group."""

    mean: float
    std: float
    """Of the population."""
    low: float
    high: float

    def spread(self) -> float:
        """Return the distance between best and worst."""
        return self.high - self.low


def statistics(rewards_G: Sequence[float]) -> Statistics:
    """Return mean, deviation and range; exact summation makes them independent of order."""
    mean = math.fsum(rewards_G) / len(rewards_G)
    variance = math.fsum((reward - mean) ** 2 for reward in rewards_G) / len(rewards_G)
    return Statistics(mean, math.sqrt(variance), min(rewards_G), max(rewards_G))


def advantages(rewards_G: Sequence[float], kind: str) -> list[float]:
    """Return one advantage per reward; ValueError for a kind that this release does not know."""
    stats, size = statistics(rewards_G), len(rewards_G)
    other_count = max(size - 1, 1)  # of a group of one the distance is 0, whatever it is divided by
    distances_G = [reward - stats.mean for reward in rewards_G]
    if kind == "leave_one_out":
        return [size / other_count * distance for distance in distances_G]
    if kind == "mean":
        divisor = 1.0
    elif kind == "mean_std":
        divisor = stats.std + STD_FLOOR
    elif kind == "unbiased_std":
        divisor = stats.std * math.sqrt(size / other_count) + UNBIASED_STD_FLOOR
    else:
        raise ValueError(f"no kind of advantage {kind!r}; there are mean, mean_std, unbiased_std and leave_one_out")
    return [distance / divisor for distance in distances_G]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFrame:
    """The fields of a group that do not come from its members."""

    run_id: str
    group_key: str
    strategy: str
    advantage_kind: str
    tolerance: float
    closed_by: GroupClosedBy
    closed_at_ms: int
    config_hash: str
    turn_discount: float | None = None
    """None gives every token of a trajectory the same advantage."""


def make_group(frame: GroupFrame, scores: Iterable[Score]) -> Group:
    """Return the closed group of scored members."""
    ordered = sorted(scores, key=lambda score: score.trajectory_id)
    rewards_G = [_value(score) for score in ordered]
    stats = statistics(rewards_G)
    if frame.turn_discount is not None:
        credits_G = [divide(score) for score in ordered]
        if any(credit.earned for credit in credits_G):
            return _group_of_turns(frame, ordered, credits_G, stats)
    signal = stats.spread() > frame.tolerance
    advantages_G = advantages(rewards_G, frame.advantage_kind) if signal else [0.0] * len(ordered)
    return _group(frame, ordered, advantages_G, stats, signal)


def _group_of_turns(
    frame: GroupFrame, scores: Sequence[Score], credits_G: Sequence[TurnCredit], stats: Statistics
) -> Group:
    """Return a group whose turns have advantages of their own."""
    rests_G = advantages([credit.rest for credit in credits_G], frame.advantage_kind)
    earned_G = [[(place, turn_id) for turn_id in credit.earned] for place, credit in enumerate(credits_G)]
    places = [place_and_turn for of_member in earned_G for place_and_turn in of_member]
    if frame.advantage_kind == "leave_one_out":
        centred_G = [
            centre(credit, expected_return)
            for credit, expected_return in zip(credits_G, expected_of_others(credits_G), strict=True)
        ]
    else:
        centred_G = [dict[str, float]() for _ in credits_G]
        pool = [credits_G[place].earned[turn_id] for place, turn_id in places]
        for (place, turn_id), value in zip(places, advantages(pool, frame.advantage_kind), strict=True):
            centred_G[place][turn_id] = value
    by_turn_G = [
        turn_advantages(credit, rest, centred, frame.turn_discount or 0.0)
        for credit, rest, centred in zip(credits_G, rests_G, centred_G, strict=True)
    ]
    return _with_turns(_group(frame, scores, [0.0] * len(scores), stats, False), by_turn_G, frame.tolerance)


def _with_turns(group: Group, by_turn_G: Sequence[tuple[float, Mapping[str, float]]], tolerance: float) -> Group:
    """Return the group with these advantages, of the members and of their turns; without signal all are 0."""
    largest = max(abs(value) for whole, by_turn in by_turn_G for value in (whole, *by_turn.values()))
    if largest <= tolerance + ROUNDING * max(abs(group.reward_min), abs(group.reward_max)):
        return group
    members = tuple(
        replace(member, advantage=whole, turn_advantages=by_turn)
        for member, (whole, by_turn) in zip(group.members, by_turn_G, strict=True)
    )
    return replace(group, members=members, has_signal=True)


def make_single(
    frame: GroupFrame, score: Score, expected: Expectation | None, expected_turn: float | None = None
) -> Group:
    """Return the group of one score, held against what was expected; without an expectation it has no signal.

    With turn credit `expected` is of what no turn earned alone, and `expected_turn` of each rewarded turn.
    """
    reward = _value(score)
    credit = TurnCredit(reward) if frame.turn_discount is None else divide(score)
    advantage = 0.0 if expected is None else credit.rest - expected.value
    if credit.earned:
        by_turn = turn_advantages(credit, advantage, centre(credit, expected_turn), frame.turn_discount or 0.0)
        group = _with_turns(_group(frame, [score], [0.0], statistics([reward]), False), [by_turn], frame.tolerance)
    else:
        signal = abs(advantage) > frame.tolerance + ROUNDING * abs(reward)
        group = _group(frame, [score], [advantage if signal else 0.0], statistics([reward]), signal)
    if expected is None:
        return group
    (member,) = group.members
    member = replace(
        member,
        expected=expected.value,
        expected_from=expected.breadth,
        expected_turn=expected_turn if credit.earned else None,
    )
    return replace(group, members=(member,))


def expect_of_others(rewards_G: Sequence[float]) -> list[Expectation]:
    """Return for each of a task's first rewards what the others let expect."""
    total, other_count = math.fsum(rewards_G), len(rewards_G) - 1
    return [Expectation((total - reward) / other_count, "task") for reward in rewards_G]


def with_members(group: Group, members: Sequence[GroupMember], tolerance: float = 1e-9) -> Group:
    """Return the group as if it had closed with only these members; it keeps its id.

    If turns have advantages of their own, the members that stay keep theirs: rewards alone do not say them again.
    """
    rewards_G = [member.reward for member in members]
    stats = statistics(rewards_G)
    if any(member.turn_advantages for member in members):
        signal, advantages_G = group.has_signal, [member.advantage for member in members]
    else:
        signal = stats.spread() > tolerance
        advantages_G = advantages(rewards_G, group.advantage_kind) if signal else [0.0] * len(members)
    return replace(
        group,
        members=tuple(
            replace(member, advantage=advantage) for member, advantage in zip(members, advantages_G, strict=True)
        ),
        reward_mean=stats.mean,
        reward_std=stats.std,
        reward_min=stats.low,
        reward_max=stats.high,
        has_signal=signal,
    )


def _group(
    frame: GroupFrame, scores: Sequence[Score], advantages_G: Sequence[float], stats: Statistics, signal: bool
) -> Group:
    first = scores[0]
    return Group(
        group_id=group_id(frame.run_id, frame.group_key, [score.trajectory_id for score in scores]),
        run_id=frame.run_id,
        group_key=frame.group_key,
        model=first.model,
        task=first.task,
        example_id=first.example_id,
        strategy=frame.strategy,
        advantage_kind=frame.advantage_kind,
        members=tuple(_member(score, advantage) for score, advantage in zip(scores, advantages_G, strict=True)),
        reward_mean=stats.mean,
        reward_std=stats.std,
        reward_min=stats.low,
        reward_max=stats.high,
        has_signal=signal,
        closed_by=frame.closed_by,
        closed_at_ms=frame.closed_at_ms,
        reward_version=first.reward_version,
        config_hash=frame.config_hash,
    )


def group_id(run_id: str, group_key: str, trajectory_ids: Iterable[str]) -> str:
    """Return the id of a group: the same members of the same key in the same run make the same group."""
    return stable_id("group", run_id, group_key, *sorted(trajectory_ids))


def _member(score: Score, advantage: float) -> GroupMember:
    hints = {turn.turn_event_id: turn.event_id for turn in score.turn_rewards if turn.is_hint}
    return _member_of(
        score,
        reward=_value(score),
        advantage=advantage,
        min_policy_version=score.min_policy_version or 0,
        max_policy_version=score.max_policy_version or 0,
        score_revision=score.revision,
        expected=None,
        expected_from="",
        expected_turn=None,
        turn_advantages={},
        hints=hints,
        revised_at=score.revised_at if any(hints.values()) else None,
    )


def _value(score: Score) -> float:
    assert score.value is not None, score.trajectory_id
    return score.value
