"""Scores to groups, per run: attempts at the same problem, compared with one another.

Every score of a task that expects feedback waits the same grace, then joins; a group closes when full or when its
window is over. What cannot be compared leaves before the mean, with a reason. Members share prompt tokens, tools and
model: without an explicit group, others make groups of their own; in one, they are mismatches.
"""

from collections.abc import Iterator
from typing import Any, TypeGuard

from rollbus.schemas.config import RunConfig
from rollbus.schemas.control import ConfigApplied, Tick
from rollbus.schemas.drops import Drop, DropReason
from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.groups import ClosedGroup, Group, GroupClosedBy
from rollbus.schemas.topics import CLOSED_GROUPS, DROPS, RUN_LOG, SCORES
from rollbus.schemas.trajectories import Score
from rollbus.streams.grouping_maths import GroupFrame, group_id, make_group, make_single
from rollbus.streams.grouping_state import (
    SEPARATOR,
    Baseline,
    GroupingState,
    Mark,
    OpenGroup,
    ScoreRow,
    fingerprint,
    group_key,
)
from rollbus.streams.rewards.contract import computable
from rollbus.streams.stage import Incoming, Outgoing
from rollbus.streams.stage_state import misplaced

_OWN_CODES = {
    DropReason.MISSING_EVENTS,
    DropReason.NO_TURNS,
    DropReason.TOO_SHORT,
    DropReason.NOT_TARGETED,
    DropReason.EXCLUDED,
}
"""Reasons of assembly that are drop codes themselves; any other is a detail of `untrainable`."""


