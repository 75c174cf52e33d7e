"""An episode waits until its reward has probably come, by the delays of both versions; never longer than wait_ms."""

from random import Random
from typing import Any

import pytest

from rollbus.schemas.records.config import MetricConfig
from rollbus.schemas.records.delivery import PolicyDecision, route
from rollbus.streams.stages.delivery.evidence.waiting import LEAST_REWARDS, UNSEEN
from rollbus.streams.stages.delivery.waiting import MOST_FOLLOWED
from tests.streams.stages.test_delivery import Delivery, decide, run_of

pytestmark = pytest.mark.slow

WAIT_S, WAIT_MS = 60, 60_000
THUMBS = MetricConfig(of="component:thumbs", low=-1, high=1, goal="more", tolerance=0.9)
RUN = run_of(wait_ms=WAIT_MS, min_episodes=10_000, steps=(0.5,), metrics=())


def play_late(delivery: Delivery, seconds: int, *, canary_s: int, serving_s: int, **fields: Any) -> None:
    """Play ten episodes a second whose rewards come so many seconds later, a tenth of them never."""
    came: dict[int, list[Any]] = {}
    for second in range(seconds + 10):
        names = [f"s{delivery.episodes + number}" for number in range(10)] if second < seconds else []
        delivery.episodes += len(names)
        for number, name in enumerate(names):
            is_canary = route(delivery.now, name) == delivery.now.canary
            delivery.feed(delivery.observed(name, None, **fields))
            if number:
                late = delivery.observed(name, float(number % 2), revision=1, **fields)
                came.setdefault(second + (canary_s if is_canary else serving_s), []).append(late)
        delivery.feed(*came.pop(second, []))
        delivery.tick(1)


def test_after_both_curves_are_known_an_episode_waits_for_the_slower_version() -> None:
    delivery = Delivery(RUN)
    play_late(delivery, 40, canary_s=7, serving_s=2)
    assert delivery.state.head.wait_ms is None, "nothing was followed for the longest wait"
    play_late(delivery, 60, canary_s=7, serving_s=2)
    assert delivery.state.head.wait_ms == 7_100
    play_late(delivery, 70, canary_s=7, serving_s=2)
    waiting = delivery.state.dues.rows.keys()
    assert waiting == delivery.state.waiting.rows.keys()
    assert len(waiting) < 10 * WAIT_S / 4, "the others were counted before wait_ms was over"


def test_outstanding_rewards_widen_the_interval_of_a_decision() -> None:
    delivery = Delivery(RUN)
    play_late(delivery, 200, canary_s=5, serving_s=2)
    effect = delivery.state.effects.rows["reward"]
    delivery.command("reject", 1)
    numbers, alpha = delivery.now.numbers, 0.05
    assert numbers["wait_ms"] == 5_100
    assert numbers["reward.low"] == effect.interval(alpha)[0] - UNSEEN


def test_a_component_that_comes_later_than_the_reward_is_waited_for() -> None:
    delivery = Delivery(run_of(wait_ms=WAIT_MS, min_episodes=10_000, steps=(0.5,), metrics=(THUMBS,)))
    for second in range(150):
        for number in range(10):
            name = f"c{second}-{number}"
            delivery.feed(delivery.observed(name, 1.0))
            if second >= 9:
                earlier = f"c{second - 9}-{number}"
                delivery.feed(delivery.observed(earlier, 1.0, revision=1, components={"thumbs": 1.0}))
        delivery.tick(1)
    assert delivery.state.head.wait_ms == 9_100
    effects = delivery.state.effects.rows
    assert effects["component:thumbs"].canary == effects["reward"].canary > 0


def test_the_followed_episodes_are_bounded_and_end_with_the_canary() -> None:
    delivery = Delivery(RUN)
    for number in range(4_000):
        delivery.feed(delivery.observed(f"e{number}", None))
    assert len(delivery.state.followed.rows) == 2 * MOST_FOLLOWED
    delivery.tick(WAIT_S)
    assert not delivery.state.followed.rows
    assert {delays.never for delays in delivery.state.delays.rows.values()} == {MOST_FOLLOWED}
    delivery.command("reject", 1)
    assert not delivery.state.delays.rows
    assert delivery.state.head.wait_ms is None


def test_excluded_episodes_and_older_revisions_are_not_followed() -> None:
    delivery = Delivery(RUN)
    delivery.feed(delivery.observed("a", None), delivery.observed("b", None))
    delivery.tick(3)
    delivery.feed(delivery.observed("b", 1.0, revision=2), delivery.observed("b", None, revision=1))
    delivery.feed(delivery.observed("a", None, revision=1, excluded=True))
    assert {name: row.came for name, row in delivery.state.followed.rows.items()} == {"b": {"reward": 3_001}}


def test_a_history_of_immediate_rewards_ends_the_wait() -> None:
    delivery = Delivery(RUN)
    while delivery.state.head.wait_ms is None:
        for number in range(10):
            delivery.feed(delivery.observed(f"e{delivery.episodes + number}", 1.0))
        delivery.episodes += 10
        delivery.tick(1)
    assert delivery.episodes < 4 * LEAST_REWARDS + 10 * WAIT_S
    assert delivery.state.head.wait_ms == 0
    delivery.tick(WAIT_S)
    delivery.feed(delivery.observed("last", 1.0))
    delivery.tick(1)
    assert not delivery.state.waiting.rows


def test_the_same_log_gives_the_same_waits_over_repeats_and_restarts() -> None:
    run, chance = run_of(wait_ms=20_000, min_episodes=200, steps=(0.5,), metrics=()), Random(4)
    live = Delivery(run)
    play_late(live, 70, canary_s=6, serving_s=2)
    assert live.now.action == "promote"
    twice = [again for record in live.records_taken for again in [record] * chance.choice((1, 1, 2))]
    outputs, state = decide(twice, run, restarts=chance)
    assert [output for output in outputs if isinstance(output, PolicyDecision)] == live.decisions
    assert state.head == live.state.head
