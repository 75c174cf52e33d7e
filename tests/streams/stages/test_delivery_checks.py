"""A candidate's evaluations decide whether it becomes the canary: held-out sets, estimates, distance from the base."""

import math
import zlib
from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.records.config import CheckConfig
from rollbus.schemas.records.delivery import PolicyDecision
from rollbus.schemas.records.steps import Evaluation
from tests.builders import START_MS, make_version
from tests.streams.stages.test_delivery import Delivery, actions, run_of

HELD_OUT = CheckConfig(evaluation="held-out", metric="reward", tolerance=0.05)
ESTIMATE = CheckConfig(evaluation="off-policy", metric="difference", limit=-0.02)
DRIFT = CheckConfig(evaluation="off-policy", metric="kl", goal="less", limit=0.1, on_worse="hold")


def make_evaluation(
    version: int, name: str = "held-out", *, set_hash: str = "s", model: str = "agent", **metrics: float
) -> Evaluation:
    return Evaluation(
        evaluation_id=f"{name} {version} {set_hash}",
        model=model,
        policy_version=version,
        run_id="main",
        name=name,
        episodes=100,
        metrics=metrics,
        set_hash=set_hash,
        evaluated_at_ms=START_MS + zlib.crc32(repr(metrics).encode()) % 1_000,  # another measurement, another time
    )


def held_out(version: int, value: float, **fields: Any) -> Evaluation:
    return make_evaluation(version, reward=value, reward_low=value - 0.03, reward_high=value + 0.03, **fields)


def waiting(*checks: CheckConfig, **delivery: Any) -> Delivery:
    """Version 0 serves, 1 is a candidate, and checks are asked for."""
    waiting_delivery = Delivery(run_of(checks=checks, **delivery), candidate=None)
    waiting_delivery.say(make_version(1, parent=0, state="candidate"))
    waiting_delivery.tick(1)
    return waiting_delivery


def last(delivery: Delivery) -> tuple[str, int | None, str]:
    now: PolicyDecision = delivery.now
    return now.action, now.version, now.reason


def test_a_candidate_waits_for_its_evaluation_and_that_is_reported_once() -> None:
    delivery = waiting(HELD_OUT)
    delivery.tick(60)
    assert actions(delivery) == [("serve", 0), ("hold", 1)]
    assert last(delivery) == ("hold", 1, "missing:held-out:reward")
    delivery.feed(held_out(1, 0.6))
    delivery.tick(1)
    assert delivery.now.canary is None, "the serving version was not measured"
    delivery.feed(held_out(0, 0.6))
    delivery.tick(1)
    assert last(delivery) == ("canary", 1, "newest_candidate")
    assert delivery.now.numbers["held-out:reward.effect"] == pytest.approx(0)
    assert delivery.now.numbers["held-out:reward.low"] == pytest.approx(-((0.03**2 * 2) ** 0.5))


def test_a_candidate_worse_on_the_held_out_set_is_quarantined() -> None:
    delivery = waiting(HELD_OUT)
    delivery.feed(make_version(2, parent=1, state="candidate"), held_out(0, 0.6), held_out(1, 0.4))
    delivery.tick(1)
    assert last(delivery) == ("quarantine", 1, "worse:held-out:reward")
    assert (delivery.now.serving, delivery.now.canary) == (0, None)
    assert delivery.now.numbers["held-out:reward.effect"] == pytest.approx(-0.2)
    assert {(m.version, m.state) for m in delivery.marks} == {(1, "quarantined"), (2, "quarantined")}


@pytest.mark.parametrize("metrics", [{"kl": math.nan}, {"kl": 0.01, "kl_low": math.nan, "kl_high": 0.02}])
def test_a_measurement_of_nan_lets_no_candidate_pass(metrics: dict[str, Any]) -> None:
    delivery = waiting(DRIFT)
    delivery.feed(make_evaluation(1, "off-policy", **metrics))
    delivery.tick(1)
    assert last(delivery) == ("hold", 1, "refused:off-policy:kl")


@pytest.mark.parametrize(("serving", "candidate"), [(math.nan, 0.6), (0.6, math.nan), (math.inf, math.inf)])
def test_a_difference_of_nan_lets_no_candidate_pass(serving: float, candidate: float) -> None:
    delivery = waiting(HELD_OUT)
    delivery.feed(held_out(0, serving), held_out(1, candidate))
    delivery.tick(1)
    assert last(delivery) == ("hold", 1, "refused:held-out:reward")


def test_an_evaluation_that_comes_again_does_not_replace_a_newer_one() -> None:
    delivery = waiting(HELD_OUT)
    worse = held_out(1, 0.1)
    better = replace(held_out(1, 0.6), evaluated_at_ms=worse.evaluated_at_ms + 1)
    delivery.feed(worse, better, worse)
    delivery.feed(held_out(0, 0.6))
    delivery.tick(1)
    assert last(delivery) == ("canary", 1, "newest_candidate")
    delivery.feed(worse, better)
    assert delivery.now.canary == 1


def test_an_older_measurement_that_comes_late_does_not_replace_a_newer_one() -> None:
    delivery = waiting(HELD_OUT)
    better = held_out(1, 0.6)
    delivery.feed(better, replace(held_out(1, 0.1), evaluated_at_ms=better.evaluated_at_ms - 1), held_out(0, 0.6))
    delivery.tick(1)
    assert last(delivery) == ("canary", 1, "newest_candidate")
    delivery.feed(replace(held_out(1, 0.2), evaluated_at_ms=better.evaluated_at_ms - 2))
    assert delivery.now.canary == 1