class GroupingStage:
    """Groups the scores of one run; one instance serves all partitions."""

    input = SCORES

    def __init__(self, config: RunConfig) -> None:
        self.name = f"grouping.{config.run_id}"
        self._config, self._run_id = config, config.run_id

    def new_state(self) -> GroupingState:
        """Return the empty state of a partition."""
        return GroupingState(self._config)

    def step(self, state: GroupingState, incoming: Incoming) -> Iterator[Outgoing]:
        """Take in one score, tick or configuration."""
        state.fresh()
        whole = state.whole(incoming)
        if whole is None:
            return
        record = whole.record
        if isinstance(record, Score):
            yield from self._admit(state, record, whole.data)
        elif isinstance(record, Tick):
            if state.clock.observe(record):
                yield from self._pass_time(state)
        elif isinstance(record, ConfigApplied):
            if record.stage == "grouping" and record.run_id == self._run_id:
                state.config.apply(record)
                state.rebuild()
        else:
            raise misplaced(record, self.input)

    def _admit(self, state: GroupingState, score: Score, data: bytes) -> Iterator[Outgoing]:
        mark, row = state.marks.get(score.trajectory_id), state.scores.get(score.trajectory_id)
        if mark is not None:
            yield from self._too_late(state, score, mark)
        elif row is not None:
            yield from self._replace(state, row, score, data)
        elif score.revision:
            yield self._event(state, score, DropReason.ORPHANED_REWARD, "its first score was not seen or is forgotten")
        elif refusal := _refusal(score, state.config.value):
            yield self._decide(state, score, *refusal)
        else:
            row = ScoreRow(data, state.clock.now_ms, state.order, record=score)
            state.order += 1
            state.scores.put(score.trajectory_id, row)
            grouping = state.config.value.grouping
            if score.task in grouping.feedback_tasks and grouping.reward_grace_ms:
                state.due.watch("w" + score.trajectory_id)
            else:
                yield from self._join(state, score.trajectory_id, row)

    def _too_late(self, state: GroupingState, score: Score, mark: Mark) -> Iterator[Outgoing]:
        if score.revision <= mark.revision:
            return
        state.marks.put(score.trajectory_id, Mark(mark.decided_ms, score.revision))
        reason = DropReason.EXCLUDED if score.excluded else DropReason.GROUP_CLOSED
        yield self._event(state, score, reason, "revised after its group had closed")

    def _replace(self, state: GroupingState, row: ScoreRow, score: Score, data: bytes) -> Iterator[Outgoing]:
        """Take the newer revision of a score that has no fate yet; InvalidRecordError where its group would change."""
        if score.revision <= row.score().revision:
            return
        if state.place_of(score) != state.place_of(row.score()):
            raise InvalidRecordError(
                f"revision {score.revision} of the score of {score.trajectory_id} belongs to another group than those "
                "before: a revision may change what a trajectory is worth, and nothing that members share"
            )
        row.data, row.record = data, score
        state.scores.put(score.trajectory_id, row)
        if score.excluded:
            yield self._decide(state, score, DropReason.EXCLUDED, "")
        elif row.joined and not _usable(score.value):
            yield self._decide(state, score, *_without_value(score))

    def _join(self, state: GroupingState, trajectory_id: str, row: ScoreRow) -> Iterator[Outgoing]:
        score, config = row.score(), state.config.value.grouping
        if not _usable(score.value):
            yield self._decide(state, score, *_without_value(score))
            return
        if config.strategy == "baseline":
            yield self._alone(state, score, score.value)
            return
        key = state.key_of(score)
        if refusal := _explicit_refusal(state, key, score):
            yield self._decide(state, score, *refusal)
            return
        row.joined_ms, row.joined = state.clock.now_ms, True
        state.scores.put(trajectory_id, row)
        group = state.groups.get(key)
        if group is None:
            group = state.groups[key] = OpenGroup()
        group.add(trajectory_id, row)
        if len(group.members) >= self._size(state, group):
            yield from self._close_if_full(state, key)
        elif len(group.members) == 1:
            state.due.watch("g" + key)

    def _pass_time(self, state: GroupingState) -> Iterator[Outgoing]:
        now_ms = state.clock.now_ms
        for key in state.due.due(now_ms):
            deadline, name = state.deadline(key), key[1:]
            if deadline is None or deadline > now_ms:
                state.due.watch(key)
            elif key[0] == "w":
                yield from self._join(state, name, state.scores.rows[name])
            elif key[0] == "g":
                yield from self._window_over(state, name)
            elif key[0] == "m":
                state.marks.delete(name)
            else:
                state.closed.delete(name)
        for digest in state.lost_parts():
            yield self._drop(state, "event", digest, DropReason.MISSING_CHUNK, (), "parts of a large score never came")

    def _close_if_full(self, state: GroupingState, key: str) -> Iterator[Outgoing]:
        yield from self._weed(state, key)
        if (group := state.groups.get(key)) and len(group.members) >= self._size(state, group):
            yield self._close(state, key, "full")

    def _weed(self, state: GroupingState, key: str) -> Iterator[Outgoing]:
        """Drop the members of a group that cannot be compared: an older release let them join."""
        scores = [state.scores.rows[member].score() for member in sorted(state.groups[key].members)]
        for score in scores:
            if not _usable(score.value):
                yield self._decide(state, score, *_without_value(score))
                state.due.watch("g" + key)  # of those that are left

    def _window_over(self, state: GroupingState, key: str) -> Iterator[Outgoing]:
        yield from self._weed(state, key)
        deadline = state.deadline("g" + key)
        if deadline is None or deadline > state.clock.now_ms:
            return  # its first members have left; the window of the others began later
        group, config = state.groups[key], state.config.value.grouping
        size = self._size(state, group)
        if len(group.members) >= min(config.min_group_size, size):
            yield self._close(state, key, "window")
            return
        scores = self._take(state, key)
        ids = tuple(sorted(score.trajectory_id for score in scores))
        shared = key.partition(SEPARATOR)[0]
        detail = f"{shared} had {len(ids)} of {size} members after {config.window_ms} ms"
        yield self._drop(state, "group", group_id(self._run_id, shared, ids), DropReason.INCOMPLETE_GROUP, ids, detail)

    def _close(self, state: GroupingState, key: str, closed_by: GroupClosedBy) -> Outgoing:
        scores = self._take(state, key)
        group = make_group(self._frame(state, group_key(scores[0], self._strategy(state)), closed_by), scores)
        return self._emit(state, group)

    def _alone(self, state: GroupingState, score: Score, reward: float) -> Outgoing:
        """Hold a score against the running baseline of its example, or of its task without one."""
        shared = f"example:{score.task}:{score.example_id}" if score.example_id is not None else f"task:{score.task}"
        baseline = state.baselines.get(shared, Baseline())
        if not computable(baseline.mean() or 0.0):
            baseline = Baseline()  # of an older release
        state.baselines.put(shared, baseline.add(reward, state.config.value.grouping.baseline_decay))
        self._settle(state, score)
        return self._emit(state, make_single(self._frame(state, shared, "baseline"), score, baseline.mean()))

    def _emit(self, state: GroupingState, group: Group) -> Outgoing:
        """Send a group to the curriculum, or first to those who judge it as a whole."""
        if state.config.value.grouping.rewards and group.closed_by != "baseline":
            return Outgoing(CLOSED_GROUPS, group.group_id, ClosedGroup(group=group))
        return Outgoing(RUN_LOG, self._run_id, group)

    def _take(self, state: GroupingState, key: str) -> list[Score]:
        """Remove a group with its members, whose fate this decides; return their scores."""
        scores = [state.scores.rows[member].score() for member in state.groups.pop(key).members]
        for score in scores:
            self._settle(state, score)
        if scores[0].group_id is not None:
            state.closed.put(key, state.clock.now_ms)
            state.due.watch("c" + key)
        return sorted(scores, key=lambda score: score.trajectory_id)

    def _settle(self, state: GroupingState, score: Score) -> None:
        state.scores.delete(score.trajectory_id)
        state.marks.put(score.trajectory_id, Mark(state.clock.now_ms, score.revision))
        state.due.watch("m" + score.trajectory_id)

    def _decide(self, state: GroupingState, score: Score, reason: DropReason, detail: str) -> Outgoing:
        """Drop a trajectory; it leaves its open group if it had joined one."""
        row = state.scores.get(score.trajectory_id)
        self._settle(state, score)
        if row is not None and row.joined:
            state.remove(score.trajectory_id, state.key_of(score))
        return self._drop(state, "trajectory", score.trajectory_id, reason, (score.trajectory_id,), detail)

    def _event(self, state: GroupingState, score: Score, reason: DropReason, detail: str) -> Outgoing:
        """Count a revision that changes nothing any more; the trajectory's fate is another matter."""
        unit_id = f"{score.trajectory_id}#{score.revision}"
        return self._drop(state, "event", unit_id, reason, (), detail)

    def _drop(
        self, state: GroupingState, unit: Any, unit_id: str, reason: DropReason, ids: tuple[str, ...], detail: str
    ) -> Outgoing:
        drop = Drop(
            unit=unit,
            unit_id=unit_id,
            reason=reason.value,
            stage="grouping",
            run_id=self._run_id,
            trajectory_ids=ids,
            detail=detail,
            dropped_at_ms=state.clock.now_ms,
        )
        return Outgoing(DROPS, unit_id, drop)

    def _frame(self, state: GroupingState, shared: str, closed_by: GroupClosedBy) -> GroupFrame:
        config = state.config.value.grouping
        return GroupFrame(
            run_id=self._run_id,
            group_key=shared,
            strategy=config.strategy,
            advantage_kind="baseline" if closed_by == "baseline" else config.advantage,
            tolerance=config.signal_tolerance,
            closed_by=closed_by,
            closed_at_ms=state.clock.now_ms,
            config_hash=state.config.hash,
        )

    def _strategy(self, state: GroupingState) -> str:
        return state.config.value.grouping.strategy

    def _size(self, state: GroupingState, group: OpenGroup) -> int:
        first = state.scores.rows[group.first_member].score()
        declared = first.group_size if first.group_id is not None else None
        return declared or state.config.value.grouping.group_size


