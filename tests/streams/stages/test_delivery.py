"""A version's way from candidate to serving, and back: decided on the log, the same in every replay."""

from collections.abc import Iterable
from functools import cache
from math import inf, nan
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus.schemas.records.config import DeliveryConfig, MetricConfig, RunConfig
from rollbus.schemas.records.delivery import DeliveryCommand, EpisodeObserved, PolicyDecision, is_drawn, route
from rollbus.schemas.records.steps import PolicyVersion
from rollbus.streams.stages.delivery.observing import ObservingStage
from rollbus.streams.stages.delivery.stage import DeliveryStage
from rollbus.streams.stages.delivery.state import HEARD_MS
from tests.builders import START_MS, make_config, make_score, make_version
from tests.examples import count_examples
from tests.stepper import Stepper

STEPS = (0.2, 0.5)


def run_of(**delivery: Any) -> RunConfig:
    defaults: dict[str, Any] = {"steps": STEPS, "min_episodes": 30, "margin": 0.3, "wait_ms": 0}
    return RunConfig(delivery=DeliveryConfig(**(defaults | delivery)))


class Delivery(Stepper):
    """The stage with a base version that serves, and a router that follows its decisions."""

    def __init__(self, run: RunConfig | None = None, *, candidate: int | None = 1) -> None:
        super().__init__(DeliveryStage(run or run_of()))
        self.decisions: list[PolicyDecision] = []
        self.marks: list[PolicyVersion] = []
        self.records_taken: list[Any] = []
        self.episodes = 0
        self.tick()
        self.say(make_version(0, state="serving"))
        if candidate is not None:
            self.say(make_version(candidate, parent=0, state="candidate"))
            self.tick(1)
            self.tick(HEARD_MS / 1000)

    def feed(self, *records: Any, **places: Any) -> list[Any]:
        self.records_taken += records
        outputs = super().feed(*records, **places)
        self.decisions += [output for output in outputs if isinstance(output, PolicyDecision)]
        self.marks += [output for output in outputs if isinstance(output, PolicyVersion)]
        return outputs

    def say(self, *records: Any) -> list[PolicyDecision]:
        return [output for output in self.feed(*records) if isinstance(output, PolicyDecision)]

    @property
    def now(self) -> PolicyDecision:
        return self.decisions[-1]

    def command(self, command: Any, version: int | None = None, *, seen: int | None = None, key: str = "") -> Any:
        number = self.now.number if seen is None else seen
        record = DeliveryCommand(
            run_id="main",
            command=command,
            version=version,
            command_id=key or f"{command}-{number}-{version}",
            seen_decision=number,
            reason="I say so",
        )
        return self.say(record)

    def observed(self, name: str, value: float | None, **fields: Any) -> EpisodeObserved:
        version = route(self.now, name)
        defaults: dict[str, Any] = {
            "run_id": "main",
            "trajectory_id": name,
            "episode_id": name,
            "task": "play",
            "first_seen_ms": START_MS + int(self.now_s * 1000),
            "served_versions": () if version is None else (version,),
            "value": value,
        }
        return EpisodeObserved(**(defaults | fields))

    def play(self, episodes: int, *, canary: float, serving: float = 0.5, **fields: Any) -> None:
        """Play episodes of these mean rewards as the newest decision routes them, ten a tick."""
        chance = Random(17 + self.episodes)
        for number in range(self.episodes, self.episodes + episodes):
            name = f"e{number}"
            good = chance.random() < (canary if route(self.now, name) == self.now.canary else serving)
            self.feed(self.observed(name, float(good), **fields))
            if number % 10 == 9:
                self.tick(1)
        self.episodes += episodes
        self.tick(HEARD_MS / 1000)

    def play_while_canary(self, most: int = 4_000, **rewards: Any) -> None:
        while self.now.canary is not None and self.episodes < most:
            self.play(200, **rewards)


def actions(delivery: Delivery) -> list[tuple[str, int | None]]:
    return [(decision.action, decision.version) for decision in delivery.decisions]


def test_a_harmless_candidate_goes_step_by_step_to_all_traffic() -> None:
    delivery = Delivery()
    assert (delivery.now.action, delivery.now.canary, delivery.now.share) == ("canary", 1, 0.2)
    delivery.play_while_canary(canary=0.55)
    assert actions(delivery) == [("serve", 0), ("canary", 1), ("advance", 1), ("promote", 1)]
    assert (delivery.now.serving, delivery.now.canary, delivery.now.share) == (1, None, 0.0)
    assert [(mark.version, mark.state) for mark in delivery.marks] == [(1, "canary")] * 2 + [(1, "serving")] * 2


