"""How long an episode waits before it is counted, and what becomes of canaries whose rewards come later."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from rollbus.streams.stages.delivery.evidence.waiting import LEAST_REWARDS, Delays, choose_wait
from tests.streams.stages.delivery.evidence.late_canaries import NAIVE, LateWorld, play

ALPHA = 0.05
HOUR_MS = 3_600_000
NONE: Counter[int] = Counter()


def delays_of(ages: list[int], never: int = 0) -> Delays:
    delays = Delays(never=never)
    for age_ms in ages:
        delays = delays.add(age_ms)
    return delays


def test_the_wait_is_the_age_by_which_nearly_all_rewards_came() -> None:
    chance = Random(5)
    delays = delays_of([int(chance.expovariate(1 / 1_000)) for _ in range(5_000)])
    wait_ms = choose_wait(delays, came=NONE, outstanding=NONE, longest_ms=HOUR_MS)
    assert wait_ms == pytest.approx(6_908, rel=0.25), "1,000 ln 1,000"


def test_rewards_that_never_come_are_not_waited_for() -> None:
    delays = delays_of([10] * 200, never=300)
    assert choose_wait(delays, came=NONE, outstanding=Counter({20: 50}), longest_ms=HOUR_MS) == 10


def test_the_latest_reward_so_far_lengthens_the_wait() -> None:
    delays = delays_of([10] * 200)
    assert choose_wait(delays, came=Counter({70_000: 1}), outstanding=NONE, longest_ms=HOUR_MS) == 70_000


def test_too_few_rewards_do_not_shorten_the_wait() -> None:
    delays = delays_of([10] * (LEAST_REWARDS - 1), never=10_000)
    assert choose_wait(delays, came=Counter({10: 10_000}), outstanding=NONE, longest_ms=HOUR_MS) is None


def test_ages_are_kept_to_two_digits_and_never_too_short() -> None:
    chance, delays = Random(3), Delays()
    for _ in range(20_000):
        delays = delays.add(chance.randrange(HOUR_MS))
    assert len(delays.came) < 600
    assert delays_of([1_234]).came == {1_300: 1}


@pytest.mark.slow
def test_waiting_for_late_rewards_keeps_a_good_canary() -> None:
    _require_few_errors(runs=3, naive_runs=3)


@pytest.mark.faults
@pytest.mark.timeout(1800)
def test_few_canaries_with_late_rewards_are_judged_wrongly() -> None:
    _require_few_errors(runs=200, naive_runs=40)


@pytest.mark.slow
def test_a_canary_that_is_worse_is_stopped_although_its_rewards_come_later() -> None:
    ended = [play(LateWorld(effect=-0.3, episodes=1_500), seed) for seed in range(2)]
    assert [course.now.reason for course in ended] == ["worse:reward"] * 2


def _require_few_errors(*, runs: int, naive_runs: int) -> None:
    world = LateWorld()  # both versions earn the same, and praise of the canary is late
    courses = [play(world, seed) for seed in range(runs)]
    wrong = [course for course in courses if course.now.action == "quarantine" or "better" in course.verdicts]
    assert len(wrong) <= ALPHA * runs
    assert any(course.state.head.wait_ms < world.wait_ms / 2 for course in courses), "it need not wait for the longest"
    for changes in NAIVE.values():
        naive = [play(replace(world, **changes), seed) for seed in range(naive_runs)]
        judged = [course for course in naive if course.now.action == "quarantine" or "better" in course.verdicts]
        assert len(judged) > 0.5 * naive_runs, "the way that is not taken is the negative control"
