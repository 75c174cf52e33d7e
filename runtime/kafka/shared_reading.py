"""Partitions of which many are read at the same time → each to its present end, through one client after the other.

Each client begins by asking for the metadata of all partitions of the cluster. So one client for each partition would
cost the square of their number: a worker that opens a thousand partitions would do nothing else for minutes.
A failure ends the reading of all that share the client; then each of them gets a client of its own, one after the
other. So a partition whose leader does not answer holds up the others once.
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
TakeRecord = Callable[[Any], None]
"""Takes in one record; what it raises ends the reading of its partition."""


@dataclass(slots=True, eq=False)
class _ReadRequest:
    place: TopicPartition
    take: TakeRecord
    only_offset: int | None = None
    """The one offset to read; None reads all."""
    outcome: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class SharedReading:
    """Reads one partition after the other; the partitions that are asked for meanwhile share the next client."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._waiting_requests: list[_ReadRequest] = []
        self._current_requests: list[_ReadRequest] = []
        """Those that share the present client."""
        self._unfinished_places = set[TopicPartition]()
        """Partitions whose reading began and did not reach its end; after a failure each is read alone, as one may be
        the cause."""
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        self.records = 0
        """Read so far, of all partitions: one that waits for its turn is not stuck while this grows."""

    async def read(self, topic: str, partition: int, take: TakeRecord) -> None:
        """Give every committed record up to the present end to `take`; raises what that raises, and broker errors."""
        await self._wait_for(_ReadRequest(TopicPartition(topic, partition), take))

    async def read_one(self, topic: str, partition: int, offset: int) -> Any:
        """Return the committed record at an offset; None if there is none."""
        records = list[Any]()
        await self._wait_for(_ReadRequest(TopicPartition(topic, partition), records.append, offset))
        return next((record for record in records if record.offset == offset), None)

    async def _wait_for(self, request: _ReadRequest) -> None:
        if self._is_closed:
            raise UnavailableError(_CLOSED_MESSAGE)
        self._waiting_requests.append(request)
        if self._task is None or self._task.done():
            self._task = start_task(self._read_until_none_waits(), f"reading {request.place.topic}", endless=False)
        await request.outcome

    async def close(self) -> None:
        """Stop reading; each caller that waits gets an UnavailableError."""
        self._is_closed = True
        requests = (*self._current_requests, *self._waiting_requests)
        open_requests = [request for request in requests if not request.outcome.done()]
        _fail_requests(open_requests, UnavailableError(_CLOSED_MESSAGE))
        if self._task is not None:
            if open_requests:  # else its client is just being closed
                self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_S)

    async def _read_until_none_waits(self) -> None:
        try:
            while waiting := [request for request in self._waiting_requests if not request.outcome.done()]:
                sharing = [request for request in waiting if request.place not in self._unfinished_places]
                self._current_requests = sharing or waiting[:1]
                self._waiting_requests = [request for request in waiting if request not in self._current_requests]
                try:
                    await self._read_by_one_client(self._current_requests)
                except BaseException as error:  # whatever it is, the callers wait for it
                    if is_being_cancelled():
                        raise
                    _fail_requests(self._current_requests, error)
        finally:
            requests = [*self._current_requests, *self._waiting_requests]
            _fail_requests(requests, UnavailableError(_CLOSED_MESSAGE))

    async def _read_by_one_client(self, requests: list[_ReadRequest]) -> None:
        places = [request.place for request in requests]
        async with open_reader(self._connection, f"reading {places[0].topic}") as consumer:
            self._unfinished_places.update(places)  # not before: if no broker answers, no partition is the cause
            assign_paused(consumer, places)  # only the one that is read is fetched ahead
            bounds = await read_bounds(consumer, places)
            for request in requests:
                begin, end = bounds[request.place]
                if request.only_offset is not None:
                    begin, end = max(begin, min(request.only_offset, end)), min(end, request.only_offset + 1)
                consumer.seek(request.place, begin)
                if not request.outcome.done():  # its partition may have been closed while it waited
                    await self._read_partition(consumer, request, end)
                self._unfinished_places.discard(request.place)

    async def _read_partition(self, consumer: AIOKafkaConsumer, request: _ReadRequest, end: int) -> None:
        async with aclosing(read_on(consumer, {request.place: end}, patience_s=PATIENCE_S)) as records:
            async for record in records:
                if request.outcome.done():
                    break
                if record.offset >= end:
                    continue
                self.records += 1
                try:
                    request.take(record)
                except BaseException as error:
                    _fail_requests([request], error)
        consumer.pause(request.place)
        if not request.outcome.done():
            request.outcome.set_result(None)


def _fail_requests(requests: Iterable[_ReadRequest], error: BaseException) -> None:
    for request in requests:
        if not request.outcome.done():
            request.outcome.set_exception(error)
