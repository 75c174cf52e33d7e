"""Scoring in a replay: live's scores, or new ones by functions that ask no model; a judge only with --rescore.

`RecordedScoring` runs the scoring stage's own step on the answers in live's scores. `without_model_calls` takes a
registry and returns one in which every function that would ask a model is answered from live's scores too, or refused.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rollbus.schemas.errors import ConfigurationError, RecordError
from rollbus.schemas.ids import canonical_json
from rollbus.schemas.records.config import ComponentConfig, RewardConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.records.drops import Drop, DropReason
from rollbus.schemas.records.groups import Group
from rollbus.schemas.records.trajectories import RewardRevised, Score, Trajectory
from rollbus.schemas.topics import TRAJECTORIES
from rollbus.streams.replay.decide.live_inputs import FindScore
from rollbus.streams.replay.decide.stage_output import HeaderOnly
from rollbus.streams.rewards.contract import RewardContext, RewardFunction, TurnValues
from rollbus.streams.rewards.registry import ASKS_A_MODEL, Registry, group_reward_version
from rollbus.streams.stages.scoring.answers import ComponentAnswer
from rollbus.streams.stages.scoring.batch_questions import BatchView, RewardQuestion
from rollbus.streams.stages.scoring.group_scoring import STAGE as GROUP_SCORING
from rollbus.streams.stages.scoring.revision import turns_of
from rollbus.streams.stages.scoring.stage import ScoringStage, ScoringState
from rollbus.streams.stages.scoring.written_score import Answers
from rollbus.streams.state.stage import Incoming, Outgoing
from rollbus.streams.state.stage_state import parse
from rollbus.streams.state.ticker import config_applied

Question = tuple[str, str, str]
"""Type, name and options of a component."""


class OtherConfigurationError(Exception):
    """A score was given under a configuration that this replay does not know of: look for it, and begin again."""


class HeaderScoring(ScoringStage):
    """The scoring stage where trajectories are decoded elsewhere: it is given their headers, perhaps with answers."""

    def _question(self, batch_view: BatchView, incoming: Incoming) -> RewardQuestion | None:
        record = incoming.record
        if not isinstance(record, HeaderOnly):
            return super()._question(batch_view, incoming)
        if batch_view.find(record.trajectory_id) is not None:
            return None
        return batch_view.add(incoming, (), arrived_ms=batch_view.time.now_ms)

    async def _ask_about(self, question: RewardQuestion, old: Score | None, slots: asyncio.Semaphore) -> Answers:
        """Return the answers that came with a header; ask about all else."""
        record = question.incoming.record
        if isinstance(record, HeaderOnly):
            return record.answers or {}
        return await super()._ask_about(question, old, slots)

    def _header_of(self, incoming: Incoming) -> Score:
        record = incoming.record
        return record.header(incoming.location) if isinstance(record, HeaderOnly) else super()._header_of(incoming)

    def step(self, state: ScoringState, incoming: Incoming, answer: Mapping[str, ComponentAnswer]) -> list[Outgoing]:
        """Write down a score and its answers, also of a header alone."""
        if not isinstance(incoming.record, HeaderOnly):
            return super().step(state, incoming, answer)
        state.ensure_rebuilt()
        assembled_at_ms = state.clock.now_ms  # a replay makes no record before the tick of its round
        return self._score_first(state, incoming, assembled_at_ms, answer)


class Remembered(dict[str, ComponentAnswer]):
    """Answers that a score was made of, and the configuration that it names."""

    def __init__(self, answers: Mapping[str, ComponentAnswer], under: ScoringConfig) -> None:
        super().__init__(answers)
        self.under = under


class RecordedScoring:
    """The scoring stage, answered from the scores that live wrote."""

    name: str = ScoringStage.name
    input = TRAJECTORIES

    def __init__(
        self,
        stage: ScoringStage,
        find: FindScore,
        configs: Mapping[str, ScoringConfig],
        *,
        compute_feedback: bool = False,
    ) -> None:
        """Score under `configs`, by hash: those that live's scores may name besides the one in force.

        With `compute_feedback` trajectories come with other rewards than live's had when it scored them first: what
        reads feedback is computed of these, and nothing follows that could revise them.
        """
        self._stage, self._find, self._configs = stage, find, configs
        self._compute_feedback = compute_feedback

    def new_state(self) -> ScoringState:
        """Return the stage's empty state."""
        return self._stage.new_state()

    async def answer(
        self, state: ScoringState, incoming: Sequence[Incoming]
    ) -> Sequence[Mapping[str, ComponentAnswer]]:
        """Return what live wrote down about each trajectory and each revision."""
        state.ensure_rebuilt()
        config, config_hash = state.config.value, state.config.hash
        answers, asked_ids = [], set[str]()
        for message in incoming:
            record = message.record
            if isinstance(record, Trajectory | HeaderOnly):
                asked_ids.add(record.trajectory_id)
            elif isinstance(record, RewardRevised):
                is_known = record.trajectory_id in asked_ids or state.scores.get(record.trajectory_id) is not None
                record = record if is_known else None  # else it leaves a drop, whatever live made of it
            if isinstance(record, ConfigApplied) and record.stage == self.name and record.run_id is None:
                with suppress(RecordError):  # the step meets it again and names it
                    config, config_hash = parse(ScoringConfig, record), record.config_hash
            answers.append(await self._live_answers(config, config_hash, record))
        return answers

    def step(self, state: ScoringState, incoming: Incoming, answer: Mapping[str, ComponentAnswer]) -> list[Outgoing]:
        """Write down a score and its answers, as the stage does, under the configuration that live's score names.

        Live assembles with a lag: what it scored after a change of the configuration may stand before it here.
        """
        now = state.config.value
        if isinstance(answer, Remembered) and answer.under is not now and answer.under != now:
            state.config.apply(config_applied(self.name, None, answer.under))
        return self._stage.step(state, incoming, answer)

    async def _live_answers(self, config: ScoringConfig, config_hash: str, record: Any) -> dict[str, ComponentAnswer]:
        if not isinstance(record, Trajectory | HeaderOnly | RewardRevised):
            return {}
        if self._compute_feedback and isinstance(record, RewardRevised):
            return {}  # it excludes: the answers stay
        revision, at_ms = (
            (record.revision, record.revised_at_ms) if isinstance(record, RewardRevised) else (0, record.first_seen_ms)
        )
        score = await self._find(record.group_hint, record.trajectory_id, revision, at_ms)
        if score is None:
            error = "live gave no score in this range; replay with --rescore"
            return {reward.name: ComponentAnswer(error=error) for reward in config.rewards[:1]}
        under = config if score.config_hash == config_hash else self._configs.get(score.config_hash)
        if under is None:
            raise OtherConfigurationError(f"trajectory {record.trajectory_id} was scored under {score.config_hash}")
        answers = answers_of(score, under.rewards)
        if self._compute_feedback and isinstance(record, Trajectory):
            answers |= await self._stage.read_feedback(record, under)
        return Remembered(answers, under)


