"""A rebalance ends at once, however long a partition takes to be restored: heartbeats begin only after it."""

import asyncio
from typing import Any

import pytest
from faust.types import TP

from rollbus.streams.exactly_once import transaction
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.worker import app
from tests.services.streams.fixtures import CountStage

PLACE = Partition("t.episode-events", 0)


class Restoring:
    """A producer whose start, the first thing of an opening, is still to come."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def start(self) -> None:
        self.begun.set()
        await asyncio.Event().wait()


class Host:
    """Takes a runner's word, and gives none."""

    def __init__(self, app: Any, generation: int) -> None:
        pass

    def pause(self, partition: Partition) -> None:
        pass


async def test_an_assignment_is_over_while_its_partitions_still_open(monkeypatch: pytest.MonkeyPatch) -> None:
    producer, reported_partitions = Restoring(), list[frozenset[int]]()

    async def stop(producer: Any) -> None:
        pass

    def fail(error: BaseException) -> None:
        raise error

    monkeypatch.setattr(transaction, "new_producer", lambda settings, name: producer)
    monkeypatch.setattr(transaction, "stop_producer", stop)
    monkeypatch.setattr(app, "FaustHost", Host)
    settings = StreamSettings(namespace="t.", event_partitions=1)
    hosted = app.StageApp(CountStage(), settings, on_fatal=fail, on_partitions=reported_partitions.append)
    await hosted._assigned(hosted.app, {TP(*PLACE)})
    assert not producer.begun.is_set()  # not even begun: the callback has returned
    await producer.begun.wait()
    assert not hosted.runners[PLACE].ready
    assert reported_partitions == [frozenset(), frozenset({0})]
    await hosted._revoked(hosted.app, {TP(*PLACE)})
    assert hosted.runners == {}
