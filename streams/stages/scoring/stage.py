"""Trajectories become scores: an effects stage, whose answers are written down once.

The score is also the trajectory's header: later stages decide from it alone, and fetch the payload by location. When
rewards are revised, only the components that read feedback are called again; the others keep their values.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from rollbus.runtime.cancelling import all_or_none
from rollbus.schemas.errors import ConfigurationError, RecordError
from rollbus.schemas.records.config import AssemblyConfig, RewardConfig, ScoringConfig
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.records.drops import DropReason, DropUnit
from rollbus.schemas.records.trajectories import Location, RewardRevised, Score, Trajectory
from rollbus.schemas.topics import SCORES, TRAJECTORIES
from rollbus.streams.rewards.contract import Ask
from rollbus.streams.rewards.registry import BUILT_IN, Registry, check, reward_version
from rollbus.streams.stages.scoring.answers import ATTEMPTS, RETRY_S, Asker, Before
from rollbus.streams.stages.scoring.batch_questions import BatchView, RewardQuestion
from rollbus.streams.stages.scoring.header import make_header
from rollbus.streams.stages.scoring.revision import trajectory_of_revision
from rollbus.streams.stages.scoring.written_score import Answers, revise_answers, revise_header, write_answers
from rollbus.streams.state.configured_stage import ConfiguredStage
from rollbus.streams.state.rows import KEPT_RECORD, KeptRecord
from rollbus.streams.state.stage import Incoming, Outgoing, make_drop
from rollbus.streams.state.stage_state import Applied, StageState, parse
from rollbus.streams.state.table import Table


class ScoringState(StageState[ScoringConfig]):
    """The last score of each trajectory whose rewards may still be revised."""

    def __init__(self, config: ScoringConfig, keep_ms: int) -> None:
        self.scores: Table[KeptRecord[Score]] = Table("score", KEPT_RECORD)
        super().__init__(config, self.scores)
        self.assembly = Applied(AssemblyConfig(late_horizon_ms=keep_ms), shared_with=self.config)

    def waiting_keys(self) -> Iterable[str]:
        """Return the trajectories whose scores are kept."""
        return self.scores.rows

    def deadline(self, trajectory_id: str) -> int | None:
        """Return when a score is forgotten: after assembly's late horizon."""
        row = self.scores.get(trajectory_id)
        return None if row is None else self.clock.since(row.arrived_ms) + self.assembly.value.late_horizon_ms