def answers_of(score: Score, rewards: Iterable[RewardConfig]) -> dict[str, ComponentAnswer]:
    """Return the answers of all components that a score was made of: also that one has no value, or no longer.

    A score has one text for all errors: it is given to the first component that may have failed.
    """
    answers = {name: ComponentAnswer(value, turns=turns_of(score, name)) for name, value in score.components.items()}
    silent = [reward for reward in rewards if reward.name not in answers]
    answers |= {reward.name: ComponentAnswer(turns=turns_of(score, reward.name)) for reward in silent}
    has_failed = score.outcome == "failed"
    if has_failed or score.error:
        may_have_failed = (reward.name for reward in silent if bool(reward.weight) == has_failed)
        if (name := next(may_have_failed, None)) is not None:
            answers[name] = replace(answers[name], error=score.error or "failed")
    return answers


def without_model_calls(
    registry: Registry, rewards: Sequence[RewardConfig], live: Mapping[str, ScoringConfig], find: FindScore
) -> Registry:
    """Return a registry that asks no model; raises ConfigurationError for a component that live never asked for.

    `live` are the configurations of live's scores, by hash: only the same question has the same answer.
    """
    live_questions = frozenset[Question]().union(*(questions(config.rewards) for config in live.values()))
    asking = [reward for reward in rewards if reward.type in ASKS_A_MODEL]
    unknown = [reward.name for reward in asking if _question(reward) not in live_questions]
    if unknown:
        raise ConfigurationError(
            f"reward {', '.join(unknown)} asks a model, and live's scores have no such component to take instead; "
            "replay with --rescore to ask"
        )
    functions = dict(registry)
    for kind in ASKS_A_MODEL & registry.keys():
        functions[kind] = _remembering(registry[kind], kind, live, find) if asking else refusing(registry[kind])
    return functions


