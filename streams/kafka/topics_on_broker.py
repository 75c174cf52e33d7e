"""Create, check and describe the namespace's topics on the broker."""

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import TopicAlreadyExistsError, for_code

from rollbus.runtime.kafka.clients import new_admin, running
from rollbus.runtime.kafka.partitions import count_partitions
from rollbus.runtime.kafka.reading import assign_paused, open_reader
from rollbus.schemas.codec import decode, record_name
from rollbus.schemas.errors import ConfigurationError, RecordError, RejectedError, UnavailableError
from rollbus.schemas.records.control import Tick
from rollbus.schemas.signing import OWNER, SignerOf
from rollbus.schemas.topics import STAGE_INPUTS
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import TopicSpec, find_mistakes, topic_specs

logger = logging.getLogger(__name__)

VISIBLE_TRIES, VISIBLE_PAUSE_S = 100, 0.1
POLL_MS = 200
SEARCHED_RECORDS = 100_000
"""The first tick is searched among so many records: ticks come every second while a worker runs."""


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """One topic as it is."""

    name: str
    partitions: int
    retention: str
    """`time`, `forever` or `compact`, as it should be."""
    retention_ms: int | None
    """As the broker has it; None if it keeps records for ever or compacts."""
    first_offsets: tuple[int, ...]
    """By partition: the oldest record that still exists."""
    end_offsets: tuple[int, ...]
    oldest_timestamp_ms: int | None
    """When the oldest record that still exists was written; None in an empty topic."""
    oldest_tick: int | None = None
    """Number of the oldest tick that still exists, from which on a replay knows the time; None without a tick. Where
    signatures are asked for, only ticks of the owner count."""

    @property
    def records(self) -> int:
        """Offsets in use: records, and the few control records of transactions."""
        return sum(self.end_offsets) - sum(self.first_offsets)


async def ensure_topics(settings: StreamSettings, stages: Iterable[Any] = ()) -> list[str]:
    """Create the missing topics and return their names; raises ConfigurationError if an existing one is wrong."""
    async with running(settings.kafka, new_admin(settings.kafka)) as admin:
        specs = topic_specs(settings, stages)
        counts = await _count(admin, specs)
        missing = [spec for spec in specs if spec.name not in counts]
        if missing:
            await _create(admin, missing, settings.replication_factor)
            counts |= await _wait_until_visible(admin, {spec.name for spec in missing})
        wrong = await _find_mistakes(admin, specs, counts)
    _raise_mistakes(wrong)
    return [spec.name for spec in missing]


async def create_topics(settings: StreamSettings, specs: Sequence[TopicSpec]) -> None:
    """Create these topics, and return once the broker shows them; raises RejectedError, UnavailableError."""
    async with running(settings.kafka, new_admin(settings.kafka)) as admin:
        await _create(admin, list(specs), settings.replication_factor)
        await _wait_until_visible(admin, {spec.name for spec in specs})


async def partitions_on_broker(settings: StreamSettings, topic: str) -> int:
    """Return how many partitions a topic has, by its full name; 0 if it does not exist."""
    async with running(settings.kafka, new_admin(settings.kafka)) as admin:
        return (await count_partitions(admin, [topic])).get(topic, 0)


async def topics_on_broker(settings: StreamSettings) -> frozenset[str]:
    """Return the full names of all topics that this user may see, in any namespace."""
    async with running(settings.kafka, new_admin(settings.kafka)) as admin:
        return frozenset(await count_partitions(admin))


async def delete_topics(settings: StreamSettings, names: Iterable[str]) -> list[str]:
    """Delete the topics that exist, and return their names once they are gone."""
    async with running(settings.kafka, new_admin(settings.kafka)) as admin:
        present = sorted(await count_partitions(admin, set(names)))
        if present:
            await admin.delete_topics(present)
        for _ in range(VISIBLE_TRIES):
            if not await count_partitions(admin, present):
                return present
            await asyncio.sleep(VISIBLE_PAUSE_S)
    raise UnavailableError(f"deleted topics are still on the broker: {', '.join(present)}")


async def check_topics(settings: StreamSettings, stages: Iterable[Any] = ()) -> list[str]:
    """Return what is wrong with the namespace's topics, a line each; empty if all is right."""
    async with running(settings.kafka, new_admin(settings.kafka)) as admin:
        specs = topic_specs(settings, stages)
        return await _find_mistakes(admin, specs, await _count(admin, specs))


async def require_topics(settings: StreamSettings, stages: Iterable[Any] = ()) -> None:
    """Raise ConfigurationError, naming each mistake, unless all topics are right."""
    _raise_mistakes(await check_topics(settings, stages))


async def require_partitions(
    settings: StreamSettings, stages: Iterable[Any] = (), *, every_s: float | None = None
) -> None:
    """Raise ConfigurationError if a topic has another number of partitions than the settings say.

    With `every_s` it looks again and again, on one connection. Raises UnavailableError.
    """
    specs = topic_specs(settings, stages)
    async with running(settings.kafka, new_admin(settings.kafka)) as admin:
        while True:
            _raise_mistakes(find_mistakes(specs, await _count(admin, specs), {}))
            if every_s is None:
                return
            await asyncio.sleep(every_s)


