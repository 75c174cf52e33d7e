"""Closed groups to judged groups, per run: an effects stage between a group's closing and its advantages.

Reward functions over a whole group (a judge that ranks its members) are asked once; what they say is written down as
the components of the members of the Group in the run's log, with rewards and advantages that follow from it. A member
of which nothing is said leaves the group before the mean; a function that fails as a whole costs that group and no
other. A run that asks for no such function has no such stage, and its groups go to the run's log directly.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from rollbus.schemas.cancelling import all_or_none
from rollbus.schemas.config import GroupingConfig, RewardConfig, RunConfig
from rollbus.schemas.control import ConfigApplied, Tick
from rollbus.schemas.drops import Drop, DropReason, DropUnit
from rollbus.schemas.errors import ConfigurationError, RecordError
from rollbus.schemas.groups import ClosedGroup, Group, GroupMember
from rollbus.schemas.topics import CLOSED_GROUPS, DROPS, RUN_LOG
from rollbus.streams.deadlines import Deadlines
from rollbus.streams.grouping_maths import with_members
from rollbus.streams.grouping_state import REMEMBER_MS
from rollbus.streams.payload import Payload
from rollbus.streams.rewards.contract import Ask, computable
from rollbus.streams.rewards.registry import BUILT_IN, Registry, check, group_reward_version
from rollbus.streams.rows import INT
from rollbus.streams.scoring_answers import Answer, Asker
from rollbus.streams.stage import Incoming, Outgoing
from rollbus.streams.stage_state import Applied, StageState, misplaced, parse
from rollbus.streams.state import Table

STAGE = "group-scoring"
Question = tuple[GroupingConfig, Group]


@dataclass(frozen=True, slots=True)
class Judged:
    """What is written of a closed group that was judged before."""

    outcome: Group | Drop | None = None
    """The judged group in the run's log, or the drop that says why there is none; None without either."""
    left: Mapping[str, Drop] = field(default_factory=dict)
    """Drops of members that left it, by trajectory id."""


FindGroup = Callable[[Group, Sequence[RewardConfig]], Awaitable[Judged]]
"""A closed group and what is asked about it to what is written of it."""


@dataclass(slots=True)
class JudgedGroups:
    """What is written of all closed groups of some runs."""

    runs: Container[str]
    outcomes: dict[str, Group | Drop] = field(default_factory=dict)
    """By group id."""
    left: dict[tuple[str | None, str], Drop] = field(default_factory=dict)
    """By run and trajectory id, which is in one group of a run."""

    def take(self, record: object) -> None:
        """Take note of a judged group, or of why there is none, or of a member that left one."""
        if isinstance(record, Group) and record.run_id in self.runs:
            self.outcomes.setdefault(record.group_id, record)
        elif isinstance(record, Drop) and record.stage == STAGE and record.unit == "group":
            self.outcomes.setdefault(record.unit_id, record)
        elif isinstance(record, Drop) and record.stage == STAGE and record.unit == "trajectory":
            self.left.setdefault((record.run_id, record.unit_id), record)

    def of(self, closed: Group) -> Judged:
        """Return what is written of one."""
        names = (member.trajectory_id for member in closed.members)
        left = {name: drop for name in names if (drop := self.left.get((closed.run_id, name)))}
        return Judged(self.outcomes.get(closed.group_id), left)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found out about one group."""

    lost: frozenset[str] = frozenset()
    """Members whose payload is gone."""
    answers: Mapping[str, Mapping[str, Answer]] = field(default_factory=dict)
    """By component, then by trajectory id."""
    error: str | None = None
    """Why there is no verdict at all."""
    silent: bool = False
    """True where a function had nothing to say of this group."""
    left: Mapping[str, tuple[DropReason, str]] = field(default_factory=dict)
    """Members that left it when it was judged before, and why."""
    unasked: bool = False
    """True where nobody was asked, or nothing is known of it, since too few were there or are left."""


class GroupScoringState(StageState):
    """Which groups have been judged: their answers stand in the run's log."""

    def __init__(self, config: RunConfig) -> None:
        self.config = Applied(config)
        self.seen: Table[int] = Table("seen", INT)
        super().__init__(self.config.table, self.seen)
        self.due = Deadlines(self._deadline)

    def rebuild(self) -> None:
        """Derive what is forgotten when."""
        self.due.rebuild(self.seen.rows)

    def _deadline(self, group_id: str) -> int | None:
        seen_ms = self.seen.get(group_id)
        return None if seen_ms is None else self.clock.since(seen_ms) + REMEMBER_MS


