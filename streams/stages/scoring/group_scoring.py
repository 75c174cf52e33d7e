"""Closed groups become judged groups, per run: an effects stage between a group's closing and its advantages.

It calls reward functions over a whole group (a judge that ranks its members) once. Their values become components of
the members of the Group in the run's log; rewards and advantages follow from them. A member without a value leaves the
group before the mean. A function that fails as a whole costs that group and no other. A run without such functions has
no such stage, and its groups go to the run's log directly.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from rollbus.runtime.cancelling import all_or_none
from rollbus.schemas.errors import ConfigurationError, RecordError
from rollbus.schemas.numbers import computable
from rollbus.schemas.records.config import CONCURRENCY, ComponentConfig, GroupingConfig, RunConfig
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.records.drops import Drop, DropReason
from rollbus.schemas.records.groups import ClosedGroup, Group, GroupMember
from rollbus.schemas.topics import CLOSED_GROUPS, RUN_LOG
from rollbus.streams.rewards.contract import Ask
from rollbus.streams.rewards.registry import BUILT_IN, Registry, check, group_reward_version
from rollbus.streams.stages.grouping.advantages import with_members
from rollbus.streams.stages.scoring.answers import ATTEMPTS, Asker, ComponentAnswer
from rollbus.streams.stages.scoring.batch_time import NEVER, BatchTime
from rollbus.streams.state.configured_stage import RunStage
from rollbus.streams.state.payload import Payload
from rollbus.streams.state.stage import Incoming, Outgoing
from rollbus.streams.state.stage_state import REMEMBER_MS, RememberingState, parse

STAGE = "group-scoring"
Question = tuple[GroupingConfig, Group]


@dataclass(frozen=True, slots=True)
class JudgedGroup:
    """The records about a closed group that was judged before."""

    outcome: Group | Drop | None = None
    """The judged group in the run's log, or the drop with the reason why there is none; None without either."""
    member_drops: Mapping[str, Drop] = field(default_factory=dict)
    """Drops of members that left it, by trajectory id."""


FindGroup = Callable[[Group, Sequence[ComponentConfig]], Awaitable[JudgedGroup]]
"""Finds the records about a closed group, given the rewards that are asked about it."""


@dataclass(slots=True)
class JudgedGroups:
    """The records about all closed groups of some runs."""

    runs: Container[str]
    outcomes: dict[str, Group | Drop] = field(default_factory=dict)
    """By group id."""
    member_drops: dict[tuple[str | None, str], Drop] = field(default_factory=dict)
    """By run and trajectory id, which is in one group of a run."""

    def take(self, record: object) -> None:
        """Add a judged group, the drop of a group, or the drop of a member."""
        if isinstance(record, Group) and record.run_id in self.runs:
            self.outcomes.setdefault(record.group_id, record)
        elif isinstance(record, Drop) and record.stage == STAGE and record.unit == "group":
            self.outcomes.setdefault(record.unit_id, record)
        elif isinstance(record, Drop) and record.stage == STAGE and record.unit == "trajectory":
            self.member_drops.setdefault((record.run_id, record.unit_id), record)

    def of(self, closed_group: Group) -> JudgedGroup:
        """Return the records about one group."""
        names = (member.trajectory_id for member in closed_group.members)
        member_drops = {name: drop for name in names if (drop := self.member_drops.get((closed_group.run_id, name)))}
        return JudgedGroup(self.outcomes.get(closed_group.group_id), member_drops)


@dataclass(frozen=True, slots=True)
class GroupAnswers:
    """The answers about one group."""

    lost: frozenset[str] = frozenset()
    """Members whose payload is gone."""
    answers: Mapping[str, Mapping[str, ComponentAnswer]] = field(default_factory=dict)
    """By component, then by trajectory id."""
    error: str | None = None
    """Why there is no verdict at all."""
    is_silent: bool = False
    """True if a function returned nothing for this group."""
    departures: Mapping[str, tuple[DropReason, str]] = field(default_factory=dict)
    """Members that left it when it was judged before, and why."""
    is_unasked: bool = False
    """True if no function was called, or its answers are not known, since too few members were there or are left."""


GroupScoringState = RememberingState[RunConfig]
"""Which groups have been judged; their answers are in the run's log."""


