"""A small stage with state and outputs, and what the stream tests on a real broker share."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import RecordsToDelete

from rollbus.runtime.kafka.clients import new_admin, new_consumer, new_producer, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.reading import read_ends
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.events import ToolCalled
from rollbus.schemas.signing import OWNER
from rollbus.schemas.topics import DROPS, EPISODE_EVENTS, Topic
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of
from rollbus.streams.state.stage import Incoming, Outgoing
from rollbus.streams.state.table import PartitionState, RowCodec, Table
from tests.waiting import until_found

COUNT: RowCodec[int] = RowCodec(1, struct.Struct(">q").pack, {1: lambda data: int(struct.unpack(">q", data)[0])})


class CountState(PartitionState):
    """How many events each key has had."""

    def __init__(self) -> None:
        self.counts: Table[int] = Table("counts", COUNT)
        super().__init__(self.counts)


class CountStage:
    """Emits one record per event: which event it was, and the how manyth of its key."""

    input = EPISODE_EVENTS

    def __init__(self, name: str = "counter") -> None:
        self.name = name

    def new_state(self) -> CountState:
        return CountState()

    def step(self, state: CountState, incoming: Incoming) -> Iterable[Outgoing]:
        record = incoming.record
        if not isinstance(record, ToolCalled):
            return
        count = (state.counts.get(incoming.key) or 0) + 1
        state.counts.put(incoming.key, count)
        detail = f"{incoming.key}:{count}"
        drop = Drop(
            unit="event", unit_id=record.event_id, reason="counted", stage=self.name, detail=detail, dropped_at_ms=0
        )
        yield Outgoing(DROPS, record.event_id, drop)


def counting() -> list[CountStage]:
    """Return the counting stage alone, for a worker process."""
    return [CountStage()]


def stream_settings(bootstrap_servers: str, namespace: str, **changes: Any) -> StreamSettings:
    """Settings for tests: two partitions, no waiting."""
    values = {"event_partitions": 2, "linger_ms": 0, "tick_interval_ms": 200, "equal_failures": 2, **changes}
    return StreamSettings(kafka=KafkaConnection(bootstrap_servers=bootstrap_servers), namespace=namespace, **values)


def tool_event(key: str, number: int) -> ToolCalled:
    """An event with an id that names its key and number."""
    return ToolCalled(
        event_id=f"{key}/{number}",
        episode_id=key,
        root_episode_id=key,
        writer_id="w",
        sequence=number,
        occurred_at_ms=number,
        episode_started_at_ms=0,
        name="look",
    )


async def send(settings: StreamSettings, topic: str, items: Sequence[tuple[bytes | None, bytes | None]]) -> None:
    """Send (key, value) pairs to a topic of the namespace and wait for all."""
    async with AIOKafkaProducer(
        **settings.kafka.client_options(),
        enable_idempotence=True,
        linger_ms=5,
        max_request_size=settings.kafka.max_message_bytes,
    ) as producer:
        for future in [await producer.send(settings.namespace + topic, value, key=key) for key, value in items]:
            await future


async def send_to_all(stream: StreamSettings, *topics: Topic, data: bytes) -> None:
    """Send a record of the owner's into every partition of topics."""
    async with running(stream.kafka, new_producer(stream.kafka)) as producer:
        for topic, number in places_of(stream, *topics):
            headers = stream.signing.sign(OWNER, topic, None, data)
            await producer.send(topic, data, partition=number, headers=headers)
        await producer.flush()


def places_of(stream: StreamSettings, *topics: Topic) -> list[TopicPartition]:
    """Return every partition of topics."""
    return [
        TopicPartition(topic.full_name(stream.namespace), number)
        for topic in topics
        for number in range(partitions_of(topic, stream))
    ]


async def send_events(settings: StreamSettings, keys: Sequence[str], numbers: Iterable[int]) -> int:
    """Send one event per key and number, in order of the numbers; return how many."""
    items = [(key.encode(), encode(tool_event(key, number))) for number in numbers for key in keys]
    await send(settings, EPISODE_EVENTS.name, items)
    return len(items)


async def read_topic(settings: StreamSettings, topic: str, partitions: int | None = None) -> list[Any]:
    """Return every committed record of a topic of the namespace, decoded, partition by partition."""
    count = settings.event_partitions if partitions is None else partitions
    places = [TopicPartition(settings.namespace + topic, n) for n in range(count)]
    records_by_place = await read_places(settings.kafka, places)
    return [decode(record.value) for place in places for record in records_by_place[place]]


async def read_places(connection: KafkaConnection, places: Sequence[TopicPartition]) -> dict[TopicPartition, list[Any]]:
    """Return every committed record of partitions; not by rollbus's own reader, which the tests are about."""
    records_by_place: dict[TopicPartition, list[Any]] = {place: [] for place in places}
    async with AIOKafkaConsumer(
        **connection.client_options(),
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        fetch_max_wait_ms=10,  # a question about offsets waits for a fetch that finds nothing
    ) as consumer:
        consumer.assign(places)
        ends = await consumer.end_offsets(places)
        behind = list(places)
        while behind := [place for place in behind if await consumer.position(place) < ends[place]]:
            for place, records in (await consumer.getmany(*behind, timeout_ms=200)).items():
                records_by_place[place] += records
    return records_by_place


async def commit_offsets(connection: KafkaConnection, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit offsets for a group that has no members."""
    async with running(connection, consumer := new_consumer(connection, group_id=group)):
        consumer.assign(list(offsets))
        await consumer.commit(dict(offsets))


async def delete_before(connection: KafkaConnection, offsets: Mapping[TopicPartition, int]) -> None:
    """Delete the first records of partitions, as retention does, once a transaction's end is there too."""

    async def are_there() -> bool:
        ends = await read_ends(connection, offsets)
        return all(ends[place] >= offset for place, offset in offsets.items())

    await until_found(are_there, "what is to be deleted is not there")
    async with running(connection, new_admin(connection)) as admin:
        await admin.delete_records({place: RecordsToDelete(before_offset=end) for place, end in offsets.items()})


async def read_drops(settings: StreamSettings) -> list[Drop]:
    """Return what the counting stage has emitted."""
    return await read_topic(settings, DROPS.name)
