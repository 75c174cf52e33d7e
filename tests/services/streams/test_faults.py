"""A worker that freezes and wakes: every event is answered once, and every count is right."""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from tests.services.streams.fixtures import CountStage, counting, read_drops, send_events, stream_settings
from tests.services.streams.process import WorkerProcess, check_exactly_once, until_counted
from tests.waiting import until

pytestmark = pytest.mark.services

KEYS = [f"k{number}" for number in range(20)]
ROUNDS, PER_ROUND = 15, 2
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


async def feed(settings: StreamSettings) -> int:
    """Send events over a while, so that faults fall between and into transactions; return events per key."""
    for number in range(ROUNDS):
        await send_events(settings, KEYS, range(number * PER_ROUND, (number + 1) * PER_ROUND))
        await asyncio.sleep(0.1)
    return ROUNDS * PER_ROUND


async def test_only_the_fence_stops_a_worker_frozen_after_sending(
    settings: StreamSettings, new_worker: Callable[..., WorkerProcess]
) -> None:
    """It freezes between the last confirmed record and the commit, so on waking the commit is the next it does."""
    frozen = {"die": "before_commit", "nth": 2, "freeze": True, "transaction_timeout_s": 120.0}
    zombie, heir = new_worker(script=MORTAL, stages=STAGES, **frozen), new_worker()
    await zombie.start()
    await zombie.until_open()
    feeding = asyncio.create_task(feed(settings))
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
