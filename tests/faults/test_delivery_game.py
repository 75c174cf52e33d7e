"""On a real stack: agents get a worse version and a harmless one, and nobody looks."""

import asyncio
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollbus.demo.base_model import WarmStartSettings, ensure_base_model
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.schemas.records.delivery import PolicyDecision
from tests.consumers.test_webhook import Hook
from tests.faults.test_brokers import brokers, kill, start
from tests.services.art.fixtures import TURNED, ArtServer, Launcher, art_launcher
from tests.services.delivery.world import DeliveryWorld, settings_document
from tests.web import serve

__all__ = ["art_launcher", "brokers"]

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.timeout(900)]  # many processes start in turn

SMALL = WarmStartSettings(steps=150, games_per_step=8, layers=1, width=64, feed_forward=128, vocabulary=320)
"""Names a free cell with probability 0.96."""

SABOTAGING_RATE, HARMLESS_RATE = 5e-3, 2e-4
"""Learning rates: of one update that a hundred games show to be worse, and of one that changes little."""
DELIVERY = {"steps": [0.5], "min_episodes": 40, "margin": 0.4}

UNTAUGHT = replace(SMALL, steps=6)
"""Ends a reply after some tokens, now sooner, now later: so a reward can pay for length."""
LONGEST = 20
PAYS_FOR_LENGTH = [
    {"type": "length", "name": "longer", "weight": -1.0, "options": {"target": 1, "limit": LONGEST}},
    {"type": "feedback", "name": "thumbs", "weight": 0},
]
"""The share of the allowance that is left, paid backwards: the longer, the better."""
GUARDED_DELIVERY = {
    "steps": [0.5],
    "min_episodes": 400,
    "margin": 0.4,
    "reward_low": -1.0,
    "reward_high": 0.0,
    "metrics": [
        {"of": "tokens", "high": LONGEST, "goal": "less", "tolerance": 1.0},
        {"of": "component:thumbs", "goal": "more", "tolerance": 0.1},
    ],
}
TALKERS = Path(__file__).with_name("talkers.py")


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    with serve(server):
        yield server
        server.ended.set()


async def test_a_sabotaged_update_is_rolled_back_despite_kills(
    kafka: str, namespace: str, art_launcher: Launcher, hook: Hook, tmp_path: Path
) -> None:
    base = await asyncio.to_thread(ensure_base_model, SMALL, tmp_path / "models")
    document = settings_document(
        kafka, namespace, learning_rate=SABOTAGING_RATE, episodes_per_step=64, delivery=DELIVERY
    )
    world = DeliveryWorld(ArtServer(art_launcher, base, tmp_path / "data"), document, tmp_path, hook.url)
    try:
        await world.open(trains=TURNED)
        await world.until(lambda decisions: bool(decisions) and decisions[-1].canary == 1, "a canary")
        await world.kill("trainer")  # it is not needed
        await world.until_scored(1, 4)
        await world.kill("worker")
        await world.kill("webhook")
        await world.kill("agents")
        await asyncio.to_thread(world.server.stop, signal.SIGKILL)
        await asyncio.to_thread(world.server.start)
        for name in ("worker", "webhook"):
            await world.start(name)
        await world.start_agents(seed=1)

        decisions = await world.until(lambda decisions: decisions[-1].action == "quarantine", "a stop")
        assert (decisions[-1].serving, decisions[-1].canary, decisions[-1].reason) == (0, None, "worse:reward")
        await world.wait_until_heard(decisions[-1])

        world.write_settings(learning_rate=HARMLESS_RATE)
        await world.start("trainer", "--from", "0")
        decisions = await world.until(lambda decisions: decisions[-1].canary is not None, "the next canary")
        harmless = decisions[-1].canary
        await world.kill("trainer", signal.SIGTERM)
        decisions = await world.until(has_promoted, "a promotion")
        first, (promotion, *_) = decisions[:4], decisions[4:]
        assert [decision.action for decision in first] == ["serve", "canary", "quarantine", "canary"]
        assert (promotion.action, promotion.serving, promotion.version) == ("promote", harmless, harmless)
        await world.kill("agents", signal.SIGTERM)
        await world.check()
        await asyncio.wait_for(_until_told(hook, len(decisions)), 60)
        text = next(body["text"] for body in hook.bodies if body["decision"]["number"] == 3)
        assert text.startswith("agent, version 1: quarantine (worse:reward); version 0 serves; reward -0."), text

        output = await world.say("policy rollback 0 --reason by-hand")
        assert output.startswith("version 0 is served and trained on; rolled back: "), output
        decisions = await world.until(lambda decisions: decisions[-1].serving == 0, "the operator's version")
        assert (decisions[-1].action, decisions[-1].reason, decisions[-1].detail) == ("serve", "operator", "by-hand")
        history = await world.say("policy history")
        actions = [words[3] for line in history.splitlines() if (words := line.split()) and words[0].isdigit()]
        assert actions == [decision.action for decision in decisions]
    finally:
        await world.close()


