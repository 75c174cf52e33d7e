"""The requests of one run in Kafka → attempts: each offset is committed before its attempt begins, never after."""

import asyncio
import logging
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError

from rollbus.resample.attempts import Resampler
from rollbus.runtime.kafka.clients import new_consumer, running
from rollbus.runtime.kafka.positions import MarkedConsumer, Positions
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.records.groups import ResampleRequested
from rollbus.schemas.topics import RESAMPLE_REQUESTS
from rollbus.streams.kafka.settings import StreamSettings

logger = logging.getLogger(__name__)

STAGE = "resample-agent"


def group_id(namespace: str, run_id: str) -> str:
    """Return the consumer group of the processes that make a run's attempts."""
    return f"{namespace}{STAGE}.{run_id}"


def resample_positions(settings: StreamSettings, run_id: str) -> Positions:
    """Return the positions of the processes that make a run's attempts.

    Requests that have expired are too late for their groups.
    """
    command = f"rollbus resample accept-loss --run {run_id}"
    return Positions(settings.kafka, group_id(settings.namespace, run_id), command, passes_expired=True)


async def resample(settings: StreamSettings, run_id: str, resampler: Resampler, *, stop: asyncio.Event) -> None:
    """Make the attempts that the log asks for until `stop` is set; raises UnavailableError without a broker."""
    consumer = new_consumer(
        settings.kafka,
        RESAMPLE_REQUESTS.full_name(settings.namespace),
        group_id=group_id(settings.namespace, run_id),
        auto_offset_reset="earliest",
        session_timeout_ms=int(settings.session_timeout_s * 1000),
        heartbeat_interval_ms=int(settings.session_timeout_s * 250),
    )
    stopping = asyncio.create_task(stop.wait())
    requests = Requests(consumer, MarkedConsumer(consumer, resample_positions(settings, run_id).open), run_id)
    try:
        async with running(settings.kafka, consumer):
            while not stop.is_set():
                await resampler.wait_for_room()
                next_request = await requests.next(stopping)
                if next_request is None:
                    return
                resampler.begin(next_request.request, next_request.written_ms)
    finally:
        stopping.cancel()
        await resampler.finish()


class TakenRequest(NamedTuple):
    """A request that was marked as taken."""

    request: ResampleRequested
    written_ms: int
    """By the worker's clock."""


class Requests:
    """What a consumer reads, as requests of one run, each committed as taken."""

    def __init__(self, consumer: Any, marked: MarkedConsumer, run_id: str) -> None:
        self._consumer, self._marked, self._run_id = consumer, marked, run_id

    async def next(self, stopping: asyncio.Task[bool]) -> TakenRequest | None:
        """Return the next request of the run; None once stopped."""
        while True:
            reading = asyncio.create_task(self._consumer.getone())
            await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not reading.done():
                reading.cancel()
                return None
            message = reading.result()
            await self._marked.require_same_logs()
            try:
                await self._marked.commit({TopicPartition(message.topic, message.partition): message})
            except (CommitFailedError, IllegalStateError) as error:
                logger.info("the request at offset %d is left to another agent: %s", message.offset, error)
                continue
            try:
                record = decode(message.value)
            except RecordError as error:
                logger.warning("a request at offset %d cannot be read: %s", message.offset, error)
                continue
            if isinstance(record, ResampleRequested) and record.run_id == self._run_id:
                return TakenRequest(record, message.timestamp)