def test_a_worse_candidate_is_quarantined_with_its_descendants() -> None:
    delivery = Delivery()
    delivery.feed(make_version(2, parent=1, state="candidate"))
    delivery.play_while_canary(canary=0.05)
    last = delivery.now
    assert (last.action, last.version, last.reason) == ("quarantine", 1, "worse:reward")
    assert (last.serving, last.canary, last.share) == (0, None, 0.0)
    assert last.numbers["reward.high"] < 0
    assert last.numbers["reward.effect"] == pytest.approx(-0.45, abs=0.15)
    assert last.numbers["reward.canary_episodes"] < 150
    delivery.feed(make_version(3, parent=2, state="candidate"), make_version(4, parent=0, state="candidate"))
    assert {(m.version, m.state) for m in delivery.marks} == {
        (1, "canary"), (1, "quarantined"), (2, "quarantined"), (3, "quarantined")
    }  # fmt: skip
    delivery.tick(1)
    assert (delivery.now.action, delivery.now.canary) == ("canary", 4), "it descends from a sound one"


@pytest.mark.parametrize("value", [None, nan])
def test_an_outstanding_or_invalid_reward_is_not_a_zero(value: float | None) -> None:
    delivery = Delivery(run_of(metrics=()))
    for number in range(300):
        delivery.feed(delivery.observed(f"e{number}", value))
        delivery.tick(1)
    assert actions(delivery) == [("serve", 0), ("canary", 1)]


def test_a_revision_counts_if_it_comes_before_the_wait_is_over_and_only_then() -> None:
    delivery = Delivery(run_of(wait_ms=10_000, min_episodes=1, max_episodes=100, margin=0.9, metrics=()))
    name = next(f"e{n}" for n in range(99) if is_drawn("agent", 1, f"e{n}", 0.2))
    first = delivery.observed(name, None)
    delivery.feed(first, delivery.observed(name, 1.0, revision=2), delivery.observed(name, 0.0, revision=1))
    delivery.tick(9)
    assert len(delivery.decisions) == 2
    delivery.tick(1)
    assert actions(delivery)[2:] == [("advance", 1)]
    assert delivery.now.numbers["reward.canary_episodes"] == 1
    delivery.feed(delivery.observed(name, 0.0, revision=3), first)
    delivery.tick(30)
    assert len(delivery.decisions) == 3


@pytest.mark.parametrize(
    ("fields", "counted"),
    [
        ({"served_versions": (0, 1)}, "mixed"),
        ({"served_versions": (7,)}, "mixed"),
        ({"served_versions": (0,)}, "strayed"),
    ],
)
def test_an_episode_outside_the_draw_is_not_evidence(fields: Any, counted: str) -> None:
    delivery = Delivery(run_of(min_episodes=1, max_episodes=100, margin=0.9))
    drawn = [f"e{n}" for n in range(999) if is_drawn("agent", 1, f"e{n}", 0.2)]
    delivery.feed(delivery.observed(drawn[0], 0.0, **fields))
    delivery.tick(1)
    delivery.feed(delivery.observed(drawn[1], 1.0))
    delivery.tick(1)
    assert delivery.now.numbers[counted] == 1
    assert delivery.now.numbers["reward.canary_episodes"] == 1


def test_a_reward_after_the_count_of_its_episode_is_only_counted_as_late() -> None:
    delivery = Delivery()
    names = [f"n{number}" for number in range(37)]
    delivery.feed(*(delivery.observed(name, None) for name in names))
    delivery.tick(1)
    revised = [delivery.observed(name, 1.0, revision=1) for name in names]
    delivery.feed(*revised, *revised)
    delivery.play_while_canary(canary=0.5)
    numbers = [decision.numbers for decision in delivery.decisions if decision.numbers]
    assert {number["late"] for number in numbers} == {37.0}
    counted = numbers[0]["reward.canary_episodes"] + numbers[0]["reward.serving_episodes"]
    assert counted % 10 == 0, "whole ticks of ten episodes, and none of the 37"


def test_episodes_from_before_the_canary_are_not_evidence() -> None:
    delivery = Delivery(run_of(min_episodes=1, max_episodes=100))
    for number in range(50):
        delivery.feed(delivery.observed(f"e{number}", 0.0, first_seen_ms=START_MS))
    delivery.tick(1)
    assert actions(delivery) == [("serve", 0), ("canary", 1)]