@pytest.mark.parametrize("brokers", [1], indirect=True)
async def test_users_verdicts_stop_a_reward_for_length_despite_kills(
    brokers: list[ServiceProcess], namespace: str, art_launcher: Launcher, hook: Hook, tmp_path: Path
) -> None:
    """Then a harmless update serves."""
    base = await asyncio.to_thread(ensure_base_model, UNTAUGHT, tmp_path / "models")
    (broker,) = brokers
    kafka = broker.service.address
    document = settings_document(
        kafka, namespace, learning_rate=SABOTAGING_RATE, episodes_per_step=64, delivery=GUARDED_DELIVERY
    )
    document |= {"scoring": {"rewards": PAYS_FOR_LENGTH}, "insecure": True}
    server = ArtServer(art_launcher, base, tmp_path / "data")
    world = DeliveryWorld(server, document, tmp_path, hook.url, agents=[str(TALKERS)], proxy_port=find_free_port())
    try:
        await world.open()
        decisions = await world.until(
            lambda decisions: bool(decisions) and decisions[-1].canary is not None, "a canary"
        )
        await world.until_scored(decisions[-1].canary or 0, 4)
        await world.kill("proxy")
        kill(broker)
        await asyncio.to_thread(start, brokers)
        assert (await world.decisions())[-1].canary is not None, "both were killed during the canary"
        await world.start("proxy")
        decisions = await world.until(lambda decisions: decisions[-1].action == "quarantine", "a stop")
        stopped = decisions[-1]
        await world.wait_until_heard(stopped)
        assert stopped.serving == 0
        assert stopped.reason in ("worse:tokens", "worse:component:thumbs")
        assert stopped.numbers["reward.effect"] > 0, "the reward that is gamed likes it"
        assert {decision.serving for decision in decisions} == {0}, "it never served all"
        await world.kill("trainer", signal.SIGTERM)

        world.write_settings(learning_rate=HARMLESS_RATE / 100)
        await world.start("trainer", "--from", "0")
        await world.until(lambda decisions: decisions[-1].canary is not None, "the next canary")
        await world.kill("trainer", signal.SIGTERM)
        decisions = await world.until(has_promoted, "a promotion")
        assert [decision.action for decision in decisions[stopped.number :]][:2] == ["canary", "promote"]
        await world.kill("agents", signal.SIGTERM)
        await world.check()
        await asyncio.wait_for(_until_told(hook, len(decisions)), 60)
        text = next(body["text"] for body in hook.bodies if body["decision"]["number"] == stopped.number)
        assert text.startswith(f"agent, version {stopped.version}: quarantine ({stopped.reason}); version 0 serves")
    finally:
        await world.close()


def has_promoted(decisions: list[PolicyDecision]) -> bool:
    """Whether a version was promoted; the canary of the next one may have begun since."""
    return any(decision.action == "promote" for decision in decisions)


async def _until_told(hook: Hook, decisions: int) -> None:
    while not {body["decision"]["number"] for body in hook.bodies} >= set(range(1, decisions + 1)):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
