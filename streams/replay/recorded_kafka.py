"""What live wrote down, read from its topics: outcomes and verdicts before a replay begins, all else as it goes on.

Scores stand about where the trajectories they belong to stand, so each partition is read on only as far as the score
that is wanted, and what was read ahead of it waits. For one that live never gave a partition is read to its end, once;
in a range of trajectories to where live had scored them all. Of the other inputs only the few records that a replay
tells again are decoded.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Container, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, TypeVar

from aiokafka import TopicPartition
from pydantic import ValidationError

from rollbus.schemas.chunks import is_chunk
from rollbus.schemas.codec import decode, record_name
from rollbus.schemas.config import Config, RewardConfig, RunConfig, ScoringConfig
from rollbus.schemas.control import ConfigApplied, RunCommand, Tick
from rollbus.schemas.drops import Drop
from rollbus.schemas.errors import RecordError
from rollbus.schemas.events import Excluded, RewardReported
from rollbus.schemas.groups import Group, StepOutcome
from rollbus.schemas.joining import Joiner
from rollbus.schemas.replays import ReplayRange
from rollbus.schemas.steps import PolicyVersion
from rollbus.schemas.topics import DROPS, EXCLUSIONS, RUN_LOG, TRAJECTORIES, Topic
from rollbus.schemas.trajectories import Location, Score
from rollbus.streams.group_scoring import FindGroup, Judged, JudgedGroups
from rollbus.streams.output_kafka import partition_of
from rollbus.streams.replay.plan import OF_A_RUN, ReplayPlan
from rollbus.streams.replay.range_kafka import reader
from rollbus.streams.replay.recorded import Collector, Outcomes
from rollbus.streams.replay.rounds import Source
from rollbus.streams.replay.scores import as_asked
from rollbus.streams.replay.source_kafka import KafkaSource, assign
from rollbus.streams.rewards.registry import Registry
from rollbus.streams.settings import StreamSettings
from rollbus.streams.stage import Incoming
from rollbus.streams.topics import partitions_of

C = TypeVar("C", bound=Config)
TOLD_AGAIN = frozenset(each.__name__ for each in (Tick, ConfigApplied, PolicyVersion, RunCommand))
ANSWERED = frozenset((Tick.__name__, StepOutcome.__name__))
APPLIED = frozenset((ConfigApplied.__name__,))
JUDGED = frozenset((Group.__name__, Drop.__name__)) | APPLIED
REMEMBERED = 4_096
"""Scores kept after they were found, for a second component that asks for the same."""
ScoreKey = tuple[str, int]
"""Trajectory id and revision."""


class RecordedScores:
    """Live's scores, by trajectory and revision."""

    def __init__(
        self, sources: Sequence[Source], ends: Mapping[int, int] | None = None, *, revisions: bool = True
    ) -> None:
        """Read ranges of `scores`, one for each partition in order; without `revisions` the first of each alone.

        `ends` are offsets of live's trajectories by partition from which on none is wanted: live scores a partition in
        its order, so what it scored of those says that no score is still to come.
        """
        self._sources, self._ends, self._revisions = sources, ends or {}, revisions
        self._ended: set[int] = set()
        """Partitions that have been read as far as they hold what is wanted."""
        self._reading = [asyncio.Lock() for _ in sources]
        self._ahead: list[dict[ScoreKey, Score]] = [{} for _ in sources]
        self._parts: list[Joiner[None]] = [Joiner() for _ in sources]
        self._found: OrderedDict[ScoreKey, Score] = OrderedDict()

    @property
    def ahead(self) -> int:
        """How many scores were read and have not been asked for."""
        return sum(map(len, self._ahead))

    async def find(self, hint: str, trajectory_id: str, revision: int) -> Score | None:
        """Return a score; None where there is none to the end of the range."""
        key = (trajectory_id, revision)
        number = partition_of(hint.encode(), len(self._sources))
        async with self._reading[number]:  # another who asks meanwhile may be given what this one waits for
            if key in self._found:
                return self._found[key]
            ahead = self._ahead[number]
            while key not in ahead:
                if number in self._ended:
                    return None
                await self._read_on(number)
            found = self._found[key] = ahead.pop(key)
            if len(self._found) > REMEMBERED:
                self._found.popitem(last=False)
            return found

    async def _read_on(self, number: int) -> None:
        records = await self._sources[number].read()
        end = self._ends.get(number)
        ended = not records
        for raw in records:
            score = _decoded(_whole(self._parts[number], raw.value), frozenset({Score.__name__}))
            if isinstance(score, Score):
                if self._revisions or score.revision == 0:
                    self._ahead[number].setdefault((score.trajectory_id, score.revision), score)
                ended = ended or (end is not None and score.revision == 0 and score.location.offset >= end)
        if ended:
            self._ended.add(number)


class Teller:
    """Reads one partition of an input for what a replay tells again, a tick at a time; ticks are in all alike."""

    def __init__(self, source: Source, collector: Collector) -> None:
        self._source, self._collector = source, collector
        self._ahead: deque[Any] = deque()

    async def until(self, tick: int) -> None:
        """Read on until a tick is there, or the input's end."""
        while self._collector.tick < tick:
            if not self._ahead:
                self._ahead.extend(await self._source.read())
                if not self._ahead:
                    self._collector.end()
                    return
            raw = self._ahead.popleft()
            record = _decoded(raw.value, TOLD_AGAIN)
            if record is not None:
                self._collector.take((raw.key or b"").decode(errors="replace"), record)


