"""Who wants a canary stopped or promoted cannot choose the draw, and brings no more than chance gives it."""

import numpy as np
import pytest

from rollbus.schemas.records.delivery import is_drawn, route
from rollbus.streams.stages.delivery.evidence.balance import Balance, may_count
from rollbus.streams.stages.delivery.metric_verdicts import findings
from tests.builders import START_MS, make_tick, make_version
from tests.streams.stages.test_delivery import Delivery, run_of

NONCE = "0f1e2d3c4b5a69788796a5b4c3d2e1f0"


class SaltedDelivery(Delivery):
    """Its ticks bring chance, as a ticker's do."""

    def tick(self, seconds: float = 0) -> list[object]:
        self.ticks += 1
        self.now_s += seconds
        tick = make_tick(self.ticks, stream_time_ms=START_MS + int(self.now_s * 1000))
        return self.feed(type(tick)(**{**{name: getattr(tick, name) for name in tick.__slots__}, "nonce": NONCE}))


def test_the_draw_is_keyed_with_an_unforeseeable_salt() -> None:
    delivery = SaltedDelivery()
    assert (delivery.now.action, delivery.now.salt) == ("canary", NONCE)
    names = [f"e{number}" for number in range(4_000)]
    chosen = [name for name in names if is_drawn("agent", 1, name, 0.2)]
    share = sum(route(delivery.now, name) == 1 for name in chosen) / len(chosen)
    assert 0.15 < share < 0.25, "ids that were chosen by the public hash are drawn by chance"


def test_a_next_canary_has_another_key_and_none_is_left_after_it() -> None:
    delivery = SaltedDelivery()
    delivery.command("promote", 1)
    assert (delivery.now.canary, delivery.now.salt) == (None, "")
    delivery.restore()
    delivery.say(make_version(2, parent=1, state="candidate"))
    delivery.tick(1)
    assert (delivery.now.canary, delivery.now.salt) == (2, NONCE)


def flood(delivery: Delivery, principal: str, *, episodes: int = 300) -> None:
    """Record episodes of the canary alone, all bad."""
    number = 0
    while episodes:
        number += 1
        if route(delivery.now, f"x{number}") == delivery.now.canary:
            episodes -= 1
            delivery.feed(delivery.observed(f"x{number}", 0.0, principal=principal))
    delivery.tick(1)


def test_a_principal_that_drops_one_arms_episodes_stops_no_canary() -> None:
    delivery = Delivery(run_of(metrics=()))
    delivery.play(100, canary=0.6, principal="honest")
    flood(delivery, "stranger")
    assert delivery.now.canary == 1
    assert delivery.state.head.unbalanced > 280
    delivery.restore()
    delivery.play_while_canary(canary=0.6, principal="honest")
    assert (delivery.now.action, delivery.now.numbers["unbalanced"] > 280) == ("promote", True)


def test_an_unlikely_share_of_unsigned_evidence_holds_the_canary() -> None:
    delivery = Delivery(run_of(metrics=(), margin=0.9))
    number = 0
    while delivery.state.head.unserved or number < 3_000:
        number += 1
        if route(delivery.now, f"x{number}") == 1:
            delivery.feed(delivery.observed(f"x{number}", 1.0))
        if number % 100 == 0:
            delivery.tick(1)
    assert (delivery.now.action, delivery.now.reason) == ("hold", "unbalanced")
    assert delivery.now.canary == 1


def play_liar(delivery: Delivery, liar: str, *, share: float, canary: float, serving: float, episodes: int) -> None:
    """Let honest episodes, of which 60 % are good, and those of a liar come by chance, a tick for each hundred."""
    chance = np.random.default_rng(5)
    for number in range(episodes):
        is_canary = route(delivery.now, f"l{number}") == 1
        is_lie, worth = chance.random() < share, chance.random()
        value = (canary if is_canary else serving) if is_lie else float(worth < 0.6)
        delivery.feed(delivery.observed(f"l{number}", value, principal=liar if is_lie else "honest"))
        if number % 100 == 99:
            delivery.tick(1)
        if delivery.now.canary is None:
            return


@pytest.mark.parametrize("liar", ["liar", ""])
def test_a_principal_with_less_than_half_the_episodes_stops_no_canary(liar: str) -> None:
    delivery = Delivery(run_of(metrics=()))
    delivery.restore()
    play_liar(delivery, liar, share=0.3, canary=0.0, serving=1.0, episodes=3_000)
    assert (delivery.now.action, delivery.now.reason) == ("hold", "one_principal:reward")
    assert (delivery.now.canary, delivery.now.numbers["reward.high"] < 0) == (1, True), "all of it says worse"


def test_a_principal_with_less_than_half_the_episodes_promotes_no_canary() -> None:
    delivery = Delivery(run_of(metrics=(), margin=0.01))
    play_liar(delivery, "liar", share=0.3, canary=1.0, serving=0.0, episodes=3_000)
    assert delivery.now.canary == 1
    config = delivery.state.config.value.delivery
    (verdict,) = findings(delivery.state, config)
    assert (verdict.verdict, delivery.state.effects.rows["reward"].log_evidence_above(0.0) > 10) == ("unknown", True)


def test_a_canary_worse_for_all_principals_is_stopped() -> None:
    delivery = Delivery(run_of(metrics=()))
    for number in range(4_000):
        value = 0.0 if route(delivery.now, f"w{number}") == 1 else 1.0
        delivery.feed(delivery.observed(f"w{number}", value, principal=f"agent-{number % 3}"))
        if number % 100 == 99:
            delivery.tick(1)
        if delivery.now.canary is None:
            break
    assert (delivery.now.action, delivery.now.reason) == ("quarantine", "worse:reward")


def test_unsigned_evidence_counts_as_one_principal() -> None:
    delivery = Delivery(run_of(metrics=()))
    delivery.play(100, canary=0.6, principal="honest")
    flood(delivery, "")
    assert (delivery.now.canary, delivery.state.head.unbalanced > 280) == (1, True)


def test_a_principal_may_have_a_share_of_an_arm_at_most() -> None:
    mine, everybody = Balance(), Balance()
    counted = 0
    for number in range(1_000):
        is_canary = number % 2 == 0
        everybody = everybody.add(is_canary=is_canary, share=0.5)
        if may_count(mine, everybody, is_canary=is_canary, share=0.5, most=0.05):
            mine, counted = mine.add(is_canary=is_canary, share=0.5), counted + 1
    assert 45 <= counted <= 52


def test_a_principal_may_have_all_of_its_share_of_an_arm() -> None:
    mine, everybody = Balance(serving=28, expected=14, variance=100), Balance(serving=99)
    assert may_count(mine, everybody, is_canary=False, share=0.5, most=0.29)
    assert not may_count(mine.add(is_canary=False, share=0.5), everybody, is_canary=False, share=0.5, most=0.29)
