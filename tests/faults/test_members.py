"""Workers come, go, freeze and have no disk: nothing is lost and nothing twice."""

import asyncio
import random
import signal

import pytest

from rollbus.streams.kafka.settings import StreamSettings
from tests.faults.conftest import SESSION_S, NewWorker, finish, open_worker
from tests.faults.episodes import Traffic

pytestmark = [pytest.mark.services, pytest.mark.faults]


async def test_one_worker_becomes_three_and_one_again(
    settings: StreamSettings, traffic: Traffic, workers: NewWorker
) -> None:
    feeding = asyncio.create_task(traffic.send(range(60), pause_s=0.4))
    three = [await open_worker(workers, settings) for _ in range(3)]
    for worker, number in zip(three[:2], (signal.SIGTERM, signal.SIGINT), strict=True):
        await asyncio.sleep(2.0)
        worker.send(number)
        assert await worker.ended() == 0, worker.log()
    await feeding
    await finish(three[2], traffic)


async def test_workers_that_freeze_past_their_session_and_go_on_are_fenced(
    settings: StreamSettings, traffic: Traffic, workers: NewWorker, chance: random.Random
) -> None:
    both = [await open_worker(workers, settings) for _ in range(2)]
    feeding = asyncio.create_task(traffic.send(range(70), pause_s=0.4))
    for frozen in (both[0], both[1], both[0]):
        await asyncio.sleep(1.0 + chance.random())
        frozen.send(signal.SIGSTOP)
        await asyncio.sleep(SESSION_S + 2.0)
        frozen.send(signal.SIGCONT)
    await feeding
    await traffic.until_trained()
    for worker in both:
        worker.send(signal.SIGTERM)
    assert [await worker.ended() for worker in both] == [0, 0]
    await traffic.check()


async def test_one_episode_with_most_of_the_traffic_does_not_hold_up_others(
    settings: StreamSettings, traffic: Traffic, workers: NewWorker
) -> None:
    hot = Traffic(settings)
    worker = await open_worker(workers, settings)
    feeding = asyncio.create_task(hot.send([0], turns=400))
    await traffic.send(range(1, 20), pause_s=0.1)
    await worker.kill()
    heir = await open_worker(workers, settings)
    await feeding
    traffic.events += hot.events
    traffic.published += hot.published
    contents = await finish(heir, traffic)
    assert max(len(entries) for entries in contents.entries.values()) > 400


async def test_a_worker_that_can_write_no_byte_to_any_file_works(
    settings: StreamSettings, traffic: Traffic, workers: NewWorker
) -> None:
    """All its state is in the log; what it cannot log is lost, and nothing else."""
    worker = workers(settings, file_bytes=0)
    await worker.start()
    await traffic.send(range(10))
    await finish(worker, traffic)
    assert worker.log() == ""
