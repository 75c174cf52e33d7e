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
    await feeding
    await traffic.until_trained()
    last.send(signal.SIGTERM)
    assert await last.ended() == 0, last.log()
    await traffic.check()
