"""The topics `training-steps` and `evaluations` → a logger, one record after the other.

An offset is committed once the logger took everything before it. A logger that fails is asked again after growing
pauses; training knows nothing of it. What cannot be read is passed over: the sink keeps it as a dead letter.
"""

import asyncio
import logging
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from rollbus.consumers.clickhouse.chunk_joiner import ChunkJoiner, KafkaRecord
from rollbus.consumers.loggers.protocol import RunLogger
from rollbus.schemas.chunks import is_chunk
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.kafka_connection import KafkaConnection
from rollbus.schemas.starting_kafka import start_whole
from rollbus.schemas.steps import Evaluation, StepCompleted
from rollbus.schemas.stopping_kafka import stop_quietly
from rollbus.schemas.topics import EVALUATIONS, MAX_MESSAGE_BYTES, TRAINING_STEPS

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
POLL_MS = 500


async def follow(
    kafka: KafkaConnection,
    namespace: str,
    run_logger: RunLogger,
    *,
    name: str,
    stop: asyncio.Event,
    first_pause_s: float = FIRST_PAUSE_S,
) -> int:
    """Feed a logger as consumer group `{namespace}logger.{name}` until told to stop; return how many it took."""
    consumer = AIOKafkaConsumer(
        *(topic.full_name(namespace) for topic in (TRAINING_STEPS, EVALUATIONS)),
        **kafka.client_options(),
        group_id=f"{namespace}logger.{name}",
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=2 * MAX_MESSAGE_BYTES,
        max_poll_interval_ms=3_600_000,
    )
    try:
        await start_whole(consumer.start)
        return await _feed(consumer, run_logger, stop, first_pause_s)
    except KafkaError as error:
        raise kafka.unavailable(error) from error
    finally:
        await stop_quietly(consumer.stop)
        await asyncio.to_thread(run_logger.close)


async def _feed(consumer: Any, run_logger: RunLogger, stop: asyncio.Event, first_pause_s: float) -> int:
    taken = 0
    joiners: dict[Any, ChunkJoiner] = {}
    while not stop.is_set():
        offsets = {}
        for partition, messages in (await consumer.getmany(timeout_ms=POLL_MS)).items():
            joiner = joiners.setdefault(partition, ChunkJoiner())
            for message in messages:
                if stop.is_set():
                    break
                record = _read(joiner, message)
                if isinstance(record, (StepCompleted, Evaluation)):
                    if not await _give(run_logger, record, stop, first_pause_s):
                        break
                    taken += 1
                following = message.offset + 1
                offsets[partition] = following if joiner.oldest_offset is None else joiner.oldest_offset
        if offsets:
            await _commit(consumer, offsets)
    return taken


async def _commit(consumer: Any, offsets: dict[Any, int]) -> None:
    """Commit; where the group was shared out anew meanwhile, the records come again to whoever has them now."""
    try:
        await consumer.commit(offsets)
    except (CommitFailedError, IllegalStateError) as error:
        logger.warning("offsets not committed, what was logged comes again error=%s", error)


def _read(joiner: ChunkJoiner, message: Any) -> Any:
    record = KafkaRecord(
        message.topic, message.partition, message.offset, message.timestamp, message.key, message.value
    )
    joiner.give_up(record.timestamp_ms)
    try:
        whole = joiner.add(record) if is_chunk(record.value or b"") else record
        return None if whole is None else decode(whole.value)
    except RecordError as error:
        logger.warning("passed over %s:%d:%d error=%s", message.topic, message.partition, message.offset, error)
        return None


async def _give(run_logger: RunLogger, record: StepCompleted | Evaluation, stop: asyncio.Event, pause_s: float) -> bool:
    """Give a record until it is taken; False where told to stop before."""
    take: Any = run_logger.log_step if isinstance(record, StepCompleted) else run_logger.log_evaluation
    while True:
        try:
            await asyncio.to_thread(take, record)
        except Exception as error:  # a tracker's library may raise anything
            logger.warning("%s failed, again in %.0f s error=%r", type(run_logger).__name__, pause_s, error)
        else:
            return True
        try:
            await asyncio.wait_for(stop.wait(), pause_s)
        except TimeoutError:
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        else:
            return False
