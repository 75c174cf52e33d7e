"""kill -9 at seeded points of a transaction, of a restore and of a rebalance: nothing is lost and nothing twice."""

import asyncio
import random
import signal

import pytest

from rollbus.streams.settings import StreamSettings
from tests.faults.conftest import NewWorker
from tests.faults.episodes import Traffic

pytestmark = [pytest.mark.services, pytest.mark.faults]

IN_A_TRANSACTION = ("before_send", "half_sent", "before_commit", "during_commit", "after_commit")


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_kill_at_any_point_of_a_transaction_costs_nothing(
    seed: int, settings: StreamSettings, traffic: Traffic, workers: NewWorker
) -> None:
    chance = random.Random(seed)
    feeding = asyncio.create_task(traffic.send(range(60), pause_s=0.4))
    for point in chance.sample(IN_A_TRANSACTION, len(IN_A_TRANSACTION)):
        worker = workers(settings, die=point, nth=chance.randint(5, 40))
        await worker.start()
        assert await worker.ended() == -signal.SIGKILL, worker.log()
    last = workers(settings)
    await last.start()
    await last.until_open()
    await feeding
    await traffic.until_trained()
    last.send(signal.SIGTERM)
    assert await last.ended() == 0, last.log()
    await traffic.check()


async def test_a_kill_during_a_restore_or_a_rebalance_costs_nothing(
    settings: StreamSettings, traffic: Traffic, workers: NewWorker
) -> None:
    chance = random.Random(3)
    first = workers(settings)
    await first.start()
    await traffic.send(range(10))
    await traffic.until_trained()
    await first.kill()
    feeding = asyncio.create_task(traffic.send(range(10, 40), pause_s=0.5))
    for point, most in (("restore", 60), ("assigned", 5)):
        worker = workers(settings, die=point, nth=chance.randint(1, most))
        await worker.start()
        assert await worker.ended() == -signal.SIGKILL, worker.log()
    leaving, coming = workers(settings, die="revoked", nth=chance.randint(1, 3)), workers(settings)
    await leaving.start()
    await leaving.until_open()
    await coming.start()
    await coming.until_open()
    assert await leaving.ended() == -signal.SIGKILL, leaving.log()
    await feeding
    await traffic.until_trained()
    coming.send(signal.SIGTERM)
    assert await coming.ended() == 0, coming.log()
    await traffic.check()