def test_a_canary_that_no_router_serves_is_rejected_and_never_promoted() -> None:
    delivery = Delivery()
    for number in range(600):
        delivery.feed(delivery.observed(f"e{number}", 1.0, served_versions=(0,)))
    delivery.tick(1)
    assert (delivery.now.action, delivery.now.reason, delivery.now.serving) == ("reject", "not_served", 0)


def test_a_canary_whose_checkpoint_vanishes_is_rejected() -> None:
    delivery = Delivery(run_of(min_episodes=10_000))
    delivery.play(300, canary=0.5)
    drawn = [f"g{n}" for n in range(2_000) if route(delivery.now, f"g{n}") == 1]
    for name in drawn[:49]:
        delivery.feed(delivery.observed(name, 1.0, served_versions=(0,)))
    delivery.feed(delivery.observed(drawn[49], 1.0))
    for name in drawn[50:99]:
        delivery.feed(delivery.observed(name, 1.0, served_versions=(0,)))
    delivery.tick(1)
    assert delivery.now.canary == 1, "it answered in between"
    delivery.feed(delivery.observed(drawn[99], 1.0, served_versions=(0,)))
    delivery.tick(1)
    assert (delivery.now.action, delivery.now.reason, delivery.now.serving) == ("reject", "not_served", 0)


def test_a_canary_that_stays_undecided_is_rejected() -> None:
    delivery = Delivery(run_of(max_episodes=150, margin=0.01))
    delivery.play_while_canary(canary=0.5)
    assert (delivery.now.action, delivery.now.reason) == ("reject", "undecided")


def test_a_gamed_reward_is_caught_by_the_component_that_falls() -> None:
    thumbs = MetricConfig(of="component:thumbs", low=-1, high=1, goal="more")
    delivery = Delivery(run_of(metrics=(thumbs,)))
    while delivery.now.canary is not None and delivery.episodes < 4_000:
        for number in range(delivery.episodes, delivery.episodes + 100):
            is_canary = route(delivery.now, f"e{number}") == 1
            fallen = {"thumbs": -1.0 if is_canary else 1.0}
            delivery.feed(delivery.observed(f"e{number}", 0.9 if is_canary else 0.5, components=fallen))
        delivery.episodes += 100
        delivery.tick(5)
    assert (delivery.now.action, delivery.now.reason) == ("quarantine", "worse:component:thumbs")


@pytest.mark.parametrize(("on_worse", "ends"), [("hold", "hold"), ("notify", "promote")])
def test_an_alarm_holds_the_canary_or_is_only_reported_as_the_settings_say(on_worse: Any, ends: str) -> None:
    longer = MetricConfig(of="tokens", high=100, goal="less", on_worse=on_worse)
    delivery = Delivery(run_of(metrics=(longer,)))
    for number in range(2_000):
        if delivery.now.canary is None:
            break
        tokens = 90 if route(delivery.now, f"e{number}") == 1 else 10
        delivery.feed(delivery.observed(f"e{number}", float(number % 2), tokens=tokens))
        if number % 10 == 9:
            delivery.tick(6)
    assert delivery.now.action == ends
    reports = [decision for decision in delivery.decisions if decision.reason == "worse:tokens"]
    assert [report.detail for report in reports] == [on_worse]
    assert reports[0].numbers["tokens.effect"] == pytest.approx(80, rel=0.3)


@pytest.mark.parametrize("value", [1e9, 1e300, inf, -inf])
def test_a_reward_outside_its_bounds_is_taken_as_the_bound_and_counted(value: float) -> None:
    delivery = Delivery(run_of(min_episodes=1, max_episodes=100))
    name = next(f"e{n}" for n in range(99) if is_drawn("agent", 1, f"e{n}", 0.2))
    delivery.feed(delivery.observed(name, value))
    delivery.tick(1)
    assert delivery.now.numbers["clipped"] == 1
    assert abs(delivery.now.numbers["reward.effect"]) <= 3


@pytest.mark.parametrize(("low", "high"), [(-0.3, 0.9), (0.2, 0.9), (-2.0, -0.6), (0.0, 1.0)])
def test_a_reward_at_its_bounds_is_not_outside_of_them(low: float, high: float) -> None:
    delivery = Delivery(run_of(max_episodes=100, reward_low=low, reward_high=high))
    for number in range(10):
        delivery.feed(delivery.observed(f"e{number}", high), delivery.observed(f"x{number}", low))
    delivery.tick(1)
    assert (delivery.state.head.clipped, delivery.state.head.outside) == (0, 0)


