"""What stands on the broker after a test, read once: records, committed offsets, changelogs, open transactions."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from rollbus.consumers.dead_letters_kafka import read_dead_letters
from rollbus.runtime.kafka.groups import committed_offsets
from rollbus.schemas.codec import decode_if
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.records.drops import DeadLetter
from rollbus.schemas.topics import TOPICS, Topic
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.processing import OWN_ROWS, taken_ms
from rollbus.streams.kafka import names
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of
from rollbus.streams.pipeline import AnyStage
from tests.services.streams.fixtures import read_places

PATIENCE_S = 5.0
"""Beyond a transaction's deadline: the broker looks for dead ones each second."""


class Entry(NamedTuple):
    """One committed record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    taken_ms: int | None = None
    """The broker's clock when it took the record; None if the topic keeps the producer's."""
    headers: Sequence[tuple[str, bytes]] = ()

    @property
    def record(self) -> Any:
        """What the ticker wrote; None for any other record."""
        return decode_if(self.value, Tick, ConfigApplied)


@dataclass(slots=True)
class LogContents:
    """Everything that the checker looks at."""

    settings: StreamSettings
    entries: dict[Partition, list[Entry]] = field(default_factory=dict)
    """By partition, the committed records in order."""
    committed: dict[tuple[str, int], int] = field(default_factory=dict)
    """By stage and input partition; 0 where nothing was ever committed."""
    rows: dict[tuple[str, int], dict[bytes, bytes]] = field(default_factory=dict)
    """By stage and input partition, what its changelog comes to, the runtime's own rows left out."""
    held_back: dict[Partition, int] = field(default_factory=dict)
    """Records that an unfinished transaction hides from readers."""
    dead_letters: list[DeadLetter] = field(default_factory=list)

    def of(self, topic: Topic) -> list[Entry]:
        """Return all records of a topic, partition after partition."""
        return [entry for place in self.places(topic) for entry in self.entries[place]]

    def places(self, topic: Topic) -> list[Partition]:
        """Return the partitions of a topic."""
        name = topic.full_name(self.settings.namespace)
        return [Partition(name, number) for number in range(partitions_of(topic, self.settings))]


async def read_everything(settings: StreamSettings, stages: Sequence[AnyStage]) -> LogContents:
    """Read the whole namespace."""
    contents = LogContents(settings)
    tables = [place for topic in TOPICS for place in contents.places(topic)]
    changelogs = {
        Partition(names.changelog_topic(settings.namespace, stage.name), place.partition): (stage.name, place.partition)
        for stage in stages
        for place in contents.places(stage.input)
    }
    contents.held_back = await _held_back(settings, [*tables, *changelogs])
    contents.entries = await read_entries(settings, tables)
    for place, entries in (await read_entries(settings, changelogs)).items():
        contents.rows[changelogs[place]] = _compact_entries(entries)
    contents.committed = await _committed_offsets(settings, stages, contents)
    contents.dead_letters = await read_dead_letters(settings.kafka, settings.namespace)
    return contents


def _compact_entries(entries: Iterable[Entry]) -> dict[bytes, bytes]:
    latest = {entry.key: entry.value for entry in entries if entry.key is not None}
    return {key: value for key, value in latest.items() if value is not None and not key.startswith(OWN_ROWS)}


async def read_entries(settings: StreamSettings, places: Iterable[Partition]) -> dict[Partition, list[Entry]]:
    """Return the committed records of partitions, in order."""
    records_by_place = await read_places(settings.kafka, [TopicPartition(*place) for place in places])
    return {
        Partition(*place): [
            Entry(raw.offset, raw.timestamp, raw.key, raw.value, taken_ms(raw, Partition(*place).topic), raw.headers)
            for raw in records
        ]
        for place, records in records_by_place.items()
    }


async def _committed_offsets(
    settings: StreamSettings, stages: Sequence[AnyStage], contents: LogContents
) -> dict[tuple[str, int], int]:
    admin = AIOKafkaAdminClient(**settings.kafka.client_options())
    committed: dict[tuple[str, int], int] = {}
    await admin.start()
    try:
        for stage in stages:
            offsets = await committed_offsets(admin, names.group_id(settings.namespace, stage.name))
            for place in contents.places(stage.input):
                stored_offset: Any = offsets.get(TopicPartition(*place))
                committed[stage.name, place.partition] = max(0, stored_offset.offset) if stored_offset else 0
    finally:
        await admin.close()
    return committed


async def _held_back(settings: StreamSettings, places: Sequence[Partition]) -> dict[Partition, int]:
    """Return what stays hidden for longer than any transaction may last."""
    deadline = time.monotonic() + settings.transaction_timeout_s + PATIENCE_S
    while (hidden_places := await _find_hidden(settings, places)) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(1.0)
    return hidden_places


async def _find_hidden(settings: StreamSettings, places: Sequence[Partition]) -> dict[Partition, int]:
    ends = []
    for isolation in ("read_uncommitted", "read_committed"):
        consumer = AIOKafkaConsumer(**settings.kafka.client_options(), isolation_level=isolation)
        await consumer.start()
        try:
            ends.append(await consumer.end_offsets([TopicPartition(*place) for place in places]))
        finally:
            await consumer.stop()
    return {Partition(*place): end - ends[1][place] for place, end in ends[0].items() if end > ends[1][place]}
