"""The topics `training-steps` and `evaluations` → a logger, or any topic's records to what takes them, in order.

An offset is committed once the logger has taken every record before it. A failing logger gets the record again after
growing pauses, and training goes on. A record that cannot be read is skipped: the sink keeps it as a dead letter.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError

from rollbus.consumers.loggers.protocol import RunLogger
from rollbus.runtime.health.heart import Heart, Report, beating
from rollbus.runtime.kafka.clients import new_consumer, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.positions import MarkedConsumer, Positions
from rollbus.runtime.metrics import TAKE_SECONDS
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.records.steps import Evaluation, StepCompleted
from rollbus.schemas.topics import TOPICS

logger = logging.getLogger(__name__)

STAGE = "logger"
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
POLL_MS = 500
Takes = Mapping[type, Callable[[Any], object]]
"""By record type, what takes it; any error means that it is to come again."""


async def follow(
    kafka: KafkaConnection,
    namespace: str,
    run_logger: RunLogger,
    *,
    name: str,
    stop: asyncio.Event,
    first_pause_s: float = FIRST_PAUSE_S,
    heart: Heart | None = None,
) -> int:
    """Feed a logger as consumer group `{namespace}logger.{name}` until `stop` is set; return how many it took."""
    takes: Takes = {StepCompleted: run_logger.log_step, Evaluation: run_logger.log_evaluation}
    try:
        return await feed(kafka, namespace, takes, name=name, stop=stop, first_pause_s=first_pause_s, heart=heart)
    finally:
        await asyncio.to_thread(run_logger.close)


async def feed(
    kafka: KafkaConnection,
    namespace: str,
    takes: Takes,
    *,
    name: str,
    stop: asyncio.Event,
    first_pause_s: float = FIRST_PAUSE_S,
    heart: Heart | None = None,
) -> int:
    """Give records to what takes them, each until it is taken; return how many were."""
    consumer = new_consumer(
        kafka,
        *(topic.full_name(namespace) for topic in TOPICS if takes.keys() & set(topic.records)),
        group_id=logger_group(namespace, name),
        auto_offset_reset="earliest",
        max_poll_interval_ms=3_600_000,
    )
    feeding = _Feeding(name)
    marked = MarkedConsumer(consumer, logger_positions(kafka, namespace, name).open)
    async with running(kafka, consumer), beating(heart, feeding.report):
        return await _feed(consumer, marked, takes, stop, first_pause_s, feeding)


def logger_group(namespace: str, name: str) -> str:
    """Return the consumer group that feeds a logger."""
    return f"{namespace}{STAGE}.{name}"


def logger_positions(kafka: KafkaConnection, namespace: str, name: str) -> Positions:
    """Return the positions of a logger."""
    return Positions(kafka, logger_group(namespace, name), f"rollbus log-to accept-loss {name}")


@dataclass(slots=True)
class _Feeding:
    """What one feed has done, and what it cannot do now."""

    name: str = ""
    record_count: int = 0
    trouble: str | None = None
    positions: dict[str, int] = field(default_factory=dict)

    def report(self) -> Report:
        return Report(
            holds=(f"logger {self.name}",),
            positions=dict(self.positions),
            work=self.record_count,
            is_behind=self.trouble is not None,
            trouble=self.trouble,
        )


async def _feed(
    consumer: Any,
    marked: MarkedConsumer,
    takes: Takes,
    stop: asyncio.Event,
    first_pause_s: float,
    feeding: _Feeding | None = None,
) -> int:
    feeding = feeding or _Feeding()
    while not stop.is_set():
        last_records = {}
        fetched = await consumer.getmany(timeout_ms=POLL_MS)
        await marked.require_same_logs()
        for partition, messages in fetched.items():
            for message in messages:
                if stop.is_set():
                    break
                record = _decode(message)
                if (take := takes.get(type(record))) is not None:
                    if not await _offer(take, record, stop, first_pause_s, feeding):
                        break
                    feeding.record_count += 1
                last_records[partition] = message
                feeding.positions[f"{message.topic}[{message.partition}]"] = message.offset + 1
        if last_records:
            await _commit(marked, last_records)
    return feeding.record_count


async def _commit(marked: MarkedConsumer, last_records: Mapping[TopicPartition, Any]) -> None:
    """Commit; after a rebalance of the group the records go again to the present owner of their partition."""
    try:
        await marked.commit(last_records)
    except (CommitFailedError, IllegalStateError) as error:
        logger.warning("offsets not committed, the logged records come again error=%s", error)


def _decode(message: Any) -> Any:
    try:
        return decode(message.value)
    except RecordError as error:
        logger.warning("skipped %s:%d:%d error=%s", message.topic, message.partition, message.offset, error)
        return None


async def _offer(
    take: Callable[[Any], object], record: Any, stop: asyncio.Event, pause_s: float, feeding: _Feeding | None = None
) -> bool:
    """Offer a record until it is taken; return False if `stop` is set before."""
    feeding, start_s = feeding or _Feeding(), time.monotonic()
    while True:
        try:
            await asyncio.to_thread(take, record)
        except Exception as error:  # a tracker's library may raise anything
            feeding.trouble = f"{take.__qualname__} failed: {error!r}"
            logger.warning("%s failed, trying again in %.0f s error=%r", take.__qualname__, pause_s, error)
        else:
            feeding.trouble = None
            TAKE_SECONDS.labels(feeding.name).observe(time.monotonic() - start_s)
            return True
        try:
            await asyncio.wait_for(stop.wait(), pause_s)
        except TimeoutError:
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        else:
            return False
