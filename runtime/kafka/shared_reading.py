"""Partitions of which many are read at the same time → each to its present end, through one client after the other.

Each client begins by asking for the metadata of all partitions of the cluster. So one client for each partition would
cost the square of their number: a worker that opens a thousand partitions would do nothing else for minutes.
A failure ends the reading of all that share the client; then each of them gets a client of its own, one after the
other. So a partition whose leader is away holds up the others once.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from rollbus.runtime.cancelling import is_being_cancelled
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.reading import assign_paused, open_reader, read_bounds, read_on
from rollbus.runtime.tasks import start_task
from rollbus.schemas.errors import UnavailableError

CLOSE_S = 2.0
"""How long a close waits for the client to stop: a group that gives its partitions back waits for it."""
PATIENCE_S = 30.0
"""How long a partition that has more may give nothing, as one without a leader does."""
_CLOSED_MESSAGE = "the partitions were given back"
Take = Callable[[Any], None]
"""Takes in one record; what it raises ends the reading of its partition."""


@dataclass(slots=True, eq=False)
class _Waiting:
    place: TopicPartition
    take: Take
    only: int | None = None
    """The one offset to read; None reads all."""
    outcome: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class SharedReading:
    """Reads one partition after the other; those that come meanwhile are read next, together."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._waiting: list[_Waiting] = []
        self._together: list[_Waiting] = []
        """Those that are being read."""
        self._alone = set[TopicPartition]()
        """Partitions whose reading began and has not come to its end: after a failure, one of them may be the cause."""
        self._reading: asyncio.Task[None] | None = None
        self._closed = False
        self.records = 0
        """Read so far, of all partitions: one that waits for its turn is not stuck while this grows."""

    async def read(self, topic: str, partition: int, take: Take) -> None:
        """Give every committed record up to the present end to `take`; raises what that raises, and broker errors."""
        await self._wait_for(_Waiting(TopicPartition(topic, partition), take))

    async def read_one(self, topic: str, partition: int, offset: int) -> Any:
        """Return the committed record at an offset; None if there is none."""
        records = list[Any]()
        await self._wait_for(_Waiting(TopicPartition(topic, partition), records.append, offset))
        return next((record for record in records if record.offset == offset), None)

    async def _wait_for(self, waiting: _Waiting) -> None:
        if self._closed:
            raise UnavailableError(_CLOSED_MESSAGE)
        self._waiting.append(waiting)
        if self._reading is None or self._reading.done():
            self._reading = start_task(self._read_waiting(), f"reading {waiting.place.topic}", endless=False)
        await waiting.outcome

    async def close(self) -> None:
        """Stop reading; each reader that waits gets an UnavailableError."""
        self._closed = True
        unread = [reader for reader in (*self._together, *self._waiting) if not reader.outcome.done()]
        _fail(unread, UnavailableError(_CLOSED_MESSAGE))
        if self._reading is not None:
            if unread:  # else its client is just being closed
                self._reading.cancel()
            await asyncio.wait([self._reading], timeout=CLOSE_S)

    async def _read_waiting(self) -> None:
        try:
            while waiting := [reader for reader in self._waiting if not reader.outcome.done()]:
                self._together = [reader for reader in waiting if reader.place not in self._alone] or waiting[:1]
                self._waiting = [reader for reader in waiting if reader not in self._together]
                try:
                    await self._read(self._together)
                except BaseException as error:  # whatever it is, its readers wait for the news
                    if is_being_cancelled():
                        raise
                    _fail(self._together, error)
        finally:
            _fail([*self._together, *self._waiting], UnavailableError(_CLOSED_MESSAGE))

    async def _read(self, together: list[_Waiting]) -> None:
        places = [reader.place for reader in together]
        async with open_reader(self._connection, f"reading {places[0].topic}") as consumer:
            self._alone.update(places)  # not before: if no broker answers, no partition is the cause
            assign_paused(consumer, places)  # only the one that is read is fetched ahead
            bounds = await read_bounds(consumer, places)
            for reader in together:
                begin, end = bounds[reader.place]
                if reader.only is not None:
                    begin, end = max(begin, min(reader.only, end)), min(end, reader.only + 1)
                consumer.seek(reader.place, begin)
                if not reader.outcome.done():  # its partition may have been closed while it waited
                    await self._read_one(consumer, reader, end)
                self._alone.discard(reader.place)

    async def _read_one(self, consumer: AIOKafkaConsumer, reader: _Waiting, end: int) -> None:
        async with aclosing(read_on(consumer, {reader.place: end}, patience_s=PATIENCE_S)) as records:
            async for record in records:
                if reader.outcome.done():
                    break
                if record.offset >= end:
                    continue
                self.records += 1
                try:
                    reader.take(record)
                except BaseException as error:
                    _fail([reader], error)
        consumer.pause(reader.place)
        if not reader.outcome.done():
            reader.outcome.set_result(None)


def _fail(several: Iterable[_Waiting], error: BaseException) -> None:
    for reader in several:
        if not reader.outcome.done():
            reader.outcome.set_exception(error)
