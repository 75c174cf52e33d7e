"""What live wrote down, read from its topics: outcomes and verdicts before a replay begins, all else as it goes on.

A score is at about the same place of its partition as its trajectory. So each partition is read only up to the score
that is wanted, and what was read ahead of it waits. For a score that live never gave, a partition is read to its end,
once; in a range of trajectories, to where live had scored them all. Of the other inputs only the few records that a
replay needs are decoded.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Container, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import ValidationError

from rollbus.runtime.kafka.writing import partition_of
from rollbus.schemas.codec import decode_if
from rollbus.schemas.records.config import ComponentConfig, Config, RunConfig, ScoringConfig
from rollbus.schemas.records.control import ConfigApplied, RunCommand, Tick
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.events import Excluded, RewardReported
from rollbus.schemas.records.groups import Group, StepOutcome
from rollbus.schemas.records.replays import ReplayRange
from rollbus.schemas.records.steps import PolicyVersion
from rollbus.schemas.records.trajectories import Location, Score
from rollbus.schemas.topics import DROPS, EPISODE_EVENTS, EXCLUSIONS, RUN_LOG, TRAJECTORIES, Topic
from rollbus.streams.exactly_once.processing import taken_ms
from rollbus.streams.exactly_once.rounds import round_of
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.replay.decide.live_inputs import (
    BEFORE_ALL,
    LiveOutcome,
    Outcomes,
    Places,
    RecordedInputs,
    identity_of,
)
from rollbus.streams.replay.decide.rounds import Source
from rollbus.streams.replay.decide.scores import as_asked
from rollbus.streams.replay.kafka.source import open_ranges, read_records, read_whole
from rollbus.streams.replay.plan.plan import OF_A_RUN, ReplayPlan
from rollbus.streams.rewards.registry import Registry
from rollbus.streams.stages.scoring.group_scoring import FindGroup, JudgedGroup, JudgedGroups
from rollbus.streams.state.stage import Incoming

C = TypeVar("C", bound=Config)
NEEDED: tuple[type[Any], ...] = (Tick, ConfigApplied, PolicyVersion, RunCommand)
JUDGED: tuple[type[Any], ...] = (Group, Drop, ConfigApplied)
REMEMBERED = 4_096
"""Scores kept after they were found, for a second component that asks for the same."""
ScoreKey = tuple[str, int]
"""Trajectory id and revision."""


class RecordedScores:
    """Live's scores, by trajectory and revision.

    An episode that comes again after the late horizon has the same ids: what is asked of it, at another time, is
    answered by the next score.
    """

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
        self._ahead: list[dict[ScoreKey, list[Score]]] = [{} for _ in sources]
        self._remembered: OrderedDict[tuple[ScoreKey, int], Score] = OrderedDict()
        """By key and the time that was asked for."""

    @property
    def ahead(self) -> int:
        """How many scores were read and have not been asked for."""
        return sum(len(scores) for ahead in self._ahead for scores in ahead.values())

    async def find(self, hint: str, trajectory_id: str, revision: int, at_ms: int) -> Score | None:
        """Return a score; None where there is none to the end of the range."""
        key = (trajectory_id, revision)
        question = (key, at_ms)
        number = partition_of(hint.encode(), len(self._sources))
        async with self._reading[number]:  # another who asks meanwhile may be given what this one waits for
            if question in self._remembered:
                return self._remembered[question]
            ahead = self._ahead[number]
            while key not in ahead:
                if number in self._ended:
                    return None
                await self._read_on(number)
            scores = ahead[key]
            score = self._remembered[question] = scores.pop(0)
            if not scores:
                del ahead[key]
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
            return score

    async def _read_on(self, number: int) -> None:
        records = await self._sources[number].read()
        end = self._ends.get(number)
        ended = not records
        for raw in records:
            score = decode_if(raw.value, Score)
            if score is not None:
                if self._revisions or score.revision == 0:
                    scores = self._ahead[number].setdefault((score.trajectory_id, score.revision), [])
                    if not scores or scores[-1].first_seen_ms != score.first_seen_ms:
                        scores.append(score)
                ended = ended or (end is not None and score.revision == 0 and score.location.offset >= end)
        if ended:
            self._ended.add(number)


class LiveReader:
    """Reads what a replay needs of one of live's inputs, a tick at a time.

    One partition has all that comes from outside. Where the order of a round matters, all are read, for the places of
    their records and of configurations.
    """

    def __init__(
        self,
        topic: Topic,
        sources: Sequence[Source],
        collectors: Sequence[RecordedInputs],
        places: Places,
        *,
        first_tick: int | None,
    ) -> None:
        """`collectors` are for the first source, or for each; no place before the range's `first_tick` counts."""
        self._first_round = BEFORE_ALL if first_tick is None else first_tick - 1
        self._sources, self._collectors, self._topic, self._places = sources, collectors, topic, places
        self._ahead: list[deque[Any]] = [deque() for _ in sources]
        self._ticks = [BEFORE_ALL] * len(sources)
        self._early: list[list[tuple[int, Any, Any]]] = [[] for _ in sources]
        """Of each partition the early records, and the commands that wait with them: round, fetched, decoded."""

    async def until(self, tick: int) -> None:
        """Read on until a tick is there, or the input's end."""
        for number, source in enumerate(self._sources):
            await self._read_partition(number, source, tick)

    async def _read_partition(self, number: int, source: Source, tick: int) -> None:
        ahead = self._ahead[number]
        while self._ticks[number] < tick:
            if not ahead:
                ahead.extend(await source.read())
                if not ahead:
                    if (collector := self._collector(number)) is not None:
                        collector.end()
                    return
            self._take(number, ahead.popleft())

    def _collector(self, number: int) -> RecordedInputs | None:
        return self._collectors[number] if number < len(self._collectors) else None

    def _take(self, number: int, raw: Any) -> None:
        record, collector = decode_if(raw.value, *NEEDED, Score, Group), self._collector(number)
        if isinstance(record, Tick):
            self._ticks[number] = record.number
        if identity := identity_of(self._topic, record):
            made_in = round_of(raw)
            made_in = self._ticks[number] if made_in is None else made_in
            if made_in > self._ticks[number]:
                self._early[number].append((made_in, raw, None))
            if made_in >= self._first_round:
                self._places.note(identity, raw.offset, made_in)
            if collector is not None and made_in <= self._ticks[number]:
                collector.note_record()
        elif isinstance(record, RunCommand) and (early := self._early[number]):
            early.append((max(round_number for round_number, _, _ in early), raw, record))
        elif record is not None and collector is not None:
            collector.take((raw.key or b"").decode(errors="replace"), record, raw.offset)
        if isinstance(record, Tick):
            self._release(number, record.number, collector)

    def _release(self, number: int, tick: int, collector: RecordedInputs | None) -> None:
        """Take the commands whose round has come."""
        due = [early for early in self._early[number] if early[0] <= tick]
        self._early[number] = [early for early in self._early[number] if early[0] > tick]
        for _, raw, command in due:
            if command is not None and collector is not None:
                collector.take((raw.key or b"").decode(errors="replace"), command, raw.offset)


