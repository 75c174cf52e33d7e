"""An operator's words to a run go into the run log; where every run stands is read from there.

The run's curriculum obeys in the order of the log, so a replay obeys at the same place.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from rollbus.schemas import chunks
from rollbus.schemas.codec import decode
from rollbus.schemas.control import RunCommand
from rollbus.schemas.errors import RecordError
from rollbus.schemas.topics import BATCHES, RUN_LOG
from rollbus.streams.run_status import RunStatus, large, run_statuses
from rollbus.streams.sending_kafka import send_record
from rollbus.streams.settings import StreamSettings

POLL_MS = 200


def send_command(settings: StreamSettings, command: RunCommand) -> None:
    """Write a command into its run's log; raises UnavailableError."""
    asyncio.run(send_command_async(settings, command))


def list_runs(settings: StreamSettings) -> dict[str, RunStatus]:
    """Return where each run of the namespace stands, by run id; raises UnavailableError."""
    return asyncio.run(list_runs_async(settings))


async def send_command_async(settings: StreamSettings, command: RunCommand) -> None:
    """Do what `send_command` does, inside a running loop."""
    await send_record(settings, RUN_LOG, command.run_id, command)


async def list_runs_async(settings: StreamSettings) -> dict[str, RunStatus]:
    """Return what `list_runs` does, inside a running loop."""
    try:
        return run_statuses([pair async for pair in _records(settings)])
    except KafkaError as error:
        raise settings.kafka.unavailable(error) from error


async def _records(settings: StreamSettings) -> AsyncIterator[tuple[str, Any]]:
    places = [TopicPartition(topic.full_name(settings.namespace), 0) for topic in (RUN_LOG, BATCHES)]
    consumer = AIOKafkaConsumer(
        **settings.kafka.client_options(),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    try:
        await consumer.start()
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        ends = await consumer.end_offsets(places)
        behind = list(places)
        while behind := [place for place in behind if await consumer.position(place) < ends[place]]:
            for place, records in (await consumer.getmany(*behind, timeout_ms=POLL_MS)).items():
                for record in records:
                    with suppress(RecordError):  # the curriculum has made a dead letter of it
                        yield (record.key or b"").decode(errors="replace"), _read(record.value, place == places[1])
    finally:
        await consumer.stop()


def _read(data: bytes | None, batch: bool) -> Any:
    if data is not None and chunks.is_chunk(data):
        return large(chunks.parse(data), batch=batch)
    return decode(data)