def test_a_candidate_that_may_be_as_good_goes_on_to_the_canary() -> None:
    delivery = waiting(HELD_OUT)
    delivery.feed(held_out(0, 0.6), held_out(1, 0.55))
    delivery.tick(1)
    assert last(delivery) == ("canary", 1, "newest_candidate")


def test_an_evaluation_of_another_set_compares_nothing_and_is_never_promoted() -> None:
    delivery = waiting(HELD_OUT)
    delivery.feed(held_out(0, 0.6), held_out(1, 0.9, set_hash="another"))
    delivery.tick(1)
    delivery.tick(500)
    assert [decision.reason for decision in delivery.decisions[1:]] == [
        "missing:held-out:reward",
        "set_changed:held-out:reward",
    ]
    assert delivery.now.serving == 0
    delivery.feed(held_out(0, 0.6, set_hash="another"))
    delivery.tick(1)
    assert last(delivery) == ("canary", 1, "newest_candidate"), "both are measured on the new set"


@pytest.mark.parametrize(("kl", "low", "says"), [(0.2, 0.15, "worse:off-policy:kl"), (0.11, 0.05, "newest_candidate")])
def test_a_version_that_is_far_from_the_base_waits_for_an_operator(kl: float, low: float, says: str) -> None:
    delivery = waiting(DRIFT)
    delivery.feed(make_evaluation(1, "off-policy", kl=kl, kl_low=low, kl_high=2 * kl - low))
    delivery.tick(1)
    assert delivery.now.reason == says
    if delivery.now.action == "hold":
        delivery.tick(50)
        (canary,) = delivery.command("canary", 1)
        assert (canary.action, canary.canary) == ("canary", 1)


def test_an_estimate_that_says_worse_spares_the_episodes_of_a_canary() -> None:
    delivery = waiting(ESTIMATE)
    delivery.feed(make_evaluation(1, "off-policy", difference=-0.2, difference_low=-0.3, difference_high=-0.1))
    delivery.tick(1)
    assert last(delivery) == ("quarantine", 1, "worse:off-policy:difference")
    assert delivery.now.numbers["off-policy:difference.high"] == -0.1


@pytest.mark.parametrize(
    ("if_refused", "outcome"),
    [("hold", ("hold", 1, "refused:off-policy:difference")), ("pass", ("canary", 1, "newest_candidate"))],
)
def test_an_estimate_that_was_refused_holds_or_passes_as_the_settings_say(if_refused: Any, outcome: Any) -> None:
    delivery = waiting(ESTIMATE.model_copy(update={"if_refused": if_refused}))
    delivery.feed(make_evaluation(1, "off-policy", refused=1.0, effective=7.0))
    delivery.tick(1)
    assert last(delivery) == outcome


def test_an_estimate_of_the_reward_does_not_pass_the_divergence_check() -> None:
    delivery = waiting(ESTIMATE, DRIFT)
    delivery.feed(
        make_evaluation(1, "off-policy", refused=1.0, difference=0.0, difference_low=-0.01, difference_high=0.01)
    )
    delivery.tick(1)
    assert last(delivery) == ("hold", 1, "refused:off-policy:kl")


def test_an_unmeasured_newer_candidate_does_not_hold_up_a_measured_one() -> None:
    delivery = waiting(HELD_OUT)
    delivery.feed(held_out(0, 0.6), held_out(1, 0.6), make_version(2, parent=1, state="candidate"))
    delivery.tick(1)
    assert last(delivery) == ("canary", 1, "newest_candidate")


def test_an_evaluation_that_comes_during_the_canary_ends_it() -> None:
    delivery = waiting(HELD_OUT)
    delivery.feed(held_out(0, 0.6), held_out(1, 0.6))
    delivery.tick(1)
    decisions = delivery.say(held_out(1, 0.2))
    assert [(decision.action, decision.reason, decision.serving) for decision in decisions] == [
        ("quarantine", "worse:held-out:reward", 0)
    ]


def test_only_evaluations_that_a_check_needs_are_kept() -> None:
    delivery = waiting(HELD_OUT)
    delivery.feed(
        make_evaluation(1, model="other", reward=1.0),
        make_evaluation(1, "another-set", reward=1.0),
        held_out(0, 0.6),
        held_out(1, 0.6),
    )
    assert len(delivery.state.evaluations.rows) == 2
    delivery.tick(1)
    delivery.command("promote", 1)
    assert len(delivery.state.evaluations.rows) == 1


def test_a_replay_of_the_checks_says_the_same_wherever_it_restarts() -> None:
    def run(*, restoring: bool) -> list[Any]:
        delivery = waiting(HELD_OUT, DRIFT)
        delivery.restoring = restoring
        outputs = delivery.feed(held_out(0, 0.6), held_out(1, 0.6))
        outputs += delivery.tick(1)
        outputs += delivery.feed(make_evaluation(1, "off-policy", kl=0.01))
        return [*outputs, *delivery.tick(1), *delivery.feed(held_out(1, 0.2))]

    assert run(restoring=True) == run(restoring=False)
    assert [record.action for record in run(restoring=True) if isinstance(record, PolicyDecision)][-1] == "quarantine"
