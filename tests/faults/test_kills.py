"""kill -9 at seeded points of a transaction, of a restore and of a rebalance: nothing is lost and nothing twice."""

import asyncio
import random
import signal

import pytest

from rollbus.streams.kafka.settings import StreamSettings
from tests.faults.conftest import NewWorker, finish, open_worker
from tests.faults.episodes import Traffic, numbers_until, pipeline
from tests.faults.log_contents import read_everything
from tests.waiting import until

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.timeout(900)]  # six processes start in turn

IN_A_TRANSACTION = ("before_send", "half_sent", "before_commit", "during_commit", "after_commit")


@pytest.mark.parametrize("schedule", range(2))
async def test_a_kill_at_any_point_of_a_transaction_costs_nothing(
    settings: StreamSettings, traffic: Traffic, workers: NewWorker, chance: random.Random, schedule: int
) -> None:
    """Each point is met: ticks alone make transactions, and there is traffic until the last kill."""
    enough = asyncio.Event()
    feeding = asyncio.create_task(traffic.send(numbers_until(enough), pause_s=0.4))
    for point in chance.sample(IN_A_TRANSACTION, len(IN_A_TRANSACTION)):
        worker = workers(settings, die=point, nth=chance.randint(5, 40))
        await worker.start()
        assert await worker.ended() == -signal.SIGKILL, worker.log()
    last = await open_worker(workers, settings)
    enough.set()
    await feeding
    await finish(last, traffic)


async def test_a_kill_during_a_restore_or_a_rebalance_costs_nothing(
    settings: StreamSettings, traffic: Traffic, workers: NewWorker, chance: random.Random
) -> None:
    """A worker alone restores all rows. Each stage is given partitions, and gives them up when another worker comes."""
    first = workers(settings)
    await first.start()
    await traffic.send(range(10))
    await traffic.until_trained()
    await first.kill()
    rows = sum(map(len, (await read_everything(settings, pipeline())).rows.values()))
    stages = len(pipeline())
    enough = asyncio.Event()
    feeding = asyncio.create_task(traffic.send(numbers_until(enough, start=10), pause_s=0.5))
    for point, most in (("restore", rows), ("assigned", stages)):
        worker = workers(settings, die=point, nth=chance.randint(1, most))
        await worker.start()
        assert await worker.ended() == -signal.SIGKILL, worker.log()
    leaving, coming = workers(settings, die="revoked", nth=chance.randint(1, stages)), workers(settings)
    await leaving.start()
    await until(
        lambda: all(f" open id={stage.name}[" in leaving.log() for stage in pipeline()), "not every stage opens"
    )
    await coming.start()
    await coming.until_open()
    assert await leaving.ended() == -signal.SIGKILL, leaving.log()
    enough.set()
    await feeding
    await finish(coming, traffic)
