"""Estimates against worlds whose answer is known: near it, inside the interval, refused where the log says nothing."""

from math import log
from random import Random

import pytest

from rollbus.estimates.divergence import estimate_divergence, refuse_divergence
from rollbus.estimates.episode import Step, WeightedEpisode
from rollbus.estimates.estimators import BEST, Estimates, estimate_reward
from rollbus.estimates.overlap import measure_overlap
from tests.estimates.coverage import DRIFTS, WORLDS, measure_coverage, measure_drift
from tests.estimates.coverage import ESTIMATORS as NAMES
from tests.estimates.worlds import KnownWorld, bandit, drift, game, long_answers


def estimate(world: KnownWorld, episodes: int, seed: int = 1) -> Estimates:
    return estimate_reward(world.draw(Random(seed), episodes), low=0, high=1)


def one_step_episode(name: str, log_ratio: float, reward: float) -> WeightedEpisode:
    return WeightedEpisode(name, "task", name, (Step(log_ratio, reward),))


def test_a_version_equal_to_the_recorded_one_earns_the_same() -> None:
    episodes = [one_step_episode(f"e{n}", 0.0, float(n % 4 == 0)) for n in range(200)]
    estimates = estimate_reward(episodes, low=0, high=1)
    assert (estimates.overlap.effective, estimates.overlap.mean_weight, estimates.overlap.missing) == (200, 1, 0)
    assert {name: estimate.earned.value for name, estimate in estimates.by_name.items()} == pytest.approx(
        dict.fromkeys(NAMES, 0.25), abs=0.01
    )
    assert abs(estimates.by_name["ips"].difference.high) < 1e-9, (
        "the same episodes: no chance is left in the difference"
    )


def test_a_case_worked_by_hand() -> None:
    # 100 episodes of weight 2 that earn 1, and 100 of weight ½ that earn 0; the mean weight is 1.25
    episodes = [one_step_episode(f"a{n}", log(2), 1.0) for n in range(100)] + [
        one_step_episode(f"b{n}", -log(2), 0.0) for n in range(100)
    ]
    estimates = estimate_reward(episodes, low=0, high=1)
    assert estimates.overlap.refusal.startswith("the weights have the mean 1.25 and should have 1")
    # with 50 of weight 2 and 150 of weight ⅔ it is 1: (50 · 2) / 200 = ½ is earned where the log earned ¼
    episodes = [one_step_episode(f"a{n}", log(2), 1.0) for n in range(50)] + [
        one_step_episode(f"b{n}", log(2 / 3), 0.0) for n in range(150)
    ]
    estimates = estimate_reward(episodes, low=0, high=1)
    assert estimates.by_name["ips"].earned.value == pytest.approx(0.5)
    assert estimates.by_name["self_normalised"].earned.value == pytest.approx(0.5)
    assert estimates.by_name["ips"].difference.value == pytest.approx(0.25)
    assert estimates.log.value == 0.25
    assert estimates.overlap.effective == pytest.approx(200**2 / (50 * 4 + 150 * 4 / 9))


def test_equal_rewards_still_have_an_interval() -> None:
    estimates = estimate_reward([one_step_episode(f"e{n}", 0.0, 0.0) for n in range(200)], low=0, high=1)
    wilson = 1.96**2 / (200 + 1.96**2)
    assert (estimates.log.value, estimates.log.low) == (0, 0)
    assert estimates.log.high == pytest.approx(wilson, rel=1e-3)
    assert estimates.by_name[BEST].earned.high == pytest.approx(wilson, rel=1e-3)
    # half of them twice as likely, so that they are worth fewer of the version's own: it may earn where the log did not
    weights = [log(1.5) if n % 2 else log(0.5) for n in range(200)]
    moved = estimate_reward(
        [one_step_episode(f"e{n}", log_ratio, 0.0) for n, log_ratio in enumerate(weights)], low=0, high=1
    )
    assert moved.by_name[BEST].earned.high > wilson
    assert moved.by_name[BEST].difference.low < 0 < moved.by_name[BEST].difference.high


def test_a_turn_is_weighted_only_by_earlier_turns() -> None:
    """The first turn earns 1 and is as likely in both versions; the second one moves only the plain weights."""
    likely, unlikely = (Step(0.0, 1.0), Step(log(2), 0.0)), (Step(0.0, 1.0), Step(log(2 / 3), 0.0))
    episodes = [WeightedEpisode(f"e{n}", "t", "o", likely if n % 4 == 0 else unlikely) for n in range(400)]
    estimates = estimate_reward(episodes, low=0, high=2)
    per_decision, ips = estimates.by_name["per_decision"].earned, estimates.by_name["ips"].earned
    assert per_decision.value == pytest.approx(1.0)
    assert per_decision.high - per_decision.low < 0.5 * (ips.high - ips.low)


def test_estimates_have_the_unit_and_the_bounds_of_their_rewards() -> None:
    world = bandit(0.4)
    episodes = world.draw(Random(3), 2_000)
    stretched = [
        WeightedEpisode(e.episode_id, e.task, e.opening, (Step(e.steps[0].log_ratio, 30 * e.reward - 10),), e.answer,
               e.answer_probability)
        for e in episodes
    ]  # fmt: skip
    plain, stretched_estimates = estimate_reward(episodes, low=0, high=1), estimate_reward(stretched, low=-10, high=20)
    for name in NAMES:
        one_unit, stretched_unit = plain.by_name[name], stretched_estimates.by_name[name]
        assert stretched_unit.earned.value == pytest.approx(30 * one_unit.earned.value - 10)
        assert stretched_unit.earned.low == pytest.approx(30 * one_unit.earned.low - 10)
        assert stretched_unit.difference.high == pytest.approx(30 * one_unit.difference.high)
    cut = estimate_reward([one_step_episode(f"e{n}", 0.0, 1e9 if n % 2 else 0.0) for n in range(200)], low=0, high=1)
    assert (cut.outside, cut.by_name["ips"].earned.value) == (100, 0.5)