async def read_outcomes(settings: StreamSettings, first_tick: int | None) -> dict[str, tuple[int, StepOutcome]]:
    """Return what the trainer answered from a tick on, by batch hash, with the tick that follows it."""
    outcomes = Outcomes(first_tick)
    async with aclosing(read_whole(settings, RUN_LOG)) as records:
        async for raw in records:
            outcomes.take(_decoded(raw.value, ANSWERED))
    outcomes.end()
    return outcomes.found


async def nothing_judged(group: Group, rewards: Sequence[RewardConfig]) -> Judged:
    """Know of no judged group."""
    return Judged()


def note_configuration(record: Any, kind: type[C], stages: Container[str], found: dict[str, C]) -> None:
    """Take note of a configuration that live applied to one of these stages, by its hash."""
    if isinstance(record, ConfigApplied) and record.stage in stages:
        with suppress(ValidationError):  # the stage refused it
            found[record.config_hash] = kind.model_validate_json(record.content)


async def read_scoring_configs(settings: StreamSettings) -> dict[str, ScoringConfig]:
    """Return the configurations of scoring that are left in the log, by hash."""
    found: dict[str, ScoringConfig] = {}
    async with aclosing(read_whole(settings, TRAJECTORIES, 1)) as records:
        async for raw in records:
            note_configuration(_decoded(raw.value, APPLIED), ScoringConfig, ("scoring",), found)
    return found


async def read_run_configs(settings: StreamSettings) -> dict[str, RunConfig]:
    """Return the configuration of each run that was last applied to its curriculum, which all of its stages have."""
    found: dict[str, RunConfig] = {}
    async with aclosing(read_whole(settings, RUN_LOG)) as records:
        async for raw in records:
            record = _decoded(raw.value, APPLIED)
            if isinstance(record, ConfigApplied) and record.stage == "curriculum" and record.run_id is not None:
                with suppress(ValidationError):  # the stage refused it
                    found[record.run_id] = RunConfig.model_validate_json(record.content)
    return found


async def find_judged(settings: StreamSettings, plan: ReplayPlan, registry: Registry) -> FindGroup:
    """Return what finds the groups that live has judged, for runs that have their groups judged."""
    asked = {run.run_id for run in plan.run_configs() if run.grouping.rewards}
    if not asked:
        return nothing_judged
    found = JudgedGroups(asked)
    live = {run.config_hash(): run for run in plan.runs}
    joiner: Joiner[None] = Joiner()
    for topic in (RUN_LOG, DROPS):
        async with aclosing(read_whole(settings, topic)) as records:
            async for raw in records:
                record = _decoded(_whole(joiner, raw.value), JUDGED)
                found.take(record)
                note_configuration(record, RunConfig, OF_A_RUN, live)

    async def find(group: Group, rewards: Sequence[RewardConfig]) -> Judged:
        judged = found.of(group)
        return replace(judged, outcome=as_asked(judged.outcome, group, rewards, live, registry))

    return find


async def read_whole(
    settings: StreamSettings, topic: Topic, partitions: int | None = None, *, starts: Mapping[int, int] | None = None
) -> AsyncGenerator[Any, None]:
    """Yield every committed record of a topic's partitions, one after the other, as far as it goes now.

    `starts` are offsets by partition before which nothing is wanted.
    """
    name = topic.full_name(settings.namespace)
    count = partitions_of(topic, settings) if partitions is None else partitions
    places = [TopicPartition(name, number) for number in range(count)]
    async with reader(settings) as consumer:
        # not assigned yet: a reader is assigned once
        firsts, ends = await consumer.beginning_offsets(places), await consumer.end_offsets(places)
        for tp in places:
            firsts[tp] = min(max(firsts[tp], (starts or {}).get(tp.partition, 0)), ends[tp])
        spans = [
            ReplayRange(topic=topic.name, partition=tp.partition, from_offset=firsts[tp], to_offset=ends[tp])
            for tp in places
        ]
        for span, place in assign(consumer, settings.namespace, spans).items():
            source = KafkaSource(consumer, place, span)
            while records := await source.read():
                for raw in records:
                    yield raw


async def read_exclusions(settings: StreamSettings) -> tuple[frozenset[str], int]:
    """Return the episodes on the list of exclusions, and the position up to which it was read."""
    episodes, position = set(), 0
    async with aclosing(read_whole(settings, EXCLUSIONS)) as found:
        async for raw in found:
            position = raw.offset + 1
            record = _decoded(raw.value, frozenset({Excluded.__name__}))
            if isinstance(record, Excluded):
                episodes.add(record.episode_id)
    return frozenset(episodes), position


async def read_rewards(settings: StreamSettings, ranges: Sequence[ReplayRange]) -> dict[str, list[Incoming]]:
    """Return every reward report of a range, by episode, in the order of its partition."""
    found: dict[str, list[Incoming]] = {}
    async with reader(settings) as consumer:
        for span, place in assign(consumer, settings.namespace, ranges).items():
            source = KafkaSource(consumer, place, span)
            while records := await source.read():
                for raw in records:
                    record = _decoded(raw.value, frozenset({RewardReported.__name__}))
                    if record is not None and record.episode_id:
                        at = Location(topic=place.topic, partition=place.partition, offset=raw.offset)
                        incoming = Incoming(record, record.root_episode_id, at, raw.value or b"")
                        found.setdefault(record.episode_id, []).append(incoming)
    return found


def _whole(joiner: Joiner[None], value: bytes | None) -> bytes | None:
    """Return a record's bytes once all are there; None too for parts that make no record."""
    try:
        return joiner.whole(value or b"", None)
    except RecordError:
        return None


def _decoded(data: bytes | None, names: frozenset[str]) -> Any:
    """Return a record of one of these types, None for any other and for what cannot be read."""
    if data is None or is_chunk(data) or record_name(data) not in names:
        return None
    try:
        return decode(data)
    except RecordError:
        return None