class ScoringStage(ConfiguredStage[ScoringState]):
    """Scores trajectories; one instance serves all partitions."""

    name = configured_as = "scoring"
    input = TRAJECTORIES
    takes_early = True

    def __init__(
        self,
        config: ScoringConfig,
        *,
        keep_ms: int,
        registry: Registry = BUILT_IN,
        ask: Ask | None = None,
        retry_s: float = RETRY_S,
        attempts: int = ATTEMPTS,
    ) -> None:
        """Raise ConfigurationError for a reward that is not registered; `keep_ms` is assembly's late horizon
        until its configuration is in the log.
        """
        check(registry, config.rewards, "trajectory")
        self._config, self._keep_ms, self._registry = config, keep_ms, registry
        self._asker = Asker(registry, ask, retry_s=retry_s, attempts=attempts)
        self._versions: dict[str, str] = {}
        """Reward version by configuration hash."""

    @property
    def answered(self) -> int:
        """How many calls of reward functions have come to an end so far."""
        return self._asker.answered

    def new_state(self) -> ScoringState:
        """Return the empty state of a partition."""
        return ScoringState(self._config, self._keep_ms)

    async def answer(self, state: ScoringState, incoming: Sequence[Incoming]) -> Sequence[Answers]:
        """Ask the reward functions about each trajectory of the batch that is not yet scored."""
        state.ensure_rebuilt()
        batch_view = BatchView(
            state.clock,
            state.scores.get,
            config=state.config.value,
            config_hash=state.config.hash,
            keep_ms=state.assembly.value.late_horizon_ms,
        )
        slots = asyncio.Semaphore(batch_view.config.concurrency)
        questions = [self._question(batch_view, message) for message in incoming]
        if all(self._asker.is_quick(reward) for question in questions if question for reward in question.rewards):
            return [await self._ask(question, slots) for question in questions]  # spares a task each
        return await all_or_none(self._ask(question, slots) for question in questions)

    async def read_feedback(self, trajectory: Trajectory, config: ScoringConfig) -> Answers:
        """Call only the functions that read feedback."""
        return await self._asker.ask_all(
            trajectory, self._find_feedback_readers(config), asyncio.Semaphore(config.concurrency)
        )

    def step(self, state: ScoringState, incoming: Incoming, answer: Answers) -> list[Outgoing]:
        """Write down a score and its answers."""
        state.ensure_rebuilt()
        record = incoming.record
        if isinstance(record, Trajectory):
            return self._score_first(state, incoming, record.assembled_at_ms, answer)
        if isinstance(record, RewardRevised):
            return list(self._rescore(state, record, incoming.location, answer))
        return list(self.step_control(state, record))

    def step_control(self, state: ScoringState, record: Any) -> Iterable[Outgoing]:
        """Take in a tick or a configuration: its own, whose rewards must be registered, or assembly's late horizon."""
        if isinstance(record, ConfigApplied) and record.run_id is None:
            if record.stage == self.name:
                self._require_rewards(parse(ScoringConfig, record))
            elif record.stage == "assembly":
                state.assembly.apply(record)
                state.watch_all()
        return super().step_control(state, record)

    def _require_rewards(self, config: ScoringConfig) -> None:
        """Raise ConfigurationError for a configuration of the log with a reward that this worker does not have."""
        try:
            reward_version(self._registry, config)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{error}. The log has this configuration from a worker with other settings or packages, or from "
                "`rollbus replay promote`; install the reward here too, and start all workers with the same settings"
            ) from error

    def pass_time(self, state: ScoringState) -> list[Outgoing]:
        """Forget the scores that no revision can reach any more."""
        for trajectory_id in state.due.due(state.clock.now_ms):
            state.scores.delete(trajectory_id)
        return []

    def _score_first(
        self, state: ScoringState, incoming: Incoming, assembled_at_ms: int, answer: Answers
    ) -> list[Outgoing]:
        """Score a trajectory unless it is scored already."""
        if state.scores.get(incoming.record.trajectory_id) is not None:
            return []
        return list(self._score(state, self._header_of(incoming), assembled_at_ms, answer))

    def _rescore(self, state: ScoringState, record: RewardRevised, at: Location, answer: Answers) -> Iterator[Outgoing]:
        row = state.scores.get(record.trajectory_id)
        if row is None:
            detail = f"revision {record.revision} of a trajectory that is no longer remembered"
            yield _drop("event", record.trajectory_id, DropReason.ORPHANED_REWARD, detail, record.revised_at_ms)
            return
        old = row.get()
        if record.revision <= old.revision:
            return
        answers = revise_answers(old, answer, state.config.value)
        yield from self._score(state, revise_header(old, record, at), record.revised_at_ms, answers)

    def _score(self, state: ScoringState, score: Score, made_ms: int, answers: Answers) -> Iterator[Outgoing]:
        """Write the answers into a score, keep it for revisions, and let it out; a score that failed leaves a drop.

        `made_ms` is the stream time of the record that is scored. The stage's own is earlier if the record is.
        """
        config, config_hash = state.config.value, state.config.hash
        version = self._version(config_hash, config)
        score, has_failed = write_answers(score, answers, config, config_hash=config_hash, reward_version=version)
        state.scores.put(score.trajectory_id, KeptRecord(b"", made_ms, 0, score))
        state.due.watch(score.trajectory_id)
        yield Outgoing(SCORES, score.group_hint, score)
        if score.error and has_failed:  # an excluded one leaves no drop: it would repeat what the person said
            yield _drop("trajectory", score.trajectory_id, DropReason.SCORE_FAILED, score.error, made_ms)

    def _version(self, config_hash: str, config: ScoringConfig) -> str:
        if config_hash not in self._versions:
            self._versions[config_hash] = reward_version(self._registry, config)
        return self._versions[config_hash]

    def _question(self, batch_view: BatchView, incoming: Incoming) -> RewardQuestion | None:
        """Return the question about a record; None if nothing is asked."""
        record = incoming.record
        if isinstance(record, Trajectory):
            if batch_view.find(record.trajectory_id) is not None:
                return None
            return batch_view.add(incoming, batch_view.config.rewards, arrived_ms=record.assembled_at_ms)
        if not isinstance(record, RewardRevised):
            with suppress(RecordError):  # the step refuses it and names it
                batch_view.pass_control(record)
            return None
        old = batch_view.find(record.trajectory_id)
        if old is None or record.revision <= old.revision:
            return None
        rewards = self._find_feedback_readers(batch_view.config)
        return batch_view.add(incoming, rewards, arrived_ms=record.revised_at_ms, old=old)

    async def _ask(self, question: RewardQuestion | None, slots: asyncio.Semaphore) -> Answers:
        """Return the answers about a record, and give what comes of them to the question that builds on it."""
        if question is None:
            return {}
        old = await question.find_old_score()
        answers = await self._ask_about(question, old, slots)
        if question.answered is not None:
            question.score = self._score_of(question, old, answers)
            question.answered.set()
        return answers

    async def _ask_about(self, question: RewardQuestion, old: Score | None, slots: asyncio.Semaphore) -> Answers:
        record = question.incoming.record
        if old is None:
            return await self._asker.ask_all(record, question.rewards, slots)
        before = Before(old.turn_rewards, record.revision)
        return await self._asker.ask_all(trajectory_of_revision(old, record), question.rewards, slots, before)

    def _score_of(self, question: RewardQuestion, old: Score | None, answers: Answers) -> Score:
        """Return the score that the step will write."""
        incoming, config = question.incoming, question.config
        if old is None:
            header = self._header_of(incoming)
        else:
            header = revise_header(old, incoming.record, incoming.location)
            answers = revise_answers(old, answers, config)
        version = self._version(question.config_hash, config)
        return write_answers(header, answers, config, config_hash=question.config_hash, reward_version=version)[0]

    def _header_of(self, incoming: Incoming) -> Score:
        return make_header(incoming.record, incoming.location)

    def _find_feedback_readers(self, config: ScoringConfig) -> tuple[RewardConfig, ...]:
        """Return the components that read feedback."""
        registry = self._registry
        return tuple(
            reward for reward in config.rewards if reward.type in registry and registry[reward.type].reads_feedback
        )


def _drop(unit: DropUnit, unit_id: str, reason: DropReason, detail: str, made_ms: int) -> Outgoing:
    return make_drop(unit, unit_id, reason, detail, stage=ScoringStage.name, now_ms=made_ms)
