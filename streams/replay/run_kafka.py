"""One replay: its range is resolved, read, decided again, written, and counted by its manifest, in that order.

1. resolve the range; stop where a part of it is gone;
2. read the list of exclusions, and what live was told of the outside world;
3. write the manifest `started`; what an earlier attempt at the same plan wrote is passed over, anything else deleted;
4. read, step, write; 5. compare the ends of the topics with what was counted; 6. write the manifest `complete`.
Readers look at the manifest, so before 6 nothing counts.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from rollbus.schemas.config import RunConfig
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.replays import ReplayManifest, ReplayRange
from rollbus.schemas.topics import CLOSED_GROUPS, RUN_LOG, SCORES, STAGE_INPUTS, TOPICS, TRAJECTORIES
from rollbus.schemas.trajectories import Score
from rollbus.streams.alias import AliasStage
from rollbus.streams.assembly import AssemblyStage
from rollbus.streams.group_scoring import FindGroup, GroupScoringStage
from rollbus.streams.output_kafka import partition_of
from rollbus.streams.replay.chain import Chain
from rollbus.streams.replay.code import code_hash
from rollbus.streams.replay.manifest_kafka import read_manifests, write_manifest
from rollbus.streams.replay.output import CountingOutput, Output
from rollbus.streams.replay.plan import ReplayPlan
from rollbus.streams.replay.range import Bound
from rollbus.streams.replay.range_kafka import ResolvedRange, reader, refuse_missing, resolve
from rollbus.streams.replay.recorded import Collector, Recorded
from rollbus.streams.replay.recorded_kafka import (
    RecordedScores,
    Teller,
    find_judged,
    nothing_judged,
    read_exclusions,
    read_rewards,
)
from rollbus.streams.replay.rounds import Round, merged
from rollbus.streams.replay.scores import OtherConfigurationError, RecordedScoring, offline
from rollbus.streams.replay.source_kafka import KafkaSource, Progress, assign
from rollbus.streams.replay.writer_kafka import KafkaOutput, end_offsets
from rollbus.streams.rewards.contract import Ask
from rollbus.streams.rewards.registry import Registry
from rollbus.streams.scoring import ScoringStage
from rollbus.streams.settings import StreamSettings
from rollbus.streams.stage import PureAsEffects
from rollbus.streams.stages import AnyStage, run_stages
from rollbus.streams.topics import partitions_of, topic_specs
from rollbus.streams.topics_kafka import delete_topics, ensure_topics

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Watch:
    """Who is told how far a replay is."""

    begin: Callable[[tuple[ReplayRange, ...]], None] = lambda ranges: None
    progress: Progress = lambda offsets, records, size: None
    stream_time: Callable[[int], None] = lambda ms: None


def wall_clock_ms() -> int:
    """Return the time for a manifest; nothing is decided by it."""
    return int(time.time() * 1000)


@dataclass(slots=True)
class Replay:
    """One attempt at a plan."""

    settings: StreamSettings
    """Of the namespace that is replayed."""
    plan: ReplayPlan
    registry: Registry
    ask: Ask | None = None
    version: str = ""
    watch: Watch = field(default_factory=Watch)
    clock: Callable[[], int] = wall_clock_ms
    follow: asyncio.Event | None = None
    """Set for a shadow: it follows the range's topics, which have no end, until the event is set."""
    read_configurations: bool = False
    """Look through the trajectories for the configurations of scoring; else they are those of the settings."""
    open_rows: int = 0
    """Most rows that the states held at the end of a round."""

    async def run(self, *, dry_run: bool = False) -> ReplayManifest:
        """Replay, and return the manifest; raises DataLossError, ConfigurationError, UnavailableError."""
        try:
            return await self._run(dry_run)
        except OtherConfigurationError as found:
            logger.info("%s: reading the recorded configurations, and beginning again", found)
            if not dry_run:
                await delete_topics(self.replay_settings, self._topic_names())
            return await replace(self, read_configurations=True)._run(dry_run)

    @property
    def replay_settings(self) -> StreamSettings:
        """The settings of the replay's own namespace."""
        return self.settings.model_copy(update={"namespace": self.plan.namespace})

    async def _run(self, dry_run: bool) -> ReplayManifest:
        plan, settings = self.plan, self.settings
        self._check_rewards()
        found = await self._range()
        if not plan.allow_missing:
            refuse_missing(found.missing)
        excluded, position = await read_exclusions(settings)
        manifest = ReplayManifest(
            name=plan.name,
            namespace=plan.namespace,
            source_namespace=settings.namespace,
            state="started" if self.follow is None else "following",
            stages=plan.stages,
            ranges=found.ranges,
            missing=found.missing,
            rewards=plan.rewards,
            scores=plan.scores,
            overrides=plan.overrides(),
            code_hash=code_hash(),
            version=self.version,
            exclusions=position,
            started_at_ms=self.clock(),
        )
        async with AsyncExitStack() as stack:
            output = CountingOutput() if dry_run else await self._output(manifest, stack)
            chain = await self._chain(found.ranges, excluded, output, stack)
            first_ms = await self._replay(chain, found.ranges, output, stack)
            if isinstance(output, KafkaOutput):
                await output.finish()
            if self.follow is not None:
                return replace(manifest, from_ms=first_ms, to_ms=chain.stream_time_ms, digests=chain.digests())
        records: dict[str, int] = {}
        for (topic, _), count in sorted(output.counts.items()):
            records[topic] = records.get(topic, 0) + count
        manifest = replace(
            manifest,
            state="complete",
            from_ms=first_ms,
            to_ms=chain.stream_time_ms,
            digests=chain.digests(),
            records=records,
            finished_at_ms=self.clock(),
        )
        if not dry_run:
            await write_manifest(settings, manifest)
        return manifest

    async def _replay(
        self, chain: Chain, ranges: Sequence[ReplayRange], output: Output, stack: AsyncExitStack
    ) -> int | None:
        """Read the range to its end; return the first stream time."""
        self.watch.begin(tuple(ranges))
        consumer = await stack.enter_async_context(reader(self.settings))
        places = assign(consumer, self.settings.namespace, ranges)
        sources = [
            KafkaSource(consumer, place, span, self.watch.progress, stop=self.follow) for span, place in places.items()
        ]
        first_ms = None if any(one.from_offset for one in ranges) else 0
        async for each in merged(sources):
            if isinstance(each, Round):
                first_ms = each.tick.stream_time_ms if first_ms is None else first_ms
                await chain.round(each)
                self.watch.stream_time(each.tick.stream_time_ms)
                if self.follow is not None:
                    await output.flush()
                self.open_rows = (
                    max(self.open_rows, chain.open_rows()) if each.tick.number % 64 == 0 else self.open_rows
                )
            else:
                await chain.piece(each.partition, each.records)
        await chain.end()
        self.open_rows = max(self.open_rows, chain.open_rows())
        return first_ms

    # Before the first record

    async def _range(self) -> ResolvedRange:
        """Return what to read; a shadow that is started again begins where it first began."""
        plan, settings = self.plan, self.settings
        start = plan.start
        if self.follow is not None:
            earlier = (await read_manifests(settings)).get(plan.name)
            if earlier is not None and earlier.state == "following" and earlier.stages == plan.stages:
                start = Bound(offsets=tuple((one.partition, one.from_offset) for one in earlier.ranges))
        found = await resolve(settings, plan.input, start, plan.end)
        if self.follow is None:
            return found
        ranges = tuple(replace(one, to_offset=one.from_offset) for one in found.ranges)
        return replace(found, ranges=ranges)

    def _check_rewards(self) -> None:
        """Raise ConfigurationError for a reward that nobody registered, or that would ask a model uninvited."""
        plan, registry = self.plan, self.registry
        if plan.scores == "computed":
            registry = offline(registry, plan.scoring_config.rewards, plan.scoring.rewards, nothing_scored)
        ScoringStage(plan.scoring_config, keep_ms=0, registry=registry)

    async def _output(self, manifest: ReplayManifest, stack: AsyncExitStack) -> KafkaOutput:
        """Prepare the replay's topics: as an earlier attempt left them if it had the same plan, else empty."""
        settings = self.replay_settings
        earlier = (await read_manifests(self.settings)).get(manifest.name)
        if earlier is not None and earlier.state != manifest.state:
            raise ConfigurationError(
                f"there is a replay {manifest.name!r} already; choose another name, or `rollbus replay delete` it"
            )
        if earlier is None or not _same_plan(earlier, manifest):
            await delete_topics(settings, self._topic_names())
        await ensure_topics(settings)
        await write_manifest(self.settings, manifest)
        output = KafkaOutput(settings)
        stack.push_async_callback(output.close)
        await output.start(await end_offsets(settings, self._written()))
        return output

    def _topic_names(self) -> list[str]:
        return [spec.name for spec in topic_specs(self.replay_settings)]

    def _written(self) -> list[tuple[str, int]]:
        """Return the partitions that a replay may write."""
        return [(topic.name, number) for topic in TOPICS for number in range(partitions_of(topic, self.settings))]

    async def _chain(
        self, ranges: Sequence[ReplayRange], excluded: frozenset[str], output: Any, stack: AsyncExitStack
    ) -> Chain:
        plan, settings = self.plan, self.settings
        first_tick = await self._first_tick(ranges)
        recorded = Recorded()
        tellers = await self._tellers(first_tick, recorded, stack)

        async def read_on(tick: int) -> None:
            for teller in tellers:
                await teller.until(tick)

        early = {}
        if plan.rewards == "end" and plan.stages[0] == "assembly":
            early = await read_rewards(settings, ranges)
        return Chain(
            await self._stages(first_tick, stack),
            partitions=settings.event_partitions,
            output=output,
            partition_of=partition_of,
            source_namespace=settings.namespace,
            namespace=plan.namespace,
            recorded=recorded,
            change=plan.change,
            excluded=excluded,
            early=early,
            before_tick=read_on,
            app_version=self.version,
        )

    async def _tellers(self, first_tick: int | None, recorded: Recorded, stack: AsyncExitStack) -> list[Teller]:
        """Return who reads live's inputs of the later stages for what is told again."""
        plan, settings = self.plan, self.settings
        inputs = [SCORES, CLOSED_GROUPS, RUN_LOG, *((TRAJECTORIES,) if self.read_configurations else ())]
        followed = {STAGE_INPUTS[stage].name for stage in plan.stages[1:]} - {plan.input.name}
        if not any(run.grouping.rewards for run in plan.runs):
            followed.discard(CLOSED_GROUPS.name)  # nothing flows through it, not even time
        tellers = []
        for topic in (topic for topic in inputs if topic.name in followed):
            span = (await resolve(settings, topic, Bound(), Bound())).ranges[0]
            consumer = await stack.enter_async_context(reader(settings))
            ((_, place),) = assign(consumer, settings.namespace, [span]).items()
            source = KafkaSource(consumer, place, span, stop=self.follow)
            collector = Collector(topic, first_tick=first_tick, change=plan.change, recorded=recorded)
            tellers.append(Teller(source, collector))
        return tellers

    async def _first_tick(self, ranges: Sequence[ReplayRange]) -> int | None:
        """Return the number of the first tick of the range."""
        async with reader(self.settings) as consumer:
            places = assign(consumer, self.settings.namespace, ranges)
            sources = [KafkaSource(consumer, place, span, stop=self.follow) for span, place in places.items()]
            async for each in merged(sources):
                if isinstance(each, Round):
                    return each.tick.number
        return None

    async def _stages(self, first_tick: int | None, stack: AsyncExitStack) -> list[AnyStage]:
        plan = self.plan
        runs = plan.run_configs()
        judged = await find_judged(self.settings, runs) if plan.scores != "anew" else nothing_judged
        made: list[AnyStage] = []
        for stage in plan.stages:
            if stage == "alias":
                made.append(PureAsEffects(AliasStage(plan.assembly)))
            elif stage == "assembly":
                made.append(PureAsEffects(AssemblyStage(plan.assembly)))
            elif stage == "scoring":
                made.append(await self._scoring(first_tick, stack))
            else:
                made += [
                    one for run in runs for one in self._of_run(run, judged) if one.name == f"{stage}.{run.run_id}"
                ]
        return made

    def _of_run(self, run: RunConfig, judged: FindGroup) -> list[AnyStage]:
        stages = run_stages(run, registry=self.registry, ask=self.ask)
        if self.plan.scores == "anew":
            return stages
        return [
            GroupScoringStage(run, registry=self.registry, recorded=judged)
            if isinstance(one, GroupScoringStage)
            else one
            for one in stages
        ]

    async def _scoring(self, first_tick: int | None, stack: AsyncExitStack) -> AnyStage:
        plan, config, keep_ms = self.plan, self.plan.scoring_config, self.plan.assembly.late_horizon_ms
        if plan.scores == "anew":
            return ScoringStage(config, keep_ms=keep_ms, registry=self.registry, ask=self.ask)
        # What stands before the range's first tick may be scored before that tick too, never before the one before it.
        start = Bound(tick=first_tick - 1) if first_tick else Bound()
        there = await resolve(self.settings, SCORES, start, Bound())
        consumer = await stack.enter_async_context(reader(self.settings))
        scores = RecordedScores(consumer, self.settings.namespace, there.ranges, stop=self.follow)
        if plan.scores == "recorded":
            return RecordedScoring(ScoringStage(config, keep_ms=keep_ms, registry=self.registry), scores.find)
        registry = offline(self.registry, config.rewards, plan.scoring.rewards, scores.find)
        return ScoringStage(config, keep_ms=keep_ms, registry=registry)


async def nothing_scored(hint: str, trajectory_id: str, revision: int) -> Score | None:
    """Know of no score."""
    return None


def _same_plan(one: ReplayManifest, other: ReplayManifest) -> bool:
    """Say whether two attempts give the same bytes: all but the clock is equal."""
    return replace(one, started_at_ms=0) == replace(other, started_at_ms=0)


async def delete_replay(settings: StreamSettings, manifest: ReplayManifest, *, now_ms: int) -> list[str]:
    """Say that a replay is deleted, then delete its topics; return their names."""
    await write_manifest(settings, replace(manifest, state="deleted", finished_at_ms=now_ms))
    own = settings.model_copy(update={"namespace": manifest.namespace})
    return await delete_topics(own, [spec.name for spec in topic_specs(own)])
