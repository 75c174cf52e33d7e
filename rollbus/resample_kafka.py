"""The requests of one run in Kafka to attempts: each offset is committed before its attempt begins, never after."""

import asyncio
import logging

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from rollbus.resample import Resampler
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.groups import ResampleRequested
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
    try:
        await consumer.start()
        while not stop.is_set():
            await resampler.room()
            request = await _next(consumer, run_id, stopping)
            if request is None:
                return
            resampler.begin(request)
    except (KafkaError, OSError) as error:
        raise settings.kafka.unavailable(error) from error
    finally:
        stopping.cancel()
        await stop_quietly(consumer.stop)
        await resampler.finish()


async def _next(consumer: AIOKafkaConsumer, run_id: str, stopping: asyncio.Task[bool]) -> ResampleRequested | None:
    """Return the next request of the run, committed as taken; None once told to stop."""
    while True:
        reading = asyncio.create_task(consumer.getone())
        await asyncio.wait([reading, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            reading.cancel()
            return None
        found = reading.result()
        await consumer.commit({TopicPartition(found.topic, found.partition): found.offset + 1})
        try:
            record = decode(found.value or b"")
        except RecordError as error:
            logger.warning("a request at offset %d cannot be read: %s", found.offset, error)
            continue
        if isinstance(record, ResampleRequested) and record.run_id == run_id:
            return record
