"""Clocks that are wrong by hours, of producers and of workers: nobody is timed out, and nothing is refused."""

import asyncio
import signal

import pytest

from rollbus.producers.delivery.kafka_sink import KafkaSink
from rollbus.producers.delivery.sink import Outbound
from rollbus.schemas.codec import encode
from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.streams.kafka.settings import StreamSettings
from tests.builders import START_MS
from tests.faults.conftest import NewWorker
from tests.faults.episodes import Traffic, group_events

pytestmark = [pytest.mark.services, pytest.mark.faults]

HOUR_MS = 3_600_000


async def test_workers_whose_clocks_are_an_hour_apart_time_nobody_out(
    settings: StreamSettings, traffic: Traffic, workers: NewWorker
) -> None:
    feeding = asyncio.create_task(traffic.send(range(30), pause_s=0.6))
    for shift_s in (0.0, 3_600.0, -3_600.0, 7_200.0):
        worker = workers(settings, clock_shift_s=shift_s)
        await worker.start()
        await worker.until_open()
        await asyncio.sleep(3.0)
        worker.send(signal.SIGTERM)
        assert await worker.ended() == 0, worker.log()
    last = workers(settings)
    await last.start()
    await last.until_open()
    await feeding
    await traffic.until_trained()
    last.send(signal.SIGTERM)
    assert await last.ended() == 0, last.log()
    await traffic.check()


@pytest.mark.parametrize("hours", [-1, 1, 5])
async def test_a_producer_whose_clock_is_wrong_is_heard(
    hours: int, settings: StreamSettings, traffic: Traffic, workers: NewWorker
) -> None:
    worker = workers(settings)
    await worker.start()
    await worker.until_open()
    await traffic.send(range(3))
    await traffic.send(range(3, 6), at_ms=hours * HOUR_MS)
    await traffic.until_trained()
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0, worker.log()
    await traffic.check()


async def test_the_broker_takes_records_from_the_future_and_the_past(settings: StreamSettings) -> None:
    sink = KafkaSink(settings.kafka)
    await sink.start()
    (event, *_) = group_events(0)
    name = EPISODE_EVENTS.full_name(settings.namespace)
    now_ms = 2 * START_MS  # decades ahead
    try:
        records = [Outbound(name, b"k", encode(event), time_ms) for time_ms in (now_ms, 0)]
        assert await asyncio.wait_for(sink.send(records), 20) == frozenset()
    finally:
        await sink.close()
