"""Several askers share one connection to the broker; a question that is left or fails closes what it opened."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rollbus.health.watch import HealthWatch
from rollbus.runtime.kafka.connection import KafkaConnection


class Broker:
    """Counts the connections that are open; its answers never come, or are an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.open, self.opened = error, 0, 0

    @asynccontextmanager
    async def connect(self, *arguments: Any, **options: Any) -> AsyncIterator["Broker"]:
        self.open += 1
        self.opened += 1
        try:
            yield self
        finally:
            self.open -= 1

    async def settled_picture(self) -> Any:
        if self.error is not None:
            raise self.error
        await asyncio.Event().wait()


def watch_of(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> HealthWatch:
    monkeypatch.setattr("rollbus.health.watch.open_health", broker.connect)
    return HealthWatch(KafkaConnection(), "t.")


async def test_a_question_that_is_cancelled_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watch_of(broker := Broker(), monkeypatch)
    for number in (1, 2):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(watch.ask(), 0.05)
        assert (broker.opened, broker.open) == (number, 0)


async def test_a_question_that_fails_leaves_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watch_of(broker := Broker(ValueError("a record of the future")), monkeypatch)
    for number in (1, 2):
        with pytest.raises(ValueError, match="of the future"):
            await watch.ask()
        assert (broker.opened, broker.open) == (number, 0)
