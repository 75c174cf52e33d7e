"""Replays in memory: a simulated live history in, frames by topic and partition out."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.topics import Topic
from rollbus.streams.pipeline import AnyStage
from rollbus.streams.replay.decide.chain import Chain
from rollbus.streams.replay.decide.digest import without_location
from rollbus.streams.replay.decide.output import CountingOutput
from rollbus.streams.replay.decide.rounds import Round, merge_sources
from tests.flow.in_memory import by_checksum

OTHER_CLOCK = Path(__file__).parent / "other_clock"
ENVIRONMENTS = (
    {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C"},
    {"PYTHONHASHSEED": "1234", "TZ": "Pacific/Kiritimati", "LC_ALL": "tr_TR.UTF-8", "OTHER_CLOCK_S": "-300000000"},
    {"PYTHONHASHSEED": "77", "TZ": "America/Adak", "LC_ALL": "de_DE.UTF-8", "OTHER_CLOCK_S": "90000000"},
)
"""Machines that differ in all that a replay must not depend on: the order of sets, zone, locale and wall clock."""
Frames = dict[tuple[str, int], list[tuple[bytes | None, bytes]]]


def environment(other: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process on another machine; its clock comes with the path."""
    path = os.pathsep.join(filter(None, (str(OTHER_CLOCK), os.environ.get("PYTHONPATH"))))
    return {**os.environ, **other, "PYTHONPATH": path}


@dataclass(frozen=True, slots=True)
class Raw:
    """A record as it is fetched."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_type: int = 0


@dataclass(slots=True)
class ListSource:
    """One partition of a range, handed out in portions of a size."""

    partition: int
    records: Sequence[Raw]
    size: int = 50
    position: int = field(default=0)

    async def read(self) -> Sequence[Raw]:
        next_records = self.records[self.position : self.position + self.size]
        self.position += len(next_records)
        return next_records


@dataclass(slots=True)
class MemoryOutput(CountingOutput):
    """Keeps every frame."""

    frames: Frames = field(default_factory=dict)

    def append(self, topic: Topic, partition: int, key: bytes | None, frame: bytes) -> int:
        """Keep the frame."""
        self.frames.setdefault((topic.name, partition), []).append((key, frame))
        return CountingOutput.append(self, topic, partition, key, frame)


async def replayed(
    stages: Sequence[AnyStage],
    sources: Sequence[ListSource],
    *,
    partitions: int,
    output: MemoryOutput | None = None,
    **options: Any,
) -> tuple[Chain, Frames]:
    """Run the stages over the sources; return the chain at its end and what it wrote."""
    output = MemoryOutput() if output is None else output
    chain = Chain(
        stages, partitions=partitions, output=output, partition_of=by_checksum,
        source_namespace="", namespace="replay.", **options,
    )  # fmt: skip
    await chain.open()
    async for part in merge_sources(sources):
        if isinstance(part, Round):
            await chain.round(part)
        else:
            await chain.piece(part.partition, part.records)
    await chain.end()
    return chain, output.frames


def sources_of(frames: Frames, topic: Topic, partitions: int, size: int = 50) -> list[ListSource]:
    """Return what a replay wrote as what the next one reads."""
    return [
        ListSource(number, [Raw(i, *frame) for i, frame in enumerate(frames.get((topic.name, number), []))], size)
        for number in range(partitions if topic.partitions == "events" else 1)
    ]


def blank(frames: Sequence[tuple[bytes | None, bytes]]) -> list[tuple[bytes | None, bytes]]:
    """Return frames with every location blank."""
    return [(key, encode(without_location(decode(value)))) for key, value in frames]
