"""The requests of one run in Kafka to attempts: each offset is committed before its attempt begins, never after.

A request with a long opening comes in chunks. Whoever has not read all of them makes no attempt: its parts were taken
by a process that ended, and an attempt is made at most once.
"""

import asyncio
import logging
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from rollbus.resample import Resampler
from rollbus.schemas.chunks import MAX_CHUNKS
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.groups import ResampleRequested
from rollbus.schemas.joining import Joiner
from rollbus.schemas.starting_kafka import start_whole
from rollbus.schemas.stopping_kafka import stop_quietly
from rollbus.schemas.topics import RESAMPLE_REQUESTS
from rollbus.streams.settings import StreamSettings

logger = logging.getLogger(__name__)


def group_id(namespace: str, run_id: str) -> str:
    """Return the consumer group of those who make a run's attempts."""
    return f"{namespace}resample-agent.{run_id}"


async def resample(settings: StreamSettings, run_id: str, resampler: Resampler, *, stop: asyncio.Event) -> None:
    """Make the attempts that the log asks for until told to stop; raises UnavailableError without a broker."""
    consumer = AIOKafkaConsumer(
        RESAMPLE_REQUESTS.full_name(settings.namespace),
        **settings.kafka.client_options(),
        group_id=group_id(settings.namespace, run_id),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=int(settings.session_timeout_s * 1000),
        heartbeat_interval_ms=int(settings.session_timeout_s * 250),
    )
    stopping = asyncio.create_task(stop.wait())
    requests = Requests(consumer, run_id)
    try:
        await start_whole(consumer.start)
        while not stop.is_set():
            await resampler.room()
            taken = await requests.next(stopping)
            if taken is None:
                return
            resampler.begin(taken.request, taken.written_ms)
    except (KafkaError, OSError) as error:
        raise settings.kafka.unavailable(error) from error
    finally:
        stopping.cancel()
        await stop_quietly(consumer.stop)
        await resampler.finish()


class Taken(NamedTuple):
    """A request that was marked as taken."""

    request: ResampleRequested
    written_ms: int
    """By the worker's clock."""


class Requests:
    """What a consumer reads, as requests of one run, each committed as taken."""

    def __init__(self, consumer: Any, run_id: str) -> None:
        self._consumer, self._run_id = consumer, run_id
        self._parts = Joiner[int]()
        """The topic has one partition, so this is in its order."""

    async def next(self, stopping: asyncio.Task[bool]) -> Taken | None:
        """Return the next request of the run; None once told to stop."""
        while True:
            reading = asyncio.create_task(self._consumer.getone())
            await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                return None
            found = reading.result()
            try:
                await self._consumer.commit({TopicPartition(found.topic, found.partition): found.offset + 1})
            except (CommitFailedError, IllegalStateError) as error:
                logger.info("the request at offset %d is left to another agent: %s", found.offset, error)
                continue
            try:
                record = self._read(found.value or b"", found.offset)
            except RecordError as error:
                logger.warning("a request at offset %d cannot be read: %s", found.offset, error)
                continue
            if isinstance(record, ResampleRequested) and record.run_id == self._run_id:
                return Taken(record, found.timestamp)

    def _read(self, data: bytes, offset: int) -> Any:
        whole = self._parts.whole(data, offset)
        for digest, begun in self._parts:
            if begun.place < offset - MAX_CHUNKS:  # its other parts were read by somebody who has ended
                self._parts.forget(digest)
        return decode(whole) if whole is not None else None