class GroupScoringStage(RunStage[GroupScoringState]):
    """Judges the closed groups of one run; one instance serves all partitions."""

    configured_as = STAGE
    input = CLOSED_GROUPS

    def __init__(
        self,
        config: RunConfig,
        *,
        registry: Registry = BUILT_IN,
        ask: Ask | None = None,
        payload: Payload | None = None,
        find_judged: FindGroup | None = None,
        concurrency: int = CONCURRENCY,
        attempts: int = ATTEMPTS,
    ) -> None:
        """Raise ConfigurationError for a reward that is not registered, or that is not over groups.

        With `find_judged` no function is called: verdicts are read from the groups that were judged before.
        """
        check(registry, config.grouping.rewards, "group")
        super().__init__(config)
        self._registry, self._concurrency = registry, concurrency
        self._asker, self._payload, self._find_judged = Asker(registry, ask, attempts=attempts), payload, find_judged

    def bind(self, payload: Payload) -> None:
        """Fetch trajectories from there."""
        self._payload = payload

    @property
    def answered(self) -> int:
        """How many calls of reward functions have come to an end so far."""
        return self._asker.answered

    def new_state(self) -> GroupScoringState:
        """Return the empty state of a partition."""
        return GroupScoringState(self._config)

    async def answer(self, state: GroupScoringState, incoming: Sequence[Incoming]) -> Sequence[GroupAnswers]:
        """Ask about each group of the run that has not been judged."""
        state.ensure_rebuilt()
        slots, groups = asyncio.Semaphore(self._concurrency), asyncio.Semaphore(self._concurrency)
        questions = self._questions(state, incoming)
        if all(self._asker.is_quick(reward) for question in questions if question for reward in question[0].rewards):
            return [await self._verdict(question, slots) for question in questions]
        return await all_or_none(self._in_turn(question, slots, groups) for question in questions)

    def step(self, state: GroupScoringState, incoming: Incoming, answer: GroupAnswers) -> list[Outgoing]:
        """Write down a group with its verdict."""
        state.ensure_rebuilt()
        record = incoming.record
        if not isinstance(record, ClosedGroup):
            return list(self.step_control(state, record))
        if record.group.run_id != self.run_id or not state.is_first_time(record.group.group_id):
            return []
        return list(self._close(state, record.group, answer))

    def pass_time(self, state: GroupScoringState) -> list[Outgoing]:
        """Forget old groups."""
        state.forget_old()
        return []

    def _questions(self, state: GroupScoringState, incoming: Sequence[Incoming]) -> list[Question | None]:
        """Return the question about each record, by the configuration that is in force at its place."""
        config, time = state.config.value.grouping, BatchTime(state.clock)
        seen_in_batch: dict[str, tuple[int, float]] = {}
        """When a group came, and what was forgotten then."""
        questions: list[Question | None] = []
        for message in incoming:
            record, question = message.record, None
            if isinstance(record, ClosedGroup):
                group = record.group
                seen_ms, forgotten_ms = seen_in_batch.get(group.group_id, (state.seen.get(group.group_id), NEVER))
                is_seen = seen_ms is not None and time.remembers(seen_ms, forgotten_ms)
                if group.run_id == self.run_id and not is_seen:
                    seen_in_batch[group.group_id] = (time.now_ms, time.forgotten_ms)
                    question = (config, group) if config.rewards else None
            elif isinstance(record, Tick):
                time.pass_tick(record, REMEMBER_MS)
            elif isinstance(record, ConfigApplied) and self.is_configured_by(record):
                with suppress(RecordError):  # the step refuses it and names it
                    config = parse(RunConfig, record).grouping
            questions.append(question)
        return questions

    # Asking

    async def _in_turn(
        self, question: Question | None, slots: asyncio.Semaphore, groups: asyncio.Semaphore
    ) -> GroupAnswers:
        """Limit how many groups' trajectories are fetched at once: a batch has hundreds."""
        async with groups:
            return await self._verdict(question, slots)

    async def _verdict(self, question: Question | None, slots: asyncio.Semaphore) -> GroupAnswers:
        if question is None:
            return GroupAnswers()
        config, group = question
        if self._find_judged is not None:
            return _as_recorded(await self._find_judged(group, config.rewards), group, config)
        if self._payload is None:
            raise ConfigurationError(f"{self.name} was given no payload to fetch trajectories from")
        trajectory_by_location = await self._payload.fetch([member.location for member in group.members])
        present = [member for member in group.members if member.location in trajectory_by_location]
        members = [member.trajectory_id for member in present]
        lost_members = frozenset(member.trajectory_id for member in group.members) - set(members)
        if len(members) < _fewest(config):
            return GroupAnswers(lost_members)  # too few for a group: no function is called
        trajectories = [trajectory_by_location[member.location] for member in present]
        answers = await self._asker.ask_all(trajectories, config.rewards, slots)
        errors = [answer.error for answer in answers.values() if answer.error]
        if errors:
            return GroupAnswers(lost_members, error="; ".join(errors))
        if any(answer.members is None for answer in answers.values()):
            return GroupAnswers(lost_members, is_silent=True)
        return GroupAnswers(
            lost_members,
            {name: dict(zip(members, answer.members or (), strict=True)) for name, answer in answers.items()},
        )

    # Writing down

    def _close(self, state: GroupScoringState, group: Group, verdict: GroupAnswers) -> Iterator[Outgoing]:
        config = state.config.value.grouping
        if not config.rewards:  # rewards were switched off while this group was on its way
            yield Outgoing(RUN_LOG, self.run_id, group)
            return
        if verdict.error is not None or verdict.is_silent:
            reason = DropReason.SCORE_FAILED if verdict.error else DropReason.SCORE_MISSING
            yield self._drop_group(
                state, group, reason, group.members, verdict.error or "a function returned nothing for it"
            )
            return
        members: list[GroupMember] = []
        enough = not verdict.is_unasked and len(group.members) - len(verdict.lost) >= _fewest(config)
        for member in group.members:
            judgement = _member(member, verdict, config.rewards if enough else ())
            if isinstance(judgement, GroupMember):
                members.append(judgement)
            else:
                reason, detail = judgement
                yield self.drop(state, "trajectory", member.trajectory_id, reason, (member.trajectory_id,), detail)
        if len(members) < _fewest(config):
            if members:
                detail = f"{len(members)} of {len(group.members)} members are left after judging"
                yield self._drop_group(state, group, DropReason.INCOMPLETE_GROUP, members, detail)
            return
        judged_group = replace(
            with_members(group, members, tolerance=state.config.value.signal_tolerance),
            reward_version=group_reward_version(self._registry, config.rewards, group.reward_version),
        )
        yield Outgoing(RUN_LOG, self.run_id, judged_group)

    def _drop_group(
        self, state: GroupScoringState, group: Group, reason: DropReason, members: Sequence[GroupMember], detail: str
    ) -> Outgoing:
        ids = tuple(member.trajectory_id for member in members)
        return self.drop(state, "group", group.group_id, reason, ids, detail)


