"""Killed, paused, added and removed workers: every event is answered once, and every count is right."""

import asyncio
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rollbus.local.process.service import ServiceProcess
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from tests.services.brokers import own_broker, running_broker
from tests.services.streams.fixtures import CountStage, counting, read_drops, send_events, stream_settings
from tests.services.streams.process import WorkerProcess, check_exactly_once, running, until_counted
from tests.waiting import until

pytestmark = pytest.mark.services

KEYS = [f"k{number}" for number in range(20)]
ROUNDS, PER_ROUND = 30, 2
MORTAL = Path(__file__).parents[2] / "faults" / "worker.py"
"""A worker that can be told where to die, or to freeze."""
STAGES = f"{counting.__module__}:{counting.__name__}"


@pytest.fixture
async def settings(kafka: str, namespace: str) -> StreamSettings:
    test_settings = stream_settings(kafka, namespace)
    await ensure_topics(test_settings, [CountStage()])
    return test_settings


@pytest.fixture
async def new_worker(settings: StreamSettings, tmp_path: Path) -> AsyncIterator[Callable[..., WorkerProcess]]:
    async with AsyncExitStack() as stack:
        worker_count = 0

        def make(**changes: Any) -> WorkerProcess:
            nonlocal worker_count
            worker_count += 1
            worker = WorkerProcess(settings, tmp_path / f"worker-{worker_count}.log", **changes)
            stack.push_async_callback(worker.kill)
            return worker

        yield make


async def feed(settings: StreamSettings, *, rounds: int = ROUNDS, pause_s: float = 0.25) -> int:
    """Send events over a while, so that faults fall between and into transactions; return events per key."""
    for number in range(rounds):
        await send_events(settings, KEYS, range(number * PER_ROUND, (number + 1) * PER_ROUND))
        await asyncio.sleep(pause_s)
    return rounds * PER_ROUND


async def test_killed_workers_lose_and_double_nothing(
    settings: StreamSettings, new_worker: Callable[..., WorkerProcess]
) -> None:
    chance = random.Random(7)
    workers = [new_worker(pause_s=0.001), new_worker(pause_s=0.001)]
    for worker in workers:
        await worker.start()
        await worker.until_open()
    feeding = asyncio.create_task(feed(settings))
    for victim in (0, 1, 0):
        await asyncio.sleep(1.0 + chance.random())
        await workers[victim].kill()
        await workers[victim].start()
    per_key = await feeding
    drops = await until_counted(settings, len(KEYS) * per_key)
    check_exactly_once(drops, KEYS, per_key)


@pytest.mark.faults
async def test_a_broker_that_dies_and_returns_costs_nothing(tmp_path: Path, namespace: str) -> None:
    broker = own_broker(tmp_path)
    settings = stream_settings(broker.service.address, namespace)
    with running_broker(broker):
        await ensure_topics(settings, [CountStage()])
        async with running(settings, [CountStage()]):
            await send_events(settings, KEYS, range(5))
            await until_counted(settings, 5 * len(KEYS))
            assert broker.identity is not None
            os.kill(broker.identity.pid, signal.SIGKILL)
            await start(broker)
            await send_events(settings, KEYS, range(5, 10))
            drops = await until_counted(settings, 10 * len(KEYS))
    check_exactly_once(drops, KEYS, 10)


async def start(broker: ServiceProcess) -> None:
    """Start the broker, again if it was killed, and wait for it."""

    def start_and_wait() -> None:
        while broker.is_running():
            time.sleep(0.1)
        broker.start()
        broker.wait_until_healthy()

    await asyncio.to_thread(start_and_wait)


@pytest.mark.faults
async def test_workers_come_and_go_and_end_with_status_0(
    settings: StreamSettings, new_worker: Callable[..., WorkerProcess]
) -> None:
    first, second = new_worker(), new_worker()
    await first.start()
    await first.until_open()
    feeding = asyncio.create_task(feed(settings))
    await second.start()
    await second.until_open()
    first.send(signal.SIGTERM)
    assert await first.ended() == 0, first.log()
    per_key = await feeding
    drops = await until_counted(settings, len(KEYS) * per_key)
    second.send(signal.SIGINT)
    assert await second.ended() == 0, second.log()
    check_exactly_once(drops, KEYS, per_key)


async def test_only_the_fence_stops_a_worker_frozen_after_sending(
    settings: StreamSettings, new_worker: Callable[..., WorkerProcess]
) -> None:
    """It freezes between the last confirmed record and the commit, so on waking the commit is the next it does."""
    frozen = {"die": "before_commit", "nth": 2, "freeze": True, "transaction_timeout_s": 120.0}
    zombie, heir = new_worker(script=MORTAL, stages=STAGES, **frozen), new_worker()
    await zombie.start()
    await zombie.until_open()
    feeding = asyncio.create_task(feed(settings, rounds=15, pause_s=0.1))
    await zombie.frozen()
    hidden = len(await read_drops(settings))
    await heir.start()
    per_key = await feeding
    await until_counted(settings, len(KEYS) * per_key)  # the heir has ended what the zombie had sent
    assert hidden < len(KEYS) * per_key
    assert "fenced" not in zombie.log() + heir.log()
    zombie.send(signal.SIGCONT)
    await until(lambda: re.search(r"fenced id=\S+ position=\d+", zombie.log()), "the zombie is not fenced")
    assert "transaction failed" not in zombie.log()
    check_exactly_once(await until_counted(settings, len(KEYS) * per_key), KEYS, per_key)
    await send_events(settings, KEYS, range(per_key, per_key + 2))  # both work, and the zombie is none any more
    check_exactly_once(await until_counted(settings, len(KEYS) * (per_key + 2)), KEYS, per_key + 2)
    assert "fenced" not in heir.log()