class GroupScoringStage:
    """Judges the closed groups of one run; one instance serves all partitions."""

    input = CLOSED_GROUPS

    def __init__(
        self,
        config: RunConfig,
        *,
        registry: Registry = BUILT_IN,
        ask: Ask | None = None,
        payload: Payload | None = None,
        recorded: FindGroup | None = None,
    ) -> None:
        """Raise ConfigurationError for a reward that nobody registered, or that is not over groups.

        With `recorded` nobody is asked: verdicts are read from the groups that were judged before.
        """
        check(registry, config.grouping.rewards, "group")
        self.name = f"{STAGE}.{config.run_id}"
        self._config, self._run_id, self._registry = config, config.run_id, registry
        self._asker, self._payload, self._recorded = Asker(registry, ask), payload, recorded

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

    async def answer(self, state: GroupScoringState, incoming: Sequence[Incoming]) -> Sequence[Verdict]:
        """Ask about each group of the run that has not been judged."""
        state.fresh()
        concurrency = state.config.value.grouping.rewards_concurrency
        slots, groups = asyncio.Semaphore(concurrency), asyncio.Semaphore(concurrency)
        questions = self._questions(state, state.wholes(incoming))
        if all(self._asker.is_quick(reward) for question in questions if question for reward in question[0].rewards):
            return [await self._verdict(question, slots) for question in questions]
        return await all_or_none(self._in_turn(question, slots, groups) for question in questions)

    def step(self, state: GroupScoringState, incoming: Incoming, answer: Verdict) -> list[Outgoing]:
        """Write down a group with its verdict."""
        state.fresh()
        whole = state.whole(incoming)
        if whole is None:
            return []
        record = whole.record
        if isinstance(record, ClosedGroup):
            if self._is_done(state, record.group):
                return []
            state.seen.put(record.group.group_id, state.clock.now_ms)
            state.due.watch(record.group.group_id)
            return list(self._close(state, record.group, answer))
        if isinstance(record, Tick):
            if state.clock.observe(record):
                for group_id in state.due.due(state.clock.now_ms):
                    state.seen.delete(group_id)
                return [self._missing(state, each) for each in state.lost_parts()]
        elif isinstance(record, ConfigApplied):
            if self._concerns(record):
                state.config.apply(record)
        else:
            raise misplaced(record, self.input)
        return []

    def _questions(self, state: GroupScoringState, incoming: Sequence[Incoming | None]) -> list[Question | None]:
        """Return what is to be asked about each record, by the configuration that holds where it stands."""
        config, asked = state.config.value.grouping, set[str]()
        questions: list[Question | None] = []
        for each in incoming:
            record, question = each and each.record, None
            if isinstance(record, ClosedGroup):
                group = record.group
                if config.rewards and group.group_id not in asked and not self._is_done(state, group):
                    asked.add(group.group_id)
                    question = (config, group)
            elif isinstance(record, ConfigApplied) and self._concerns(record):
                with suppress(RecordError):  # the step meets it again and names it
                    config = parse(RunConfig, record).grouping
            questions.append(question)
        return questions

    def _concerns(self, record: ConfigApplied) -> bool:
        return record.stage == STAGE and record.run_id == self._run_id

    def _is_done(self, state: GroupScoringState, group: Group) -> bool:
        return group.run_id != self._run_id or state.seen.get(group.group_id) is not None

    # Asking

    async def _in_turn(self, question: Question | None, slots: asyncio.Semaphore, groups: asyncio.Semaphore) -> Verdict:
        """Fetch no more groups' trajectories at once than may be asked about: a batch has hundreds."""
        async with groups:
            return await self._verdict(question, slots)

    async def _verdict(self, question: Question | None, slots: asyncio.Semaphore) -> Verdict:
        if question is None:
            return Verdict()
        config, group = question
        if self._recorded is not None:
            return _as_recorded(await self._recorded(group, config.rewards), group, config)
        if self._payload is None:
            raise ConfigurationError(f"{self.name} was given no payload to fetch trajectories from")
        there = await self._payload.fetch([member.location for member in group.members])
        members = [member.trajectory_id for member in group.members if member.location in there]
        lost = frozenset(member.trajectory_id for member in group.members) - set(members)
        if len(members) < _fewest(config):
            return Verdict(lost)  # nobody is asked about what will be no group
        trajectories = [there[member.location] for member in group.members if member.location in there]
        found = await self._asker.ask_all(trajectories, config.rewards, slots)
        errors = [answer.error for answer in found.values() if answer.error]
        if errors:
            return Verdict(lost, error="; ".join(errors))
        if any(answer.members is None for answer in found.values()):
            return Verdict(lost, silent=True)
        return Verdict(
            lost,
            {name: dict(zip(members, answer.members or (), strict=True)) for name, answer in found.items()},
        )

    # Writing down

    def _close(self, state: GroupScoringState, group: Group, verdict: Verdict) -> Iterator[Outgoing]:
        config = state.config.value.grouping
        if not config.rewards:  # switched off while this group was on its way
            yield Outgoing(RUN_LOG, self._run_id, group)
            return
        if verdict.error is not None or verdict.silent:
            reason = DropReason.SCORE_FAILED if verdict.error else DropReason.SCORE_MISSING
            yield self._drop(state, "group", group, reason, group.members, verdict.error or "nothing was said of it")
            return
        kept: list[GroupMember] = []
        enough = not verdict.unasked and len(group.members) - len(verdict.lost) >= _fewest(config)
        for member in group.members:
            found = _member(member, verdict, config.rewards if enough else ())
            if isinstance(found, GroupMember):
                kept.append(found)
            else:
                yield self._drop(state, "trajectory", group, found[0], (member,), found[1])
        if len(kept) < _fewest(config):
            if kept:
                detail = f"{len(kept)} of {len(group.members)} members are left after judging"
                yield self._drop(state, "group", group, DropReason.INCOMPLETE_GROUP, kept, detail)
            return
        judged = replace(
            with_members(group, kept, tolerance=config.signal_tolerance),
            reward_version=group_reward_version(self._registry, config.rewards, group.reward_version),
        )
        yield Outgoing(RUN_LOG, self._run_id, judged)

    def _drop(
        self,
        state: GroupScoringState,
        unit: DropUnit,
        group: Group,
        reason: DropReason,
        members: Sequence[GroupMember],
        detail: str,
    ) -> Outgoing:
        ids = tuple(member.trajectory_id for member in members)
        drop = Drop(
            unit=unit,
            unit_id=group.group_id if unit == "group" else ids[0],
            reason=reason.value,
            stage=STAGE,
            run_id=self._run_id,
            trajectory_ids=ids,
            detail=detail,
            dropped_at_ms=state.clock.now_ms,
        )
        return Outgoing(DROPS, drop.unit_id, drop)

    def _missing(self, state: GroupScoringState, digest: str) -> Outgoing:
        drop = Drop(
            unit="event",
            unit_id=digest,
            reason=DropReason.MISSING_CHUNK.value,
            stage=STAGE,
            run_id=self._run_id,
            detail="parts of a large group never came",
            dropped_at_ms=state.clock.now_ms,
        )
        return Outgoing(DROPS, drop.unit_id, drop)


