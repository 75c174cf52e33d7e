"""A replay's chain, connected to what it reads of live in addition to its range: scores, verdicts, configurations."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from rollbus.runtime.kafka.payload import KafkaPayload
from rollbus.runtime.kafka.writing import partition_of
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.config import ScoringConfig
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.records.replays import ReplayRange
from rollbus.schemas.topics import CLOSED_GROUPS, RUN_LOG, SCORES, STAGE_INPUTS, TRAJECTORIES, Topic
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.pipeline import AnyStage
from rollbus.streams.replay.decide.chain import Chain
from rollbus.streams.replay.decide.live_inputs import LiveInputs, RecordedInputs
from rollbus.streams.replay.decide.output import CountingOutput, WrittenPayload
from rollbus.streams.replay.decide.reader import Reader
from rollbus.streams.replay.decide.rounds import Round, merge_sources
from rollbus.streams.replay.decide.scores import HeaderScoring, RecordedScoring, without_model_calls
from rollbus.streams.replay.kafka.live_topics import (
    LiveReader,
    RecordedScores,
    find_judged,
    note_configuration,
    read_outcomes,
    read_rewards,
    read_scoring_configs,
)
from rollbus.streams.replay.kafka.source import KafkaRangeSource, open_ranges
from rollbus.streams.replay.kafka.writer import KafkaOutput
from rollbus.streams.replay.plan.plan import ReplayPlan
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.replay.plan.range_on_broker import (
    BRING_BACK,
    GO_ON,
    LOOK_BYTES,
    ResolvedRange,
    refuse_missing,
    resolve,
)
from rollbus.streams.replay.plan.stages import pure_stages
from rollbus.streams.rewards.contract import Ask
from rollbus.streams.rewards.registry import ASKS_A_MODEL, NEXT_TURN_JUDGE, Registry
from rollbus.streams.stages.scoring.group_scoring import GroupScoringStage
from rollbus.streams.stages.scoring.stage import ScoringStage


@dataclass(slots=True)
class ChainFactory:
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
    ranges: tuple[ReplayRange, ...]
    excluded: frozenset[str]
    """Forgotten episodes."""
    output: CountingOutput | KafkaOutput
    scorings: dict[str, ScoringConfig] = field(init=False)
    """The configurations of live's scores, by hash, as far as they are known."""

    def __post_init__(self) -> None:
        """Know the settings' own."""
        self.scorings = {self.plan.scoring.config_hash(): self.plan.scoring}

    async def chain(self, elsewhere: Sequence[Reader]) -> Chain:
        """Return the chain before it is opened; without the stages that run elsewhere."""
        plan, settings = self.plan, self.settings
        first_tick = await self._first_tick()
        live_inputs = LiveInputs()
        readers = await self._readers(first_tick, live_inputs)
        if self.follow is None and "curriculum" in plan.stages and plan.input is not RUN_LOG:
            live_inputs.outcomes.update(await read_outcomes(settings, first_tick))

        async def read_on(tick: int) -> None:
            for live in readers:
                await live.until(tick)

        early = {}
        if plan.feedback == "end" and not elsewhere:
            early = await read_rewards(settings, self.ranges)
        names_elsewhere = {reader.name for reader in elsewhere}
        stages = [stage for stage in await self._stages(first_tick) if stage.name not in names_elsewhere]
        chain = Chain(
            stages,
            partitions=settings.event_partitions,
            output=self.output,
            partition_of=partition_of,
            source_namespace=settings.namespace,
            namespace=plan.namespace_in(settings.namespace),
            live_inputs=live_inputs,
            change=self._change,
            excluded=self.excluded,
            early=early,
            before_tick=read_on,
            app_version=self.version,
            elsewhere=elsewhere,
            stop=self.follow,
            max_record_bytes=settings.kafka.max_record_bytes,
            signer_of=settings.signer_of(plan.input),
        )
        if first_tick is not None:
            await read_on(first_tick)
        return chain

    async def _readers(self, first_tick: int | None, live_inputs: LiveInputs) -> list[LiveReader]:
        """Return what reads live's inputs of the later stages for the records that a replay needs."""
        plan = self.plan
        inputs = [SCORES, CLOSED_GROUPS, RUN_LOG, *((TRAJECTORIES,) if self.read_configurations else ())]
        followed = {STAGE_INPUTS[stage].name for stage in plan.stages[1:]} - {plan.input.name}
        if not any(run.grouping.rewards for run in plan.runs):
            followed.discard(CLOSED_GROUPS.name)  # nothing flows through it, not even time
        readers = []
        for topic in (topic for topic in inputs if topic.name in followed):
            sources = [await self._first_partition(topic)]
            if topic is SCORES:
                sources += await self._other_score_partitions(first_tick)
            partitions: list[int | None] = [None]
            if topic is SCORES:
                partitions = [source.partition for source in sources]
            collectors = [
                RecordedInputs(
                    topic, first_tick=first_tick, change=plan.change, live_inputs=live_inputs, partition=partition
                )
                for partition in partitions
            ]
            readers.append(LiveReader(topic, sources, collectors, live_inputs.places, first_tick=first_tick))
        return readers

    async def _other_score_partitions(self, first_tick: int | None) -> list[KafkaRangeSource]:
        """Return what tells the order of the other partitions of scores, from the range's first round on."""
        ranges = (await self._resolve_scores(first_tick)).ranges[1:]
        if not ranges:
            return []
        return await self.stack.enter_async_context(open_ranges(self.settings, ranges, stop=self.follow))

    def _change(self, record: ConfigApplied) -> ConfigApplied | None:
        """Take note of a configuration that live's scores to come will name; return what the replay uses instead."""
        note_configuration(record, ScoringConfig, ("scoring",), self.scorings)
        return self.plan.change(record)

    async def _first_partition(self, topic: Topic) -> KafkaRangeSource:
        span = (await resolve(self.settings, topic, Bound(), Bound())).ranges[0]
        (source,) = await self.stack.enter_async_context(open_ranges(self.settings, [span], stop=self.follow))
        return source

    async def _first_tick(self) -> int | None:
        """Return the number of the first tick of the range."""
        async with open_ranges(self.settings, self.ranges, fetch_bytes=LOOK_BYTES, stop=self.follow) as sources:
            async for part in merge_sources(sources, self.settings.signer_of(self.plan.input)):
                if isinstance(part, Round):
                    return part.tick.number
        return None

    async def _stages(self, first_tick: int | None) -> list[AnyStage]:
        stages: list[AnyStage] = []
        for kind in self.plan.stages:
            if kind == "scoring":
                stages.append(await self._scoring(first_tick))
            elif kind == "group-scoring":
                stages += await self._judges()
            else:
                stages += pure_stages(self.plan, kind)
        return stages

    async def _resolve_scores(self, first_tick: int | None) -> ResolvedRange:
        """Return where live's scores of the range are, and which of them retention has deleted.

        A record before the range's first tick may be scored before that tick too, never before the one before it.
        """
        start = Bound(tick=first_tick - 1) if first_tick else Bound()
        return await resolve(self.settings, SCORES, start, Bound(), from_first_record=not first_tick)

    async def _judges(self) -> list[AnyStage]:
        """Return what scores closed groups, for the runs that ask for it."""
        plan, registry = self.plan, self.registry
        runs = [run for run in plan.run_configs() if run.grouping.rewards]
        if plan.scores != "rescored":
            find = await find_judged(self.settings, plan, registry)
            return [GroupScoringStage(run, registry=registry, find_judged=find) for run in runs]
        kafka = KafkaPayload(self.settings.kafka, self.settings.namespace)
        self.stack.push_async_callback(kafka.close)
        payload = WrittenPayload(self.output, kafka, self.excluded)
        return [GroupScoringStage(run, registry=registry, ask=self.ask, payload=payload) for run in runs]

    async def _scoring(self, first_tick: int | None) -> AnyStage:
        plan, config, keep_ms = self.plan, self.plan.scoring_config, self.plan.assembly.late_horizon_ms
        if plan.scores == "rescored":
            return ScoringStage(config, keep_ms=keep_ms, registry=self.registry, ask=self.ask)
        live_scores = await self._resolve_scores(first_tick)
        if not plan.allow_missing:
            refuse_missing(live_scores.missing, f"score again with --rescore, {GO_ON}; {BRING_BACK}")
        sources = await self.stack.enter_async_context(open_ranges(self.settings, live_scores.ranges, stop=self.follow))
        bounded = plan.input is TRAJECTORIES and self.follow is None
        ends = {span.partition: span.to_offset for span in self.ranges} if bounded else {}
        of_end = plan.feedback == "end"
        on_words = [reward.name for reward in config.rewards if reward.type == NEXT_TURN_JUDGE]
        if on_words and of_end:
            raise ConfigurationError(
                f"reward {', '.join(on_words)} was asked as users spoke, and a replay with the feedback of the end has "
                "no such answers; replay with --rescore, or with the feedback as it came"
            )
        revisions = (plan.scores == "recorded" and not of_end) or bool(on_words)
        scores = RecordedScores(sources, ends, revisions=revisions)
        asking = plan.scores == "computed" and any(reward.type in ASKS_A_MODEL for reward in config.rewards)
        if asking or self.read_configurations:
            self.scorings |= await read_scoring_configs(self.settings)
        if plan.scores == "recorded":
            stage = HeaderScoring(config, keep_ms=keep_ms, registry=self.registry)
            return RecordedScoring(stage, scores.find, self.scorings, compute_feedback=of_end)
        registry = without_model_calls(self.registry, config.rewards, self.scorings, scores.find)
        return HeaderScoring(config, keep_ms=keep_ms, registry=registry, retry_s=0)  # it asks no model
