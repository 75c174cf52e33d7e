"""What is published of an estimate."""

from collections import Counter

from rollbus.estimates.episode import Step, WeightedEpisode
from rollbus.estimates.estimate import Estimated
from rollbus.estimates.estimators import estimate_reward


def test_rewards_outside_their_bounds_are_counted_in_the_record() -> None:
    episodes = [WeightedEpisode(f"e{n}", "task", "prompt", (Step(0.0, 2.0 if n < 3 else 1.0),)) for n in range(200)]
    evaluation = Estimated(1, estimate_reward(episodes, low=0, high=1), Counter(), None, "set").to_evaluation(
        "m", "main"
    )
    assert (evaluation.metrics["outside"], evaluation.metrics["ips"]) == (3, 1)
