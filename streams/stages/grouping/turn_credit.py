"""Rewards of single turns become advantages of those turns.

    r_t        what turn t earned: weight · value, over the components that speak of it
    rest       the trajectory's reward without what its turns earned
    c_t        r_t − what other turns earn: the mean of the other members' turns, or what was expected of a turn
    A_t        A(rest) + Σ c_k · discount^(k − t), over the turns k from t on

A(rest) is the group's advantage, or that of a single attempt, as without turn credit. With a discount of 0 a turn earns
its own reward alone, with 1 all that follows: that is process supervision of DeepSeekMath (arXiv 2402.03300), whose
centring of rewards by the mean over all turns is `mean` here. A turn of which nobody spoke has no c_t of its own.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollbus.schemas.records.trajectories import Score


@dataclass(frozen=True, slots=True)
class TurnCredit:
    """How the rewards of one trajectory are divided."""

    rest: float
    """What no turn earned alone."""
    turn_ids: tuple[str, ...] = ()
    """All turns in order; empty if there is one."""
    earned: Mapping[str, float] = field(default_factory=dict)
    """By event id of the turn."""


def divide(score: Score) -> TurnCredit:
    """Return what the turns of a scored trajectory earned, and the rest."""
    earned: dict[str, float] = defaultdict(float)
    in_value = []
    for turn in score.turn_rewards:
        if turn.value is not None and turn.weight:
            earned[turn.turn_event_id] += turn.weight * turn.value
            in_value.append(turn.weight * turn.share * turn.value)
    known_ids = score.turn_ids or tuple(earned)[:1]
    strays = earned.keys() - set(known_ids)
    if strays:  # a report on a turn that the trajectory does not have is of the whole
        return TurnCredit(_value(score), score.turn_ids)
    return TurnCredit(_value(score) - math.fsum(in_value), score.turn_ids, dict(earned))


def turn_advantages(
    credit: TurnCredit, rest_advantage: float, centred: Mapping[str, float], discount: float
) -> tuple[float, dict[str, float]]:
    """Return the trajectory's advantage, the mean of its turns', and those by turn; none if it has one turn."""
    if len(credit.turn_ids) < 2:
        return rest_advantage + math.fsum(centred.values()), {}
    if not centred:
        return rest_advantage, {}
    to_go, by_turn = 0.0, dict[str, float]()
    for turn_id in reversed(credit.turn_ids):
        to_go = centred.get(turn_id, 0.0) + discount * to_go
        by_turn[turn_id] = rest_advantage + to_go
    return math.fsum(by_turn.values()) / len(by_turn), by_turn


def expected_of_others(turn_credits: Sequence[TurnCredit]) -> list[float | None]:
    """Return for each trajectory what the turns of the others earn on average; None if none was rewarded."""
    sums = [math.fsum(credit.earned.values()) for credit in turn_credits]
    counts = [len(credit.earned) for credit in turn_credits]
    total, count = math.fsum(sums), sum(counts)
    return [
        (total - own_sum) / (count - own_count) if count > own_count else None
        for own_sum, own_count in zip(sums, counts, strict=True)
    ]


def centre(credit: TurnCredit, expected: float | None) -> dict[str, float]:
    """Return how much more each rewarded turn earned than expected; 0 where nothing is known to expect."""
    return {turn_id: 0.0 if expected is None else value - expected for turn_id, value in credit.earned.items()}


def _value(score: Score) -> float:
    assert score.value is not None, score.trajectory_id
    return score.value
