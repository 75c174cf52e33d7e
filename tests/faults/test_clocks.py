"""Clocks that are wrong by hours, of producers and of workers: nobody is timed out, and everybody is heard."""

import asyncio
import signal

import pytest

from rollbus.streams.kafka.settings import StreamSettings
from tests.faults.conftest import NewWorker, finish, open_worker
from tests.faults.episodes import Traffic

pytestmark = [pytest.mark.services, pytest.mark.faults]

HOUR_MS = 3_600_000


async def test_workers_with_clocks_an_hour_apart_do_not_time_out(
    settings: StreamSettings, traffic: Traffic, workers: NewWorker
) -> None:
    feeding = asyncio.create_task(traffic.send(range(30), pause_s=0.6))
    for shift_s in (0.0, 3_600.0, -3_600.0, 7_200.0):
        worker = await open_worker(workers, settings, clock_shift_s=shift_s)
        await asyncio.sleep(3.0)
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0, worker.log()
    last = await open_worker(workers, settings)
    await feeding
    await finish(last, traffic)


@pytest.mark.parametrize("hours", [-1, 1, 5])
async def test_events_of_a_producer_with_a_wrong_clock_are_used(
    hours: int, settings: StreamSettings, traffic: Traffic, workers: NewWorker
) -> None:
    worker = await open_worker(workers, settings)
    await traffic.send(range(3))
    await traffic.send(range(3, 6), at_ms=hours * HOUR_MS)
    await finish(worker, traffic)