@pytest.mark.parametrize("arm", [0, 1])
def test_a_reward_outside_its_bounds_never_promotes(arm: int) -> None:
    delivery = Delivery(run_of(max_episodes=100))
    name = next(f"x{n}" for n in range(99) if route(delivery.now, f"x{n}") == arm)
    delivery.feed(delivery.observed(name, 10.0))
    delivery.play_while_canary(canary=0.9)
    assert [(decision.action, decision.reason) for decision in delivery.decisions[2:]] == [
        ("hold", "outside:reward"),
        ("reject", "undecided"),
    ]
    assert delivery.decisions[2].numbers["outside"] == 1


def test_the_second_of_two_concurrent_decisions_is_refused() -> None:
    delivery = Delivery()
    seen = delivery.now.number
    (first,) = delivery.command("promote", 1, seen=seen)
    (second,) = delivery.command("reject", 1, seen=seen)
    assert (first.action, first.serving) == ("promote", 1)
    assert (second.action, second.reason, second.serving) == ("refuse", "decided_meanwhile", 1)


def test_a_command_that_comes_twice_is_one_decision() -> None:
    delivery = Delivery()
    assert len(delivery.command("reject", 1, key="c")) == 1
    assert delivery.command("reject", 1, key="c") == []


@pytest.mark.parametrize(
    ("command", "version", "reason"),
    [("promote", 9, "unknown_version"), ("canary", 0, "serves_already"), ("promote", 5, "version_quarantined")],
)
def test_a_command_that_cannot_be_followed_is_refused_with_its_reason(command: Any, version: int, reason: str) -> None:
    delivery = Delivery()
    delivery.feed(make_version(5, parent=0, state="quarantined"))
    (refused,) = delivery.command(command, version)
    assert (refused.action, refused.reason, refused.canary) == ("refuse", reason, 1)


def test_a_frozen_model_serves_no_new_version_until_it_thaws() -> None:
    delivery = Delivery()
    (frozen,) = delivery.command("freeze")
    assert (frozen.action, frozen.canary, frozen.serving, frozen.frozen) == ("stop", None, 0, True)
    delivery.feed(make_version(2, parent=1, state="candidate"))
    delivery.tick(100)
    for command in ("canary", "promote"):
        (refused,) = delivery.command(command, 2)
        assert (refused.action, refused.reason, refused.serving) == ("refuse", "frozen", 0)
    delivery.command("unfreeze")
    delivery.tick(1)
    assert (delivery.now.action, delivery.now.canary, delivery.now.frozen) == ("canary", 2, False)


def test_after_a_stop_the_next_canary_waits_for_the_cool_down() -> None:
    delivery = Delivery(run_of(wait_ms=6_000))
    delivery.command("reject", 1)
    delivery.feed(make_version(2, parent=1, state="candidate"))
    delivery.tick(59)
    assert delivery.now.action == "reject"
    delivery.tick(2)
    assert (delivery.now.action, delivery.now.canary) == ("canary", 2)


def test_an_older_candidate_does_not_follow_a_newer_one_by_itself() -> None:
    delivery = Delivery(candidate=3)
    delivery.feed(make_version(2, parent=0, state="candidate"))
    delivery.command("reject", 3)
    delivery.tick(5)
    assert delivery.now.canary is None
    delivery.command("canary", 2)
    assert delivery.now.canary == 2


def test_a_roll_back_by_an_operator_ends_the_canary() -> None:
    delivery = Delivery()
    delivery.feed(make_version(1, parent=0, state="rolled_back"))
    assert (delivery.now.action, delivery.now.reason, delivery.now.canary) == ("stop", "rolled_back", None)


def test_what_a_trainer_served_before_the_first_tick_is_of_that_time() -> None:
    stepper = Stepper(DeliveryStage(run_of()))
    served = make_version(3, state="serving", changed_at_ms=START_MS)
    (decision,) = [output for output in stepper.feed(served) if isinstance(output, PolicyDecision)]
    assert (decision.action, decision.serving, decision.reason) == ("serve", 3, "trainer")
    assert decision.decided_at_ms == START_MS


def test_records_of_other_runs_and_models_change_nothing() -> None:
    delivery = Delivery()
    other = delivery.observed("e1", 1.0, run_id="other")
    assert delivery.feed(other, make_version(9, state="candidate", model="other")) == []
    assert delivery.state.waiting.rows == {}


def test_the_memory_of_a_canary_is_bounded_and_ends_with_it() -> None:
    delivery = Delivery()
    for number in range(500):
        delivery.feed(delivery.observed(f"e{number}", 1.0, task=f"task {number}"))
    delivery.tick(1)
    assert len(delivery.state.strata.rows) < 500
    delivery.command("reject", 1)
    assert not delivery.state.strata.rows
    assert not delivery.state.effects.rows


