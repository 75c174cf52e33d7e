"""One replay: its range is resolved, read, decided again, written, and counted by its manifest, in that order.

1. resolve the range; stop where a part of it is gone;
2. read the list of exclusions, and what live recorded of the outside world;
3. write the manifest `started`; what an earlier attempt at the same plan wrote is passed over, anything else deleted;
4. read, step, write; 5. compare the ends of the topics with what was counted; 6. write the manifest `complete`.
Readers look at the manifest, so before 6 nothing counts. Who writes holds the replay's lease all along. In 4 the
partitions of the first input may be read and decided by processes of their own; what they made is put in order here.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.replays import ReplayManifest
from rollbus.schemas.records.trajectories import Score
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.replay.decide.output import CountingOutput
from rollbus.streams.replay.decide.scores import OtherConfigurationError, refuse_other_questions, without_model_calls
from rollbus.streams.replay.kafka.chain import ChainFactory
from rollbus.streams.replay.kafka.lease import Lease, working_on
from rollbus.streams.replay.kafka.live_topics import read_exclusions
from rollbus.streams.replay.kafka.manifest import (
    forget_topics,
    prepare_topics,
    read_manifests,
    read_written,
    write_manifest,
)
from rollbus.streams.replay.kafka.range_run import ProgressCallbacks, RangeRun
from rollbus.streams.replay.kafka.writer import KafkaOutput, OtherRecordsError
from rollbus.streams.replay.plan.code import code_hash
from rollbus.streams.replay.plan.plan import SETTINGS_OF, ReplayPlan
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.replay.plan.range_on_broker import ResolvedRange, refuse_empty, refuse_missing, resolve
from rollbus.streams.rewards.contract import Ask
from rollbus.streams.rewards.registry import Registry, group_reward_version, reward_version
from rollbus.streams.stages.scoring.stage import ScoringStage

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Replay:
    """One attempt at a plan."""

    settings: StreamSettings
    """Of the namespace that is replayed."""
    plan: ReplayPlan
    registry: Registry
    ask: Ask | None = None
    version: str = ""
    watch: ProgressCallbacks = field(default_factory=ProgressCallbacks)
    clock: Callable[[], int] = wall_clock_ms
    follow: asyncio.Event | None = None
    """Set for a shadow: it follows the range's topics, which have no end, until the event is set."""
    processes: int | None = 1
    """Processes that read and decide the first input's partitions; None for as many as cores and memory allow."""
    read_configurations: bool = False
    """Look through the trajectories for the configurations of scoring: once a recorded score has another than that of
    the settings."""
    open_rows: int = 0
    """Most rows that the states held at the end of a round."""
    drops: Mapping[str, int] = field(default_factory=dict)
    """How many there are of each reason."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """How many scores failed for each error."""

    async def run(self, *, dry_run: bool = False) -> ReplayManifest:
        """Replay, and return the manifest; raises DataLossError, ConfigurationError, FencedError, UnavailableError."""
        if dry_run:
            return await self._run_until_consistent(None)
        async with working_on(self.settings, self.plan.name) as lease:
            return await self._run_until_consistent(lease)

    async def _run_until_consistent(self, lease: Lease | None) -> ReplayManifest:
        """Begin again where the first attempt finds out that it, or one before it, began on something else."""
        while True:
            try:
                return await self._run(lease)
            except OtherConfigurationError as error:
                if self.read_configurations:
                    raise ConfigurationError(
                        f"{error}, a configuration of scoring that is neither in the settings nor in the rest of "
                        "the log; give it with --reward"
                    ) from error
                logger.info("%s: reading the recorded configurations, and beginning again", error)
                self.read_configurations = True
            except OtherRecordsError as error:
                logger.info("%s than this attempt makes: beginning again", error)
            if lease is not None:
                await forget_topics(self.replay_settings)

    @property
    def is_shadow(self) -> bool:
        """Whether it follows the topics, which have no end."""
        return self.follow is not None

    @property
    def replay_settings(self) -> StreamSettings:
        """The settings of the replay's own namespace."""
        return self.settings.model_copy(update={"namespace": self.plan.namespace_in(self.settings.namespace)})

    async def _run(self, lease: Lease | None) -> ReplayManifest:
        plan, settings = self.plan, self.settings
        dry_run = lease is None
        self._check_rewards(dry_run)
        resolved = await self._resolve_range()
        if self.is_shadow:
            refuse_missing(
                resolved.missing, f"`rollbus replay delete {plan.name}` lets the shadow begin again from now"
            )
        else:
            if not plan.allow_missing:
                refuse_missing(resolved.missing, whole_from=resolved.whole_from)
            refuse_empty(resolved)
        excluded, position = await read_exclusions(settings)
        manifest = self._make_manifest(resolved, position)
        async with AsyncExitStack() as stack:
            output = CountingOutput() if lease is None else await self._prepare_output(manifest, stack)
            read_configurations = self.read_configurations or (plan.scores == "rescored" and plan.new_scoring is None)
            factory = ChainFactory(
                settings=settings,
                plan=plan,
                registry=self.registry,
                ask=self.ask,
                follow=self.follow,
                read_configurations=read_configurations,
                stack=stack,
                version=self.version,
                ranges=resolved.ranges,
                excluded=excluded,
                output=output,
            )
            range_run = RangeRun(factory, self.watch, self.processes)
            chain = await range_run.run()
            self.open_rows, self.drops, self.failures = range_run.open_rows, chain.drops, chain.failures
            if isinstance(output, KafkaOutput):
                await output.finish(stopped=self.is_shadow)
        manifest = replace(manifest, from_ms=range_run.first_ms, to_ms=range_run.last_ms, digests=chain.digests())
        records: dict[str, int] = {}
        for (topic, _), count in sorted(output.counts.items()):
            records[topic] = records.get(topic, 0) + count
        manifest = replace(manifest, records=records)
        if self.is_shadow:
            return manifest
        manifest = replace(manifest, state="complete", finished_at_ms=self.clock())
        if lease is not None:
            await lease.require_still_held()
            await write_manifest(settings, manifest)
        return manifest

    def _make_manifest(self, resolved: ResolvedRange, exclusions: int) -> ReplayManifest:
        """Return what is known before the first record."""
        plan = self.plan
        return ReplayManifest(
            name=plan.name,
            namespace=self.replay_settings.namespace,
            source_namespace=self.settings.namespace,
            state="following" if self.is_shadow else "started",
            stages=plan.stages,
            ranges=resolved.ranges,
            missing=resolved.missing,
            rewards=plan.feedback,
            scores=plan.scores,
            overrides=plan.overrides(),
            configs=self._hash_configs(),
            code_hash=code_hash(),
            version=self.version,
            exclusions=exclusions,
            started_at_ms=self.clock(),
        )

    def _hash_configs(self) -> dict[str, str]:
        """Return the hashes of the configurations that hold where the log has no other, and of the reward functions.

        Also of the runs without the changes of this replay: a promotion compares them.
        """
        plan, registry = self.plan, self.registry
        runs = plan.run_configs()
        hashes = {"assembly": plan.assembly.config_hash(), "scoring": plan.scoring_config.config_hash()}
        hashes |= {f"run.{run.run_id}": run.config_hash() for run in runs}
        hashes |= {f"{SETTINGS_OF}{run.run_id}": run.config_hash() for run in plan.runs}
        if "scoring" in plan.stages:
            hashes["rewards"] = reward_version(registry, plan.scoring_config)
        if "group-scoring" in plan.stages:
            asking = (run for run in runs if run.grouping.rewards)
            hashes |= {
                f"rewards.{run.run_id}": group_reward_version(registry, run.grouping.rewards, "") for run in asking
            }
        return hashes

    async def _resolve_range(self) -> ResolvedRange:
        """Return what to read; a shadow that is started again begins where it first began."""
        plan, settings = self.plan, self.settings
        start = plan.start
        if self.is_shadow:
            earlier = (await read_manifests(settings)).get(plan.name)
            if earlier is not None and earlier.state == "following" and earlier.stages == plan.stages:
                start = Bound(offsets=tuple((span.partition, span.from_offset) for span in earlier.ranges))
        resolved = await resolve(settings, plan.input, start, plan.end, from_first_record=not self.is_shadow)
        if not self.is_shadow:
            return resolved
        ranges = tuple(replace(span, to_offset=span.from_offset) for span in resolved.ranges)
        return replace(resolved, ranges=ranges)

    def _check_rewards(self, dry_run: bool) -> None:
        """Raise ConfigurationError for a reward that is not registered, or that would ask a model without --rescore."""
        plan, registry = self.plan, self.registry
        if plan.scores == "computed":
            registry = without_model_calls(
                registry, plan.scoring_config.rewards, {plan.scoring.config_hash(): plan.scoring}, nothing_scored
            )
        if "scoring" in plan.stages:
            ScoringStage(plan.scoring_config, keep_ms=0, registry=registry)
        runs = [run.run_id for run in plan.run_configs() if run.grouping.rewards]
        judges_groups = "group-scoring" in plan.stages and bool(runs)
        if judges_groups and plan.scores != "rescored":
            if self.is_shadow:
                raise ConfigurationError(
                    f"the groups of run {', '.join(runs)} are judged, and a shadow comes to them before live's "
                    "verdicts are written; shadow with --rescore to ask, or take rewards out of its --grouping"
                )
            refuse_other_questions(plan.runs, plan.run_configs())
        if dry_run and judges_groups and plan.scores == "rescored" and plan.stages[0] in ("alias", "assembly"):
            raise ConfigurationError(
                "a reward over groups reads trajectories that the replay writes; leave out --dry-run or --rescore"
            )

    async def _prepare_output(self, manifest: ReplayManifest, stack: AsyncExitStack) -> KafkaOutput:
        """Prepare the replay's topics and connect to them."""
        replay_settings = self.replay_settings
        created = set(await prepare_topics(self.settings, replay_settings, manifest))
        output = KafkaOutput(replay_settings)
        stack.push_async_callback(output.close)
        await output.start(await read_written(replay_settings, created))
        return output


async def nothing_scored(hint: str, trajectory_id: str, revision: int, at_ms: int) -> Score | None:
    """Know of no score."""
    return None
