"""A partition's changelog back to the state it describes, and the proof that it is that state.

Each transaction writes, beside the rows it touched, one row with the input position after it. Restored state is
right exactly if that row equals the committed offset: both came from the same transaction.
"""

import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from aiokafka import AIOKafkaConsumer, TopicPartition

from rollbus.schemas.errors import DataLossError, UndecodableError
from rollbus.schemas.starting_kafka import start_whole
from rollbus.streams.claims import Committed, start_of
from rollbus.streams.processing import OWN_ROWS
from rollbus.streams.settings import StreamSettings

POSITION_KEY = OWN_ROWS + b"position"
_POSITION = struct.Struct(">Bq")
REMEDY = "restore changelog and offsets from one moment, or delete both to start again from the input's beginning"
"""Of a changelog that cannot be gone on from."""
_VERSION = 1
_POLL_MS = 500


def position_row(position: int) -> tuple[bytes, bytes]:
    """Return the row that names the input position after a transaction."""
    return POSITION_KEY, _POSITION.pack(_VERSION, position)


async def read_partition(
    settings: StreamSettings, topic: str, partition: int, *, newest: int | None = None
) -> AsyncGenerator[tuple[bytes | None, bytes | None], None]:
    """Yield each committed row (key, value) of a partition to its present end, from its beginning or of the newest."""
    place = TopicPartition(topic, partition)
    consumer = AIOKafkaConsumer(
        **settings.kafka.client_options(),
        isolation_level="read_committed",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=settings.max_partition_fetch_bytes,
        fetch_max_wait_ms=50,
    )
    try:
        await start_whole(consumer.start)
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        end = (await consumer.end_offsets([place]))[place]
        if newest is not None and await consumer.position(place) < end - newest:
            consumer.seek(place, end - newest)
        while await consumer.position(place) < end:
            for record in (await consumer.getmany(place, timeout_ms=_POLL_MS)).get(place, ()):
                yield record.key, record.value
    finally:
        await consumer.stop()


async def restore(
    settings: StreamSettings, topic: str, partition: int, apply: Callable[[bytes, bytes | None], None]
) -> tuple[int | None, int]:
    """Apply every row; return the input position that the changelog describes (None if empty) and the rows read.

    Raises UndecodableError for a row that cannot be read.
    """
    position, rows = None, 0
    async with aclosing(read_partition(settings, topic, partition)) as found:
        async for key, value in found:
            if key is None:
                continue
            try:
                if key == POSITION_KEY and value is not None:
                    position = _position(value)
                else:
                    apply(key, value)
                    rows += 1
            except UndecodableError as error:
                raise UndecodableError(f"{topic}[{partition}]: {error}") from error
            except Exception as error:  # each codec has its own
                raise UndecodableError(
                    f"{topic}[{partition}]: row {key!r} of {len(value or b'')} bytes is damaged ({error!r}); {REMEDY}"
                ) from error
    return position, rows


def _position(value: bytes) -> int:
    version, position = _POSITION.unpack(value)
    if version != _VERSION:
        raise UndecodableError(
            f"the row of the position has version {version}, this code reads {_VERSION}; run the newer release that "
            "wrote it"
        )
    return int(position)


def start_position(
    described: int | None, found: Committed | None, *, topic: str, partition: int, group: str
) -> int | None:
    """Return where to go on; raises DataLossError unless changelog and offset come from the same transaction."""
    try:
        return start_of(described, found)
    except ValueError:
        raise DataLossError(
            f"{topic}[{partition}] describes the state at input position {described}, but group {group} has committed "
            f"{found and found.offset}; offsets or changelog were changed by hand or lost: restore both from the same "
            "moment, or delete both to start again from the input's beginning"
        ) from None