def _remembering(
    function: RewardFunction, kind: str, live: Mapping[str, ScoringConfig], find: FindScore
) -> RewardFunction:
    """Return the function as one that says what it said to live, where live asked the same.

    It waits as long as live takes, or the log to be read: neither is the function's own slowness.
    """

    async def remembered(trajectory: Trajectory, context: RewardContext) -> float | TurnValues | None:
        revision = context.revision if function.reads_feedback else 0
        score = await find(trajectory.group_hint, trajectory.trajectory_id, revision, trajectory.first_seen_ms)
        turns = turns_of(score, context.name) if score is not None else ()
        is_answered = score is not None and (context.name in score.components or function.reads_feedback)
        if score is None or not is_answered:
            raise LookupError(f"live's score has no component {context.name!r}; replay with --rescore")
        under = live.get(score.config_hash)
        if under is None:
            raise LookupError(
                f"live's score was given under {score.config_hash}, a configuration of scoring that is neither "
                "in the settings nor in the rest of the log; replay with --rescore"
            )
        reward_config = RewardConfig(type=kind, name=context.name, options=dict(context.options))
        if _question(reward_config) not in questions(under.rewards):
            raise LookupError(
                f"live asked another question as {context.name!r}, under {score.config_hash}; replay with --rescore"
            )
        value = score.components.get(context.name)
        return TurnValues(turns, value) if turns else value

    return replace(function, call=remembered, patient=True)


def as_asked(
    judged_group: Group | Drop | None,
    closed_group: Group,
    rewards: Sequence[ComponentConfig],
    live: Mapping[str, RunConfig],
    registry: Registry,
) -> Group | Drop | None:
    """Return a judged group if live asked the same about it, else a drop with that reason.

    `live` are the configurations of live's runs, by hash. A group may close under one and be judged under the next:
    the reward version shows whether both ask the same.
    """
    if not isinstance(judged_group, Group):
        return judged_group
    if judged_group.reward_version == group_reward_version(registry, rewards, closed_group.reward_version):
        return judged_group
    under = live.get(judged_group.config_hash)
    if under is None:
        detail = "a configuration of the run that is neither in the settings nor in the rest of its log"
    elif questions(rewards) <= questions(under.grouping.rewards):
        return judged_group
    else:
        detail = "which asked other questions about groups"
    return Drop(
        unit="group",
        unit_id=judged_group.group_id,
        reason=DropReason.SCORE_FAILED.value,
        stage=GROUP_SCORING,
        run_id=judged_group.run_id,
        detail=f"live judged it under {judged_group.config_hash}, {detail}; replay with --rescore",
        dropped_at_ms=judged_group.closed_at_ms,
    )


def refuse_other_questions(live_configs: Sequence[RunConfig], replayed_configs: Sequence[RunConfig]) -> None:
    """Raise ConfigurationError where a replay asks about a run's groups what live was not configured to ask."""
    for live, again in zip(live_configs, replayed_configs, strict=True):
        live_questions = questions(live.grouping.rewards)
        unknown = [reward.name for reward in again.grouping.rewards if not questions([reward]) <= live_questions]
        if unknown:
            raise ConfigurationError(
                f"reward {', '.join(unknown)} asks about the groups of run {live.run_id} what live did not ask; "
                "replay with --rescore to ask"
            )


def questions(rewards: Iterable[ComponentConfig]) -> frozenset[Question]:
    """Return what components ask."""
    return frozenset(map(_question, rewards))


def _question(reward: ComponentConfig) -> Question:
    """Return what two components share that ask the same: all but weights and patience."""
    return reward.type, reward.name, canonical_json(reward.options)


def refusing(function: RewardFunction) -> RewardFunction:
    """Return the function as one that says why it does not answer."""

    def refuse(trajectory: Trajectory, context: RewardContext) -> float | None:
        raise PermissionError(f"reward {context.name!r} asks a model; replay with --rescore")

    return replace(function, call=refuse)
