"""A replay's chain, connected to what it reads of live besides its range: scores, verdicts, and what is told again."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from rollbus.schemas.config import ScoringConfig
from rollbus.schemas.control import ConfigApplied
from rollbus.schemas.payload_kafka import KafkaPayload
from rollbus.schemas.replays import ReplayRange
from rollbus.schemas.topics import CLOSED_GROUPS, RUN_LOG, SCORES, STAGE_INPUTS, TRAJECTORIES, Topic
from rollbus.streams.output_kafka import partition_of
from rollbus.streams.replay.chain import Chain
from rollbus.streams.replay.output import Output
from rollbus.streams.replay.payload import WrittenPayload
from rollbus.streams.replay.plan import ReplayPlan
from rollbus.streams.replay.range import Bound
from rollbus.streams.replay.range_kafka import LOOK_BYTES, reader, resolve
from rollbus.streams.replay.reader import Reader
from rollbus.streams.replay.recorded import Collector, Recorded
from rollbus.streams.replay.recorded_kafka import (
    RecordedScores,
    Teller,
    find_judged,
    note_configuration,
    read_outcomes,
    read_rewards,
    read_scoring_configs,
)
from rollbus.streams.replay.rounds import Round, merged
from rollbus.streams.replay.scores import HeadedScoring, RecordedScoring, offline
from rollbus.streams.replay.source_kafka import KafkaSource, assign
from rollbus.streams.replay.stages import judges, pure_stages
from rollbus.streams.rewards.contract import Ask
from rollbus.streams.rewards.registry import ASKS_A_MODEL, Registry
from rollbus.streams.scoring import ScoringStage
from rollbus.streams.settings import StreamSettings
from rollbus.streams.stages import AnyStage


@dataclass(slots=True)
class Connected:
    """Makes the chain of one attempt; connections live as long as the stack."""

    settings: StreamSettings
    plan: ReplayPlan
    registry: Registry
    ask: Ask | None
    follow: asyncio.Event | None
    read_configurations: bool
    """Look through the trajectories for the configurations of scoring."""
    stack: AsyncExitStack
    version: str
    scorings: dict[str, ScoringConfig] = field(init=False)
    """The configurations of live's scores, by hash, as far as they are known."""

    def __post_init__(self) -> None:
        """Know the settings' own."""
        self.scorings = {self.plan.scoring.config_hash(): self.plan.scoring}

    async def chain(
        self,
        ranges: Sequence[ReplayRange],
        output: Output,
        excluded: frozenset[str],
        elsewhere: Sequence[Reader],
    ) -> Chain:
        """Return the chain before it is opened; without the stages that run elsewhere."""
        plan, settings = self.plan, self.settings
        first_tick = await self._first_tick(ranges)
        recorded = Recorded()
        tellers = await self._tellers(first_tick, recorded)
        if self.follow is None and "curriculum" in plan.stages and plan.input is not RUN_LOG:
            recorded.outcomes.update(await read_outcomes(settings, first_tick))

        async def read_on(tick: int) -> None:
            for teller in tellers:
                await teller.until(tick)

        early = {}
        if plan.rewards == "end" and not elsewhere:
            early = await read_rewards(settings, ranges)
        known = {each.name for each in elsewhere}
        stages = [
            stage for stage in await self._stages(ranges, first_tick, output, excluded) if stage.name not in known
        ]
        chain = Chain(
            stages,
            partitions=settings.event_partitions,
            output=output,
            partition_of=partition_of,
            source_namespace=settings.namespace,
            namespace=plan.namespace,
            recorded=recorded,
            change=self._change,
            excluded=excluded,
            early=early,
            before_tick=read_on,
            app_version=self.version,
            elsewhere=elsewhere,
            stop=self.follow,
        )
        if first_tick is not None:
            await read_on(first_tick)
        return chain

    async def _tellers(self, first_tick: int | None, recorded: Recorded) -> list[Teller]:
        """Return who reads live's inputs of the later stages for what is told again."""
        plan = self.plan
        inputs = [SCORES, CLOSED_GROUPS, RUN_LOG, *((TRAJECTORIES,) if self.read_configurations else ())]
        followed = {STAGE_INPUTS[stage].name for stage in plan.stages[1:]} - {plan.input.name}
        if not any(run.grouping.rewards for run in plan.runs):
            followed.discard(CLOSED_GROUPS.name)  # nothing flows through it, not even time
        tellers = []
        for topic in (topic for topic in inputs if topic.name in followed):
            source = await self._first_partition(topic)
            tellers.append(
                Teller(source, Collector(topic, first_tick=first_tick, change=plan.change, recorded=recorded))
            )
        return tellers

    def _change(self, record: ConfigApplied) -> ConfigApplied | None:
        """Take note of a configuration that live's scores to come will name; return what the replay uses instead."""
        note_configuration(record, ScoringConfig, ("scoring",), self.scorings)
        return self.plan.change(record)

    async def _first_partition(self, topic: Topic) -> KafkaSource:
        span = (await resolve(self.settings, topic, Bound(), Bound())).ranges[0]
        consumer = await self.stack.enter_async_context(reader(self.settings))
        ((_, place),) = assign(consumer, self.settings.namespace, [span]).items()
        return KafkaSource(consumer, place, span, stop=self.follow)

    async def _first_tick(self, ranges: Sequence[ReplayRange]) -> int | None:
        """Return the number of the first tick of the range."""
        async with reader(self.settings, fetch_bytes=LOOK_BYTES) as consumer:
            places = assign(consumer, self.settings.namespace, ranges)
            sources = [KafkaSource(consumer, place, span, stop=self.follow) for span, place in places.items()]
            async for each in merged(sources):
                if isinstance(each, Round):
                    return each.tick.number
        return None

    async def _stages(
        self, ranges: Sequence[ReplayRange], first_tick: int | None, output: Output, excluded: frozenset[str]
    ) -> list[AnyStage]:
        made: list[AnyStage] = []
        for kind in self.plan.stages:
            if kind == "scoring":
                made.append(await self._scoring(ranges, first_tick))
            elif kind == "group-scoring":
                made += await self._judges(output, excluded)
            else:
                made += pure_stages(self.plan, kind)
        return made

    async def _judges(self, output: Output, excluded: frozenset[str]) -> list[AnyStage]:
        plan = self.plan
        if plan.scores != "anew":
            judged = await find_judged(self.settings, plan, self.registry)
            return judges(plan, registry=self.registry, ask=None, recorded=judged)
        kafka = KafkaPayload(self.settings.kafka, self.settings.namespace)
        self.stack.push_async_callback(kafka.close)
        return judges(plan, registry=self.registry, ask=self.ask, payload=WrittenPayload(output, kafka, excluded))

    async def _scoring(self, ranges: Sequence[ReplayRange], first_tick: int | None) -> AnyStage:
        plan, config, keep_ms = self.plan, self.plan.scoring_config, self.plan.assembly.late_horizon_ms
        if plan.scores == "anew":
            return ScoringStage(config, keep_ms=keep_ms, registry=self.registry, ask=self.ask)
        # What stands before the range's first tick may be scored before that tick too, never before the one before it.
        start = Bound(tick=first_tick - 1) if first_tick else Bound()
        there = await resolve(self.settings, SCORES, start, Bound())
        consumer = await self.stack.enter_async_context(reader(self.settings))
        places = assign(consumer, self.settings.namespace, there.ranges)
        bounded = plan.input is TRAJECTORIES and self.follow is None
        ends = {one.partition: one.to_offset for one in ranges} if bounded else {}
        sources = [KafkaSource(consumer, at, span, stop=self.follow) for span, at in places.items()]
        of_end = plan.rewards == "end"
        scores = RecordedScores(sources, ends, revisions=plan.scores == "recorded" and not of_end)
        asking = plan.scores == "computed" and any(reward.type in ASKS_A_MODEL for reward in config.rewards)
        if asking or self.read_configurations:
            self.scorings |= await read_scoring_configs(self.settings)
        if plan.scores == "recorded":
            stage = HeadedScoring(config, keep_ms=keep_ms, registry=self.registry)
            return RecordedScoring(stage, scores.find, self.scorings, compute_feedback=of_end)
        registry = offline(self.registry, config.rewards, self.scorings, scores.find)
        return HeadedScoring(config, keep_ms=keep_ms, registry=registry, retry_s=0)  # it asks nobody