def decide(records: Iterable[Any], run: RunConfig, restarts: Random | None = None) -> tuple[list[Any], Any]:
    """Everything that a log comes to, and the stage's state in the end."""
    stepper, outputs = Stepper(DeliveryStage(run)), list[Any]()
    for record in records:
        outputs += stepper.feed(record)
        if restarts is not None and restarts.random() < 0.05:
            stepper.restore()
    return outputs, stepper.state


@cache
def _live_log(seed: int) -> tuple[list[Any], list[Any]]:
    """All that a delivery took in, ticks and what its decisions led to included; and what comes of it undisturbed."""
    delivery = Delivery()
    delivery.play(150 + seed % 50, canary=0.1 * (seed % 10))
    return delivery.records_taken, decide(delivery.records_taken, run_of())[0]


@settings(max_examples=count_examples(15), deadline=None)
@given(st.integers(0, 9), st.randoms(use_true_random=False))
def test_the_same_log_gives_the_same_decisions_over_repeats_and_restarts(seed: int, chance: Random) -> None:
    taken, live = _live_log(seed)
    assert any(isinstance(output, PolicyDecision) for output in live)
    twice = [again for record in taken for again in [record] * chance.choice((1, 1, 2))]
    assert decide(twice, run_of(), restarts=chance)[0] == live


def test_a_share_that_grows_keeps_its_episodes() -> None:
    names = [f"e{n}" for n in range(5_000)]
    small, large = ({n for n in names if is_drawn("agent", 3, n, share)} for share in (0.05, 0.25))
    assert small < large
    other = {n for n in names if is_drawn("agent", 4, n, 0.05)}
    assert len(small & other) < 50, "another canary gets other episodes"


def test_only_scores_of_the_runs_own_traffic_become_observations() -> None:
    stepper = Stepper(ObservingStage(run_of()))
    score = make_score("t1", 0.5, served_versions=(3,), first_seen_ms=9, latency_ms=7, tool_errors=1)
    (observed,) = stepper.feed(score)
    assert (observed.trajectory_id, observed.value, observed.served_versions) == ("t1", 0.5, (3,))
    assert (observed.first_seen_ms, observed.latency_ms, observed.tool_errors, observed.failed) == (9, 7, 1, False)
    others = [
        make_score("t2", served_versions=(3,), model="other"),
        make_score("t3", served_versions=(3,), resampled=True),
        make_score("t4"),
    ]
    assert stepper.feed(*others) == []
    (failed,) = stepper.feed(make_score("t5", served_versions=(3,), stop_reason="timeout"))
    assert failed.failed


def test_a_changed_configuration_holds_from_its_record_on() -> None:
    delivery = Delivery(candidate=None)
    delivery.feed(make_config("delivery", run_of(steps=(0.75,)), run_id="main"))
    delivery.feed(make_version(1, parent=0, state="candidate"))
    delivery.tick(10)
    assert (delivery.now.action, delivery.now.share) == ("canary", 0.75)


def test_a_component_that_stops_coming_holds_the_canary_until_it_comes_again() -> None:
    thumbs = MetricConfig(of="component:thumbs", low=-1, goal="more", tolerance=0.5, min_episodes=20)
    delivery = Delivery(run_of(metrics=(thumbs,)))
    while delivery.now.share != STEPS[1]:
        delivery.play(100, canary=0.5, components={"thumbs": 0.0})
    delivery.play(2_000, canary=0.5)
    assert (delivery.now.action, delivery.now.reason, delivery.now.canary) == ("hold", "missing:component:thumbs", 1)
    assert delivery.now.numbers["component:thumbs.canary_episodes"] >= 20, "the last step's do not count"
    delivery.play_while_canary(canary=0.5, components={"thumbs": 0.0})
    assert actions(delivery)[1:] == [("canary", 1), ("advance", 1), ("hold", 1), ("promote", 1)]
    assert delivery.now.serving == 1


def test_a_component_that_never_comes_ends_the_canary_undecided() -> None:
    thumbs = MetricConfig(of="component:thumbs", goal="more")
    delivery = Delivery(run_of(metrics=(thumbs,), max_episodes=200))
    delivery.play_while_canary(canary=0.9)
    assert [(decision.action, decision.reason) for decision in delivery.decisions[2:]] == [
        ("hold", "missing:component:thumbs"),
        ("reject", "undecided"),
    ]