async def read_outcomes(settings: StreamSettings, first_tick: int | None) -> dict[str, LiveOutcome]:
    """Return what the trainer answered from a tick on, by batch hash."""
    outcomes = Outcomes(first_tick)
    async with aclosing(read_whole(settings, RUN_LOG)) as records:
        async for raw in records:
            if (record := decode_if(raw.value, Tick, StepOutcome)) is not None:
                outcomes.take(record, raw.offset)
    outcomes.end()
    return outcomes.by_batch


async def nothing_judged(group: Group, rewards: Sequence[ComponentConfig]) -> JudgedGroup:
    """Know of no judged group."""
    return JudgedGroup()


def note_configuration(record: Any, kind: type[C], stages: Container[str], configurations: dict[str, C]) -> None:
    """Take note of a configuration that live applied to one of these stages, by its hash."""
    if isinstance(record, ConfigApplied) and record.stage in stages:
        with suppress(ValidationError):  # the stage refused it
            configurations[record.config_hash] = kind.model_validate_json(record.content)


async def read_scoring_configs(settings: StreamSettings) -> dict[str, ScoringConfig]:
    """Return the configurations of scoring that are left in the log, by hash."""
    configs: dict[str, ScoringConfig] = {}
    async for record in read_records(settings, TRAJECTORIES, ConfigApplied, partitions=1):
        note_configuration(record, ScoringConfig, ("scoring",), configs)
    return configs


async def read_run_configs(settings: StreamSettings) -> dict[str, RunConfig]:
    """Return the configuration of each run that was last applied to its curriculum, which all of its stages have."""
    configs: dict[str, RunConfig] = {}
    async for record in read_records(settings, RUN_LOG, ConfigApplied):
        if record.stage == "curriculum" and record.run_id is not None:
            with suppress(ValidationError):  # the stage refused it
                configs[record.run_id] = RunConfig.model_validate_json(record.content)
    return configs


async def find_judged(settings: StreamSettings, plan: ReplayPlan, registry: Registry) -> FindGroup:
    """Return what finds the groups that live has judged, for runs that have their groups judged."""
    run_ids = {run.run_id for run in plan.run_configs() if run.grouping.rewards}
    if not run_ids:
        return nothing_judged
    judged_groups = JudgedGroups(run_ids)
    live = {run.config_hash(): run for run in plan.runs}
    for topic in (RUN_LOG, DROPS):
        async with aclosing(read_whole(settings, topic)) as records:
            async for raw in records:
                record = decode_if(raw.value, *JUDGED)
                judged_groups.take(record)
                note_configuration(record, RunConfig, OF_A_RUN, live)

    async def find(group: Group, rewards: Sequence[ComponentConfig]) -> JudgedGroup:
        judged_group = judged_groups.of(group)
        return replace(judged_group, outcome=as_asked(judged_group.outcome, group, rewards, live, registry))

    return find


async def read_exclusions(settings: StreamSettings) -> tuple[frozenset[str], int]:
    """Return the episodes on the list of exclusions, and the position up to which it was read."""
    episodes, position = set(), 0
    async with aclosing(read_whole(settings, EXCLUSIONS)) as raw_records:
        async for raw in raw_records:
            position = raw.offset + 1
            record = decode_if(raw.value, Excluded)
            if record is not None:
                episodes.add(record.episode_id)
    return frozenset(episodes), position


async def read_rewards(settings: StreamSettings, ranges: Sequence[ReplayRange]) -> dict[str, list[Incoming]]:
    """Return every reward report of a range, by episode, in the order of its partition."""
    reports: dict[str, list[Incoming]] = {}
    signer_of = settings.signer_of(EPISODE_EVENTS)
    async with open_ranges(settings, ranges) as sources:
        for source in sources:
            while records := await source.read():
                for raw in records:
                    record = decode_if(raw.value, RewardReported)
                    if record is not None and record.episode_id:
                        at = Location(topic=source.place.topic, partition=source.partition, offset=raw.offset)
                        signer = signer_of(raw) if signer_of else None
                        taken_at_ms = taken_ms(raw, source.place.topic)
                        incoming = Incoming(record, record.root_episode_id, at, raw.value or b"", signer, taken_at_ms)
                        reports.setdefault(record.episode_id, []).append(incoming)
    return reports
