"""Expected rewards, habits of tasks, and what batches make of single attempts."""

import math
import random
from statistics import fmean, pvariance

import pytest

from rollbus.streams.stages.curriculum.batching import centred, count_that_fit, usual_age_ms
from rollbus.streams.stages.grouping.habits import Habit
from rollbus.streams.stages.grouping.tracker import KEEP_PER_VERSION, MOST_WEIGHT, Level, expectation
from tests.builders import make_group, make_member


def level(*rewards: float, version: int = 0) -> Level:
    made = Level()
    for reward in rewards:
        made = made.add(reward, version, 0)
    return made


def test_a_level_is_the_mean_of_its_rewards() -> None:
    made = level(0.0, 1.0, 1.0)
    assert (made.total, made.weight) == (2.0, 3.0)


def test_a_reward_counts_less_with_every_version_since() -> None:
    made = level(0.0).add(1.0, 2, 0)
    assert made.total / made.weight == pytest.approx(1 / (1 + KEEP_PER_VERSION**2))


def test_a_reward_of_an_old_version_counts_less_also_where_it_comes_last() -> None:
    late, early = level(1.0, version=2).add(0.0, 0, 0), level(0.0).add(1.0, 2, 0)
    assert (late.total, late.weight) == pytest.approx((early.total, early.weight))


def test_a_level_rests_on_a_bounded_number_of_rewards() -> None:
    made = level(*[0.0] * 1_000, *[1.0] * int(MOST_WEIGHT))
    assert made.weight == MOST_WEIGHT
    assert made.total / made.weight > 0.6


def test_a_narrow_level_leans_on_the_wider_one_until_it_has_seen_enough() -> None:
    task = level(*[0.0] * 20)
    once, often = (expectation([("task", task), ("example", level(*[1.0] * count))]) for count in (1, 8))
    assert once is not None
    assert often is not None
    assert (once.breadth, often.breadth) == ("task", "example")
    assert (once.value, often.value) == pytest.approx((1 / 3, 0.8))


def test_nothing_is_expected_of_what_nothing_is_known_of() -> None:
    assert expectation([("task", Level()), ("example", Level())]) is None


@pytest.mark.parametrize(("size", "expected"), [(1, False), (2, True), (8, True)])
def test_attempts_that_come_in_groups_are_a_habit(size: int, expected: bool) -> None:
    habit = Habit()
    for number in range(40):
        habit = habit.with_attempt(again=number % size > 0)
    assert habit.comes_again is expected


@pytest.mark.parametrize(("delay_ms", "grace_ms"), [(0, 1_000), (3_000, 4_000), (8_000, 8_000), (600_000, 1_024_000)])
def test_scores_wait_as_long_as_late_rewards_take(delay_ms: int, grace_ms: int) -> None:
    assert Habit().with_rewarded().with_late_change(delay_ms).grace_ms(2_000_000) == grace_ms


def test_seldom_late_rewards_make_no_score_wait() -> None:
    habit = Habit().with_late_change(3_000)
    for _ in range(100):
        habit = habit.with_rewarded()
    assert habit.grace_ms(600_000) == 0


def test_a_delay_of_months_is_counted_and_not_waited_for() -> None:
    assert Habit().with_rewarded().with_late_change(10**10).grace_ms(600_000) == 0


def single(name: str, advantage: float, **fields: int) -> object:
    return make_group(name, (1.0,), closed_by="single", members=(make_member(name, advantage=advantage, **fields),))


def test_single_attempts_of_a_batch_are_centred_and_groups_are_not() -> None:
    singles = [single(f"s{number}", float(number)) for number in range(8)]
    group = make_group("g")
    made = centred([*singles, group], "mean")  # type: ignore[list-item]
    assert made[-1] == group
    assert [each.members[0].advantage for each in made[:-1]] == [number - 3.5 for number in range(8)]


def test_few_single_attempts_keep_their_advantages() -> None:
    singles = [single(f"s{number}", 1.0) for number in range(7)]
    assert centred(singles, "mean") == singles  # type: ignore[arg-type]


def test_a_batch_takes_as_many_single_attempts_as_full_groups_would_have() -> None:
    singles = [single(f"s{number}", 1.0) for number in range(40)]
    assert count_that_fit([make_group("g"), *singles], 4, 8) == 25  # type: ignore[list-item]
    assert count_that_fit([make_group(f"g{number}") for number in range(9)], 4, 8) == 4


def test_the_usual_age_is_that_of_most_attempts() -> None:
    singles = [(single(f"s{number}", 1.0, first_seen_ms=100 - number), 110) for number in (1, 2, 3, 90)]
    assert usual_age_ms(singles) == 12  # type: ignore[arg-type]
    assert usual_age_ms([(make_group("g"), 5)]) == 0


def test_the_tracker_takes_most_of_the_variance_that_groups_of_eight_take() -> None:
    """A softmax policy over two answers, examples of known difficulty: the score-function gradient's error per attempt.

    Without a baseline, with the tracker over single attempts, and with leave-one-out in groups of eight; the truth is
    the exact gradient, so the mean squared distance to it is the variance.
    """
    chance = random.Random(7)
    chances = [chance.betavariate(2, 2) for _ in range(400)]
    errors: dict[str, list[float]] = {"none": [], "tracker": [], "groups": []}
    task, level_by_example = Level(), [Level()] * len(chances)
    for _ in range(20):
        for example in chance.sample(range(len(chances)), len(chances)):
            right = chances[example]
            rewards = [float(chance.random() < right) for _ in range(8)]
            scores = [reward - right for reward in rewards]  # d log-prob of the answer given
            truth = right * (1 - right)
            expected = expectation([("task", task), ("example", level_by_example[example])])
            value = expected.value if expected else 0.0
            errors["none"].append(rewards[0] * scores[0] - truth)
            errors["tracker"].append((rewards[0] - value) * scores[0] - truth)
            total = sum(rewards)
            errors["groups"].append((rewards[0] - (total - rewards[0]) / 7) * scores[0] - truth)
            task = task.add(rewards[0], 0, 0)
            level_by_example[example] = level_by_example[example].add(rewards[0], 0, 0)
    variances = {name: pvariance(values, 0.0) for name, values in errors.items()}
    for name, values in errors.items():
        standard_error = math.sqrt(variances[name] / len(values))
        assert abs(fmean(values)) < 4 * standard_error, f"{name} is biased"
    assert variances["groups"] < 0.7 * variances["none"]
    saved = (variances["none"] - variances["tracker"]) / (variances["none"] - variances["groups"])
    assert saved > 0.9
