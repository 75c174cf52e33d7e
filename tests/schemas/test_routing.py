"""Who answers an episode: by the newest decision, and for the whole episode the same."""

from typing import Any

import pytest

from rollbus.schemas.records.delivery import PolicyDecision, is_drawn
from rollbus.schemas.routing import Router

DRAWN_EPISODE = next(f"e{n}" for n in range(999) if is_drawn("agent", 2, f"e{n}", 0.05))
LATER = next(
    f"e{n}" for n in range(999) if not is_drawn("agent", 2, f"e{n}", 0.05) and is_drawn("agent", 2, f"e{n}", 1)
)


def make_decision(number: int, **fields: Any) -> PolicyDecision:
    defaults: dict[str, Any] = {"action": "canary", "serving": 1, "canary": 2, "share": 0.05, "reason": "r"}
    return PolicyDecision(model="agent", run_id="main", number=number, decided_at_ms=0, **(defaults | fields))


def routing(*decisions: PolicyDecision) -> Router:
    router = Router()
    for decision in decisions:
        router.use(decision)
    return router


def test_without_a_decision_nothing_is_chosen() -> None:
    assert Router().choose("agent", "e1") is None
    assert routing(make_decision(1)).choose("other", "e1") is None


def test_a_share_of_the_episodes_gets_the_canary_in_every_process_the_same() -> None:
    first_routing, second_routing = routing(make_decision(1, share=0.25)), routing(make_decision(1, share=0.25))
    chosen = [first_routing.choose("agent", f"e{n}") for n in range(2_000)]
    assert chosen == [second_routing.choose("agent", f"e{n}") for n in range(2_000)]
    assert chosen.count(2) / 2_000 == pytest.approx(0.25, abs=0.04)


def test_an_older_decision_changes_nothing() -> None:
    router = routing(make_decision(2, canary=None, share=0.0))
    assert not router.use(make_decision(1))
    assert router.choose("agent", DRAWN_EPISODE) == 1


def test_an_episode_stays_with_its_version_while_the_share_grows() -> None:
    router = routing(make_decision(1))
    assert (router.choose("agent", DRAWN_EPISODE), router.choose("agent", LATER)) == (2, 1)
    router.use(make_decision(2, action="advance", share=1.0))
    assert (router.choose("agent", DRAWN_EPISODE), router.choose("agent", LATER)) == (2, 1)


def test_an_episode_of_a_stopped_canary_goes_on_with_the_serving_version() -> None:
    router = routing(make_decision(1))
    assert router.choose("agent", DRAWN_EPISODE) == 2
    router.use(make_decision(2, action="quarantine", canary=None, share=0.0))
    assert router.choose("agent", DRAWN_EPISODE) == 1
