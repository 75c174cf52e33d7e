"""Delivery keeps its bounds: what it remembers, how soon it decides, and what wrong numbers and clocks lead to."""

from dataclasses import replace

import pytest

from rollbus.schemas.records.config import MetricConfig
from rollbus.schemas.records.delivery import EpisodeObserved, route
from rollbus.schemas.records.trajectories import Location
from rollbus.streams.stages.delivery.metric_verdicts import findings
from rollbus.streams.stages.delivery.stage import DeliveryStage
from rollbus.streams.stages.delivery.state import HEARD_MS, MOST_STRATA
from rollbus.streams.state import recent_keys
from rollbus.streams.state.stage import Incoming
from tests.builders import START_MS
from tests.streams.stages.test_delivery import Delivery, run_of

HOUR_MS = 60 * 60_000
NOWHERE = Location(topic="t", partition=0, offset=0)
THUMBS = MetricConfig(of="component:thumbs", goal="more")


@pytest.mark.slow
def test_the_state_of_a_verdict_does_not_grow_in_forty_thousand_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of another task, some without a reward, some with a late one; only ids are remembered, and of those some."""
    monkeypatch.setattr(recent_keys, "MOST_KEYS", 5_000)
    run = run_of(min_episodes=10**6, max_episodes=10**7, margin=0.01, metrics=(THUMBS,), wait_ms=5_000)
    delivery, stage = Delivery(run), DeliveryStage(run)
    sizes, late = list[int](), list[EpisodeObserved]()
    for start in range(0, 40_000, 1_000):
        records = late
        for number in range(start, start + 1_000):
            value = None if number % 5 == 0 else float(number % 2)
            episode = delivery.observed(f"e{number}", value, task=f"task {number}", components={"thumbs": 0.5})
            records.append(episode)
        late = [replace(record, revision=1, value=1.0) for record in records[-1_000:-900] if record.value is None]
        for record in records:
            assert not list(stage.step(delivery.state, Incoming(record, "main", NOWHERE, b"")))
        delivery.tick(1)
        if start % 8_000 == 7_000:
            sizes.append(sum(len(row) for key, row in delivery.changelog.items() if not key.startswith(b"seen")))
    assert delivery.now.canary == 1, "it is not decided yet"
    assert delivery.state.effects.rows["reward"].canary > 6_000
    assert delivery.state.head.wait_ms is not None, "the delays are known"
    assert max(sizes) < 1.1 * sizes[0], "bytes of all rows but the ids"
    assert len(delivery.state.strata.rows) <= 3 * MOST_STRATA + 2, "and one of each metric for all other tasks"
    assert len(delivery.state.seen) == 5_000


def test_a_decision_is_made_at_the_tick_in_which_the_evidence_is_there() -> None:
    """Ticks come every second, so it is two seconds at most: until the next tick, and until a router polls."""
    config = run_of()
    delivery, is_certain = Delivery(config), False
    assert config.delivery is not None
    for number in range(5_000):
        delivery.feed(delivery.observed(f"e{number}", float(route(delivery.now, f"e{number}") == 0)))
        delivery.tick(1)
        if delivery.now.canary is None:
            break
        is_certain = findings(delivery.state, config.delivery)[0].verdict == "worse"
        assert not is_certain, "the evidence was there, and no decision"
    assert delivery.now.action == "quarantine"
    assert delivery.now.decided_at_ms == START_MS + int(delivery.now_s * 1000)


@pytest.mark.parametrize("apart_ms", [-HOUR_MS, HOUR_MS])
def test_episodes_of_a_clock_that_is_an_hour_apart_promote_nothing(apart_ms: int) -> None:
    """Before the canary began they are not evidence; later than now they count by the present share alone."""
    delivery = Delivery(run_of(steps=(0.2, 0.9), min_episodes=5, margin=0.9, metrics=()))
    now_ms = START_MS + int(delivery.now_s * 1000) + apart_ms
    for number in range(400):
        strays = route(delivery.now, f"e{number}") == 0
        version = (1,) if strays else (0,)  # as another share would have sent them
        delivery.feed(delivery.observed(f"e{number}", 1.0, served_versions=version, first_seen_ms=now_ms))
    delivery.tick(1)
    delivery.tick(HEARD_MS / 1000)
    assert delivery.now.serving == 0
    assert [decision for decision in delivery.decisions if decision.action in ("advance", "promote")] == []