async def describe_topics(settings: StreamSettings, stages: Iterable[Any] = ()) -> list[TopicDescription]:
    """Describe the namespace's topics that exist, in the order of the table."""
    specs = topic_specs(settings, stages)
    async with running(settings.kafka, new_admin(settings.kafka)) as admin:
        counts = await _count(admin, specs)
        configs = await _configs(admin, [spec.name for spec in specs if spec.name in counts])
    ticking = {topic.full_name(settings.namespace): settings.signer_of(topic) for topic in STAGE_INPUTS.values()}
    async with open_reader(settings.kafka) as consumer:
        assign_paused(consumer, [TopicPartition(name, n) for name, count in counts.items() for n in range(count)])
        descriptions = [
            await _describe(consumer, spec, counts[spec.name], configs[spec.name])
            for spec in specs
            if spec.name in counts
        ]
        ticks = await _oldest_ticks(consumer, [topic for topic in descriptions if topic.name in ticking], ticking)
        return [replace(topic, oldest_tick=ticks.get(topic.name)) for topic in descriptions]


async def _describe(
    consumer: AIOKafkaConsumer, spec: TopicSpec, partitions: int, config: dict[str, str]
) -> TopicDescription:
    places = [TopicPartition(spec.name, n) for n in range(partitions)]
    first, end = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
    offsets = await consumer.offsets_for_times(dict.fromkeys(places, 0))
    times = [entry.timestamp for entry in offsets.values() if entry is not None]
    retention_ms = int(config.get("retention.ms", "-1"))
    return TopicDescription(
        name=spec.name,
        partitions=partitions,
        retention=spec.retention,
        retention_ms=None if retention_ms < 0 or spec.retention == "compact" else retention_ms,
        first_offsets=tuple(first[place] for place in places),
        end_offsets=tuple(end[place] for place in places),
        oldest_timestamp_ms=min(times, default=None),
    )


async def _oldest_ticks(
    consumer: AIOKafkaConsumer, topics: Iterable[TopicDescription], signers: Mapping[str, SignerOf | None]
) -> dict[str, int]:
    """Return the number of each topic's first tick, by name, if it is among the first records of partition 0."""
    ends = {
        TopicPartition(topic.name, 0): min(topic.end_offsets[0], topic.first_offsets[0] + SEARCHED_RECORDS)
        for topic in topics
        if topic.end_offsets[0] > topic.first_offsets[0]
    }
    if not ends:
        return {}
    for topic in topics:
        if (place := TopicPartition(topic.name, 0)) in ends:
            consumer.seek(place, topic.first_offsets[0])
            consumer.resume(place)
    oldest: dict[str, int] = {}
    while behind := [
        place for place in ends if place.topic not in oldest and await consumer.position(place) < ends[place]
    ]:
        for place, records in (await consumer.getmany(*behind, timeout_ms=POLL_MS)).items():
            signer_of = signers[place.topic]
            believed = (record.value for record in records if signer_of is None or signer_of(record) == OWNER)
            numbers = [number for value in believed if (number := _tick_number(value)) is not None]
            if numbers:
                oldest[place.topic] = numbers[0]
    return oldest


def _tick_number(data: bytes | None) -> int | None:
    with suppress(RecordError):  # a record that cannot be read is not a tick
        if data and record_name(data) == Tick.__name__:
            return int(decode(data).number)
    return None


async def _count(admin: AIOKafkaAdminClient, specs: Iterable[TopicSpec]) -> dict[str, int]:
    """Return how many partitions these topics have: other topics of a broker may be thousands."""
    return await count_partitions(admin, [spec.name for spec in specs])


async def _create(admin: AIOKafkaAdminClient, specs: list[TopicSpec], replication: int) -> None:
    topics = [
        NewTopic(spec.name, spec.partitions, replication, topic_configs=dict(spec.config + spec.wished))
        for spec in specs
    ]
    response = await admin.create_topics(topics)
    errors = {name: (for_code(code), *message) for name, code, *message in response.topic_errors if code}
    for name, (error, *message) in errors.items():
        if error is not TopicAlreadyExistsError:
            raise RejectedError(f"topic {name} could not be created: {error.__name__} {message[0] if message else ''}")
    logger.info("created %d topics", len(specs))


async def _wait_until_visible(admin: AIOKafkaAdminClient, names: set[str]) -> dict[str, int]:
    """Return the partitions of topics just created once the metadata has all of them, which takes a moment."""
    for _ in range(VISIBLE_TRIES):
        counts = await count_partitions(admin, names)
        if names <= counts.keys():
            return counts
        await asyncio.sleep(VISIBLE_PAUSE_S)
    raise UnavailableError(f"created topics do not appear on the broker: {', '.join(sorted(names - counts.keys()))}")


async def _configs(admin: AIOKafkaAdminClient, topics: list[str]) -> dict[str, dict[str, str]]:
    if not topics:
        return {}
    responses = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in topics])
    return {
        resource[3]: {entry[0]: entry[1] for entry in resource[4]}
        for response in responses
        for resource in response.resources
    }


async def _find_mistakes(admin: AIOKafkaAdminClient, specs: list[TopicSpec], counts: dict[str, int]) -> list[str]:
    configs = await _configs(admin, [spec.name for spec in specs if spec.name in counts])
    return find_mistakes(specs, counts, configs)


def _raise_mistakes(wrong: list[str]) -> None:
    if wrong:
        raise ConfigurationError("\n".join([f"{len(wrong)} mistake(s) in the Kafka topics:", *wrong]))