def _fewest(config: GroupingConfig) -> int:
    """How many members are a group: one alone can be compared with nobody."""
    return max(2, config.min_group_size)


def _member(
    member: GroupMember, verdict: Verdict, rewards: Sequence[RewardConfig]
) -> GroupMember | tuple[DropReason, str]:
    """Return a member with what was said of it, or why it leaves."""
    name = member.trajectory_id
    if name in verdict.left:
        return verdict.left[name]
    if name in verdict.lost:
        return DropReason.PAYLOAD_LOST, f"nothing stands at {member.location} any more"
    reward, components = member.reward, dict(member.components)
    for each in rewards:
        answer = verdict.answers.get(each.name, {}).get(name, Answer(error=f"reward {each.name!r} was not asked"))
        if answer.error is not None:
            return DropReason.SCORE_FAILED, answer.error
        if answer.value is None:
            return DropReason.SCORE_MISSING, f"reward {each.name!r} said nothing of it"
        components[each.name] = answer.value
        reward += each.weight * answer.value
    if not computable(reward):
        return DropReason.SCORE_FAILED, f"the weighted sum is {reward}"
    return replace(member, reward=reward, components=components)


def _as_recorded(judged: Judged, closed: Group, config: GroupingConfig) -> Verdict:
    """Return the verdict that what is written was made of."""
    outcome, left = judged.outcome, {name: (DropReason(each.reason), each.detail) for name, each in judged.left.items()}
    if isinstance(outcome, Group):
        return Verdict(answers=_answers_of(outcome, closed, config.rewards), left=left)
    stayed = len(closed.members) - len(left)
    incomplete = outcome is not None and outcome.reason == DropReason.INCOMPLETE_GROUP.value
    if stayed < _fewest(config) and (incomplete or (outcome is None and not stayed)):
        return Verdict(left=left, unasked=True)
    if outcome is None:
        return Verdict(error="no judged group of this id is in the run's log")
    silent = outcome.reason == DropReason.SCORE_MISSING.value
    return Verdict(silent=silent, error=None if silent else outcome.detail)


def _answers_of(judged: Group, closed: Group, rewards: Sequence[RewardConfig]) -> Mapping[str, Mapping[str, Answer]]:
    """Return what was said of the members of a judged group, by component and trajectory id."""
    members = {member.trajectory_id: member for member in judged.members}
    left_out = {
        member.trajectory_id: Answer(error="it was left out when the group was judged")
        for member in closed.members
        if member.trajectory_id not in members
    }
    return {
        reward.name: {name: Answer(member.components.get(reward.name)) for name, member in members.items()} | left_out
        for reward in rewards
    }
