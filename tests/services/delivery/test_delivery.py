"""On a real broker: a worker that is killed decides once, and those who follow hear of it at once."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rollbus.runtime.kafka.decisions import follow_decisions, read_decisions
from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import DeliveryConfig, RunConfig
from rollbus.schemas.records.delivery import EpisodeObserved, PolicyDecision, route
from rollbus.schemas.routing import Router
from rollbus.schemas.topics import DELIVERY_LOG, SCORES
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.stages.delivery.observing import ObservingStage
from rollbus.streams.stages.delivery.stage import DeliveryStage
from rollbus.streams.stages.delivery.state import HEARD_MS
from rollbus.streams.state.stage import PureAsEffects
from tests.builders import START_MS, make_score, make_tick, make_version
from tests.services.commands import say_in_thread, say_installed, write_config
from tests.services.streams.fixtures import read_topic, send, stream_settings
from tests.services.streams.process import WorkerProcess
from tests.waiting import many, until, until_found

pytestmark = pytest.mark.services

RUN = RunConfig(delivery=DeliveryConfig(steps=(0.3,), min_episodes=40, margin=0.3, wait_ms=0, metrics=()))
SECTIONS: dict[str, Any] = {
    "runs": [{"run_id": "main", "delivery": {}}],
    "trainer": {"serve": "after_evaluation"},
}
WORKER = Path(__file__).with_name("worker.py")
SEEN_MS = START_MS + 1_000 + HEARD_MS


@pytest.mark.faults
async def test_a_worker_killed_during_a_canary_makes_each_decision_once(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings, [PureAsEffects(ObservingStage(RUN)), PureAsEffects(DeliveryStage(RUN))])
    router, seen = Router(), list[PolicyDecision]()
    following = asyncio.create_task(
        follow_decisions(
            settings.kafka, namespace, lambda decision: seen.append(decision) if router.use(decision) else None
        )
    )
    workers = [WorkerProcess(settings, tmp_path / f"{name}.log", script=WORKER) for name in ("one", "two")]
    try:
        for worker in workers:
            await worker.start()
        await _say(settings, make_tick(0), make_version(0), make_version(1, 0, state="candidate"))
        await _say(settings, make_tick(1, stream_time_ms=START_MS + 1_000))
        await until(lambda: router.choose("agent", "any") is not None and seen[-1].canary == 1, "no canary begins")
        canary = seen[-1]
        await _score(settings, canary, range(120))
        await workers[0].kill()
        await _score(settings, canary, range(100, 500))  # some come again
        ticks = [make_tick(number, stream_time_ms=SEEN_MS + number * 1_000) for number in range(2, 6)]
        await _until_observed(settings, 500)
        await _say(settings, *ticks)
        await until(lambda: seen[-1].canary is None, "no decision comes")
        config = write_config(tmp_path, kafka, namespace, **SECTIONS)
        frozen = await say_installed(config, "policy freeze --reason holiday")
        assert frozen == "decision 4, serve: version 0 is served\n"
        history = await say_installed(config, "policy history")
        assert "decided_meanwhile" not in history
        rows = [words for line in history.splitlines() if (words := line.split()) and words[0] in "1234"]
        assert [words[3] for words in rows] == ["serve", "canary", "quarantine", "serve"], history
        assert "worse:reward" in history
        refused = await say_installed(config, "policy promote 1 --reason no", expect=1)
        assert "version quarantined" in refused
    finally:
        following.cancel()
        for worker in workers:
            await worker.kill()
    decisions = await read_decisions(settings.kafka, namespace, "agent")
    actions = ["serve", "canary", "quarantine", "serve", "refuse"]
    assert [(decision.number, decision.action) for decision in decisions] == list(enumerate(actions, start=1))
    numbers = decisions[2].numbers
    assert numbers["reward.canary_episodes"] + numbers["reward.serving_episodes"] == 500
    assert [route(decisions[2], f"e{number}") for number in range(9)] == [0] * 9


async def test_an_operator_moves_versions_by_commands(kafka: str, namespace: str, tmp_path: Path) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings, [PureAsEffects(ObservingStage(RUN)), PureAsEffects(DeliveryStage(RUN))])
    policy = partial(say_in_thread, write_config(tmp_path, kafka, namespace, **SECTIONS), "policy")
    worker = WorkerProcess(settings, tmp_path / "worker.log", script=WORKER)
    try:
        await worker.start()
        candidates = [make_version(number, 0, state="candidate") for number in (1, 2, 3)]
        await _say(settings, make_tick(0), make_version(0))
        await _until_decided(settings, 1)
        await policy("freeze", "--reason", "holiday")
        await _say(settings, *candidates, make_tick(1, stream_time_ms=START_MS + 1_000))
        output_by_command = {
            command: await policy(*command.split(), "--reason", "I say so", expect=code)
            for command, code in {
                "canary 1": 1,
                "freeze --off": 0,
                "canary 2": 0,
                "reject 2": 0,
                "promote 1": 0,
                "canary 9": 1,
            }.items()
        }
        assert "the command was refused: frozen; `rollbus policy history` shows" in output_by_command["canary 1"]
        assert "version 2 has 30% of the episodes" in output_by_command["canary 2"]
        assert output_by_command["reject 2"] == "decision 6, reject: version 0 is served\n"
        assert output_by_command["promote 1"] == "decision 7, promote: version 1 is served\n"
        assert "the command was refused: unknown version" in output_by_command["canary 9"]
        rows = [line.split() for line in (await policy("history")).splitlines()]
        shown_actions = [words[3] for words in rows if words and words[0].isdigit()]
        actions = ["serve", "serve", "refuse", "serve", "canary", "reject", "promote", "refuse"]
        assert shown_actions == actions
        assert [decision.action for decision in await read_decisions(settings.kafka, namespace, "agent")] == actions
    finally:
        await worker.kill()


async def _until_decided(settings: StreamSettings, count: int) -> None:
    look = partial(read_decisions, settings.kafka, settings.namespace, "agent")
    await until_found(look, "no decision comes", is_enough=many(count))


async def _say(settings: StreamSettings, *records: Any) -> None:
    await send(settings, DELIVERY_LOG.name, [(b"main", encode(record)) for record in records])


async def _score(settings: StreamSettings, decision: PolicyDecision, numbers: range) -> None:
    """Score episodes as this decision routes them: those of the canary earn nothing."""
    scores = []
    for number in numbers:
        version = route(decision, f"e-t{number}")
        good = float(version == 0 and number % 4 > 0)
        scores.append(make_score(f"t{number}", good, served_versions=(version,), first_seen_ms=SEEN_MS))
    await send(settings, SCORES.name, [(score.group_hint.encode(), encode(score)) for score in scores])


async def _until_observed(settings: StreamSettings, count: int) -> None:
    async def look() -> set[str]:
        records = await read_topic(settings, DELIVERY_LOG.name, 1)
        return {record.trajectory_id for record in records if isinstance(record, EpisodeObserved)}

    await until_found(look, "not all episodes are observed", is_enough=many(count))