def test_a_fitted_model_of_the_answers_makes_the_estimate_more_certain() -> None:
    world, wins = bandit(0.8), 0
    widths = dict.fromkeys(NAMES, 0.0)
    for seed in range(20):
        estimates = estimate(world, 1_000, seed)
        best, ips = (abs(estimates.by_name[name].earned.value - world.truth) for name in (BEST, "ips"))
        wins += best < ips
        for name in NAMES:
            widths[name] += estimates.by_name[name].earned.high - estimates.by_name[name].earned.low
    assert wins >= 12
    assert widths[BEST] < widths["self_normalised"] < widths["ips"]


def test_the_reward_of_each_turn_makes_the_estimate_of_a_game_more_certain() -> None:
    estimates = estimate(game(0.15), 3_000)
    per_decision, ips = estimates.by_name["per_decision"].earned, estimates.by_name["ips"].earned
    assert per_decision.high - per_decision.low < ips.high - ips.low
    assert per_decision.low <= 0.65 <= per_decision.high


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_the_intervals_hold_the_truth_as_often_as_they_say(name: str) -> None:
    world, episodes = WORLDS[name]
    coverage, refused = measure_coverage(world, runs=200, episodes=episodes)
    assert refused < 0.5
    assert min(coverage.values()) >= 0.93, coverage


REFUSED_WORLDS = {
    "a version that has moved far": (long_answers(3.0), "episodes are worth"),
    "answers that were never recorded": (bandit(0.3, never=0.4), "of what the version would do"),
    "a game that is played quite differently": (game(0.49, turns=12), ""),
}


@pytest.mark.parametrize(("world", "says"), REFUSED_WORLDS.values(), ids=REFUSED_WORLDS)
def test_a_version_outside_the_log_has_no_estimate(world: KnownWorld, says: str) -> None:
    estimates = estimate(world, 1_000)
    assert estimates.by_name == {}
    assert estimates.overlap.refusal
    assert says in estimates.overlap.refusal or "of what the version would do" in estimates.overlap.refusal


def test_few_episodes_are_refused() -> None:
    assert estimate(bandit(0.1), 99).overlap.refusal.startswith("99 episodes are too few, it takes 100")
    assert estimate_reward([], low=0, high=1).overlap.refusal.startswith("0 episodes are too few")


@pytest.mark.parametrize(("rewards", "earned"), [([], 1.0), ([4.0], 4.0)])
def test_what_too_few_episodes_earned_lies_within_the_bounds(rewards: list[float], earned: float) -> None:
    episodes = [one_step_episode(f"e{n}", 0.0, reward) for n, reward in enumerate(rewards)]
    log = estimate_reward(episodes, low=1, high=5).log
    assert (log.value, log.low, log.high) == (earned, 1, 5)


def test_log_probs_of_unsampled_tokens_are_noticed() -> None:
    episodes = [one_step_episode(f"e{n}", 0.5, 1.0) for n in range(500)]
    assert "should have 1" in estimate_reward(episodes, low=0, high=1).overlap.refusal


def test_a_weight_beyond_all_bounds_is_clipped_and_its_mass_is_missing() -> None:
    episodes = [one_step_episode(f"e{n}", 0.0, 1.0) for n in range(999)] + [one_step_episode("far", 1e6, 0.0)]
    estimates = estimate_reward(episodes, low=0, high=1)
    assert estimates.overlap.clipped == 1
    assert estimates.overlap.refusal


def test_the_divergence_is_the_one_that_was_built_in() -> None:
    chance, other_policy, recorded_policy = Random(4), (0.7, 0.3), (0.5, 0.5)
    drawn = [chance.random() < 0.5 for _ in range(20_000)]
    ratios = [
        log(other_policy[0] / recorded_policy[0]) if is_first_answer else log(other_policy[1] / recorded_policy[1])
        for is_first_answer in drawn
    ]
    weights = [2.718281828459045**ratio for ratio in ratios]
    interval = estimate_divergence(weights, ratios, [1] * len(ratios), overlap=measure_overlap(weights))
    truth = 0.7 * log(1.4) + 0.3 * log(0.6)
    assert interval.low < truth < interval.high
    assert interval.high - interval.low < 0.03


@pytest.mark.slow
@pytest.mark.parametrize("name", ["answers of one token, further", "answers of up to 16 tokens, further"])
def test_the_interval_of_the_divergence_holds_the_truth_as_often_as_it_says(name: str) -> None:
    world, answers = DRIFTS[name]
    coverage, refused = measure_drift(world, runs=200, answers=answers)
    assert refused < 0.05
    assert coverage >= 0.93


def test_a_divergence_in_unrecorded_answers_is_not_guessed() -> None:
    """The log shows nine tenths of it, which are near the base; the whole version is not."""
    world = drift(0.3, 0.1, never=0.1)
    weights = [2.718281828459045**log_ratio for log_ratio, _, _ in world.draw(Random(1), 1_000)]
    assert "the log shows 90% of what the version would do" in refuse_divergence(measure_overlap(weights))
    _, refused = measure_drift(world, runs=50, answers=400)
    assert refused == 1
    near, _ = DRIFTS["answers of one token, near"]
    _, refused = measure_drift(near, runs=50, answers=400)
    assert refused == 0