def _refusal(score: Score, config: RunConfig) -> tuple[DropReason, str] | None:
    """Say why a score can join no group of the run; None where it can."""
    if outside := _outside(score, config):
        return DropReason.NOT_TARGETED, f"{outside} is not of this run"
    if score.excluded:
        return DropReason.EXCLUDED, ""
    if not score.trainable or score.min_policy_version is None:
        reason = score.untrainable_reason or "no_policy_version"
        return (DropReason(reason) if reason in _OWN_CODES else DropReason.UNTRAINABLE), reason
    limit = config.grouping.max_history_tokens
    if limit is not None and score.longest_history_tokens > limit:
        return DropReason.OVERLONG, f"{score.longest_history_tokens} tokens, {limit} are allowed"
    return None


def _outside(score: Score, config: RunConfig) -> str | None:
    """Name what keeps a score out of the run's filter; the model is the run's own unless the filter names others."""
    chosen = config.filter
    if chosen.tasks and score.task not in chosen.tasks:
        return f"task {score.task!r}"
    if chosen.agents and score.agent not in chosen.agents:
        return f"agent {score.agent!r}"
    if score.model and score.model not in (chosen.models or (config.model,)):
        return f"model {score.model!r}"
    other = [name for name, value in sorted(chosen.labels.items()) if score.labels.get(name) != value]
    return f"label {other[0]!r}" if other else None


def _usable(value: float | None) -> TypeGuard[float]:
    """Say whether there is a number that can be compared; an older release let larger ones through."""
    return value is not None and computable(value)


def _without_value(score: Score) -> tuple[DropReason, str]:
    if score.outcome == "failed" or score.value is not None:
        return DropReason.SCORE_FAILED, score.error or f"the score is {score.value}"
    return DropReason.SCORE_MISSING, "no reward came in time"


def _explicit_refusal(state: GroupingState, key: str, score: Score) -> tuple[DropReason, str] | None:
    """Say why an explicit group does not take a score."""
    if score.group_id is None:
        return None
    if state.closed.get(key) is not None:
        return DropReason.GROUP_CLOSED, key
    group = state.groups.get(key)
    if group is None:
        return None
    first = state.scores.rows[group.first_member].score()
    if fingerprint(first) != fingerprint(score):
        return DropReason.GROUP_MISMATCH, f"{key} began with another prompt, tools or model"
    return None