def _fewest(config: GroupingConfig) -> int:
    """Return how many members make a group: one alone has nothing to be compared with."""
    return max(2, config.min_group_size)


def _member(
    member: GroupMember, verdict: GroupAnswers, rewards: Sequence[ComponentConfig]
) -> GroupMember | tuple[DropReason, str]:
    """Return a member with its new components, or why it leaves."""
    name = member.trajectory_id
    if name in verdict.departures:
        return verdict.departures[name]
    if name in verdict.lost:
        return DropReason.PAYLOAD_LOST, f"the record at {member.location} no longer exists"
    reward, components = member.reward, dict(member.components)
    for reward_config in rewards:
        answer = verdict.answers.get(reward_config.name, {}).get(
            name, ComponentAnswer(error=f"reward {reward_config.name!r} was not asked")
        )
        if answer.error is not None:
            return DropReason.SCORE_FAILED, answer.error
        if answer.value is None:
            return DropReason.SCORE_MISSING, f"reward {reward_config.name!r} returned nothing for it"
        components[reward_config.name] = answer.value
        reward += reward_config.weight * answer.value
    if not computable(reward):
        return DropReason.SCORE_FAILED, f"the weighted sum is {reward}"
    return replace(member, reward=reward, components=components)


def _as_recorded(judged_group: JudgedGroup, closed_group: Group, config: GroupingConfig) -> GroupAnswers:
    """Return the verdict that the records were made of."""
    outcome = judged_group.outcome
    departures = {name: (DropReason(drop.reason), drop.detail) for name, drop in judged_group.member_drops.items()}
    if isinstance(outcome, Group):
        return GroupAnswers(answers=_answers_of(outcome, closed_group, config.rewards), departures=departures)
    stayed = len(closed_group.members) - len(departures)
    incomplete = outcome is not None and outcome.reason == DropReason.INCOMPLETE_GROUP.value
    if stayed < _fewest(config) and (incomplete or (outcome is None and not stayed)):
        return GroupAnswers(departures=departures, is_unasked=True)
    if outcome is None:
        return GroupAnswers(error="no judged group of this id is in the run's log")
    is_silent = outcome.reason == DropReason.SCORE_MISSING.value
    return GroupAnswers(is_silent=is_silent, error=None if is_silent else outcome.detail)


def _answers_of(
    judged_group: Group, closed_group: Group, rewards: Sequence[ComponentConfig]
) -> Mapping[str, Mapping[str, ComponentAnswer]]:
    """Return the answers about the members of a judged group, by component and trajectory id."""
    members = {member.trajectory_id: member for member in judged_group.members}
    left_out = {
        member.trajectory_id: ComponentAnswer(error="it was left out when the group was judged")
        for member in closed_group.members
        if member.trajectory_id not in members
    }
    return {
        reward.name: {name: ComponentAnswer(member.components.get(reward.name)) for name, member in members.items()}
        | left_out
        for reward in rewards
    }
