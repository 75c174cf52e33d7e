"""Decisions are followed through outages of the broker."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.decisions import follow_decisions
from rollbus.schemas.errors import UnavailableError
from tests.waiting import until


class Broker:
    """Gives no record, and fails at the end of each connection: at once, or after it was read to its end."""

    def __init__(self, *reads: int) -> None:
        """Each connection answers so many reads."""
        self.reads_left = list(reads)

    @asynccontextmanager
    async def connect(self, *arguments: Any) -> AsyncIterator["Broker"]:
        if not self.reads_left:
            await asyncio.Event().wait()
        yield self

    def assign(self, places: Any) -> None:
        pass

    async def seek_to_beginning(self, place: Any) -> None:
        pass

    async def end_offsets(self, places: Any) -> dict[Any, int]:
        return dict.fromkeys(places, 0)

    async def position(self, place: Any) -> int:
        return 0

    async def getmany(self, *, timeout_ms: int) -> dict[Any, Any]:
        self.reads_left[0] -= 1
        if self.reads_left[0] < 0:
            self.reads_left.pop(0)
            raise UnavailableError("no broker answers")
        return {}


async def test_each_outage_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(0, 0, 2, 0)
    monkeypatch.setattr("rollbus.runtime.kafka.decisions.RETRY_S", 0.0)
    monkeypatch.setattr("rollbus.runtime.kafka.decisions.open_reader", broker.connect)
    with caplog.at_level(logging.WARNING, "rollbus.runtime.kafka.decisions"):
        following = asyncio.create_task(follow_decisions(KafkaConnection(), "t.", lambda decision: None))
        await until(lambda: not broker.reads_left, "it does not try again")
        following.cancel()
    assert len(caplog.records) == 2, "the first two are one outage, and so are the last two"
