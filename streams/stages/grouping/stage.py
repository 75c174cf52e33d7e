"""Scores become groups, per run: attempts at the same problem, compared with one another.

If the task is in `feedback_tasks`, its score waits `reward_grace_ms` before it joins a group. Other scores join at
once. A group closes when it is full or its window is over. A score without a usable value is dropped, with a reason,
before the mean is taken. Members share prompt tokens, tools and model. A score with another prompt, tools or model than
its explicit group is dropped as `group_mismatch`. Without an explicit group it starts another group.
"""

from collections.abc import Iterable, Iterator
from typing import TypeGuard

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.records.config import RunConfig
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.groups import ClosedGroup, Group, GroupClosedBy
from rollbus.schemas.records.trajectories import Score
from rollbus.schemas.topics import CLOSED_GROUPS, RUN_LOG, SCORES
from rollbus.streams.rewards.contract import computable
from rollbus.streams.stages.grouping.advantages import GroupFrame, group_id, make_group, make_single
from rollbus.streams.stages.grouping.state import (
    CLOSED_GROUP,
    DECIDED,
    OPEN_GROUP,
    SEPARATOR,
    WAITING_SCORE,
    Baseline,
    GroupingState,
    Mark,
    OpenGroup,
    ScoreRow,
    fingerprint,
    group_key,
)
from rollbus.streams.state.configured import RunStage
from rollbus.streams.state.stage import Incoming, Outgoing

_OWN_CODES = {
    DropReason.MISSING_EVENTS,
    DropReason.NO_TURNS,
    DropReason.TOO_SHORT,
    DropReason.NOT_TARGETED,
    DropReason.EXCLUDED,
    DropReason.TOO_LARGE,
}
"""Reasons of assembly that are drop codes themselves; any other is a detail of `untrainable`."""


class GroupingStage(RunStage[GroupingState]):
    """Groups the scores of one run; one instance serves all partitions."""

    configured_as = "grouping"
    input = SCORES

    def new_state(self) -> GroupingState:
        """Return the empty state of a partition."""
        return GroupingState(self._config)

    def step(self, state: GroupingState, incoming: Incoming) -> Iterable[Outgoing]:
        """Take in one score, tick or configuration."""
        state.ensure_rebuilt()
        if isinstance(incoming.record, Score):
            return self._admit(state, incoming.record, incoming.data)
        return self.step_control(state, incoming.record)

    def follow_config(self, state: GroupingState) -> Iterable[Outgoing]:
        """Derive the open groups again: another strategy compares other scores."""
        state.rebuild()
        return ()

    def _admit(self, state: GroupingState, score: Score, data: bytes) -> Iterator[Outgoing]:
        mark, row = state.marks.get(score.trajectory_id), state.scores.get(score.trajectory_id)
        if mark is not None:
            yield from self._count_late_revision(state, score, mark)
        elif row is not None:
            yield from self._replace_revision(state, row, score, data)
        elif score.revision:
            yield self._drop_revision(
                state, score, DropReason.ORPHANED_REWARD, "its first score was not seen or is forgotten"
            )
        elif refusal := _refusal(score, state.config.value):
            yield self._drop_score(state, score, *refusal)
        else:
            row = ScoreRow(data, state.clock.now_ms, state.order, record=score)
            state.order += 1
            state.scores.put(score.trajectory_id, row)
            grouping = state.config.value.grouping
            if score.task in grouping.feedback_tasks and grouping.reward_grace_ms:
                state.due.watch(WAITING_SCORE + score.trajectory_id)
            else:
                yield from self._join(state, score.trajectory_id, row)

    def _count_late_revision(self, state: GroupingState, score: Score, mark: Mark) -> Iterator[Outgoing]:
        if score.revision <= mark.revision:
            return
        state.marks.put(score.trajectory_id, Mark(mark.decided_ms, score.revision))
        reason = DropReason.EXCLUDED if score.excluded else DropReason.GROUP_CLOSED
        yield self._drop_revision(state, score, reason, "revised after its group had closed")

    def _replace_revision(self, state: GroupingState, row: ScoreRow, score: Score, data: bytes) -> Iterator[Outgoing]:
        """Replace an undecided score by a newer revision of it; InvalidRecordError if its group would change."""
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
            yield self._drop_score(state, score, DropReason.EXCLUDED, "")
        elif row.joined and not _is_comparable(score.value):
            yield self._drop_score(state, score, *_without_value(score))

    def _join(self, state: GroupingState, trajectory_id: str, row: ScoreRow) -> Iterator[Outgoing]:
        score, config = row.score(), state.config.value.grouping
        if not _is_comparable(score.value):
            yield self._drop_score(state, score, *_without_value(score))
            return
        if config.strategy == "baseline":
            yield self._close_single(state, score, score.value)
            return
        key = state.key_of(score)
        if refusal := _explicit_refusal(state, key, score):
            yield self._drop_score(state, score, *refusal)
            return
        row.joined_ms, row.joined = state.clock.now_ms, True
        state.scores.put(trajectory_id, row)
        group = state.groups.get(key)
        if group is None:
            group = state.groups[key] = OpenGroup()
        group.add(trajectory_id, row)
        if len(group.members) >= self._target_size(state, group):
            yield self._close(state, key, "full")
        elif len(group.members) == 1:
            state.due.watch(OPEN_GROUP + key)

    def pass_time(self, state: GroupingState) -> Iterator[Outgoing]:
        """Let waiting scores join, close groups whose window is over, and forget what is old."""
        now_ms = state.clock.now_ms
        for key in state.due.due(now_ms):
            deadline, name = state.deadline(key), key[1:]
            if deadline is None or deadline > now_ms:
                state.due.watch(key)  # the first members of a group may have left: the others' window began later
            elif key[0] == WAITING_SCORE:
                yield from self._join(state, name, state.scores.rows[name])
            elif key[0] == OPEN_GROUP:
                yield from self._end_window(state, name)
            elif key[0] == DECIDED:
                state.marks.delete(name)
            else:
                state.closed.delete(name)

    def _end_window(self, state: GroupingState, key: str) -> Iterator[Outgoing]:
        group, config = state.groups[key], state.config.value.grouping
        size = self._target_size(state, group)
        if len(group.members) >= min(config.min_group_size, size):
            yield self._close(state, key, "window")
            return
        scores = self._remove_group(state, key)
        ids = tuple(sorted(score.trajectory_id for score in scores))
        shared = key.partition(SEPARATOR)[0]
        detail = f"{shared} had {len(ids)} of {size} members after {config.window_ms} ms"
        yield self.drop(state, "group", group_id(self.run_id, shared, ids), DropReason.INCOMPLETE_GROUP, ids, detail)

    def _close(self, state: GroupingState, key: str, closed_by: GroupClosedBy) -> Outgoing:
        scores = self._remove_group(state, key)
        group = make_group(
            self._frame(state, group_key(scores[0], state.config.value.grouping.strategy), closed_by), scores
        )
        return self._send_group(state, group)

    def _close_single(self, state: GroupingState, score: Score, reward: float) -> Outgoing:
        """Compare a score with the running baseline of its example, or of its task without an example."""
        shared = f"example:{score.task}:{score.example_id}" if score.example_id is not None else f"task:{score.task}"
        baseline = state.baselines.get(shared, Baseline())
        state.baselines.put(shared, baseline.add(reward, state.config.value.grouping.baseline_decay))
        self._mark_decided(state, score)
        return self._send_group(state, make_single(self._frame(state, shared, "baseline"), score, baseline.mean()))

    def _send_group(self, state: GroupingState, group: Group) -> Outgoing:
        """Send a group to the curriculum, or first to the stage that judges it as a whole."""
        if state.config.value.grouping.rewards and group.closed_by != "baseline":
            return Outgoing(CLOSED_GROUPS, group.group_id, ClosedGroup(group=group))
        return Outgoing(RUN_LOG, self.run_id, group)

    def _remove_group(self, state: GroupingState, key: str) -> list[Score]:
        """Remove a group and decide its members; return their scores."""
        scores = [state.scores.rows[member].score() for member in state.groups.pop(key).members]
        for score in scores:
            self._mark_decided(state, score)
        if scores[0].group_id is not None:
            state.closed.put(key, state.clock.now_ms)
            state.due.watch(CLOSED_GROUP + key)
        return sorted(scores, key=lambda score: score.trajectory_id)

    def _mark_decided(self, state: GroupingState, score: Score) -> None:
        state.scores.delete(score.trajectory_id)
        state.marks.put(score.trajectory_id, Mark(state.clock.now_ms, score.revision))
        state.due.watch(DECIDED + score.trajectory_id)

    def _drop_score(self, state: GroupingState, score: Score, reason: DropReason, detail: str) -> Outgoing:
        """Drop a trajectory; it leaves its open group if it had joined one."""
        row = state.scores.get(score.trajectory_id)
        self._mark_decided(state, score)
        if row is not None and row.joined:
            state.remove(score.trajectory_id, state.key_of(score))
        return self.drop(state, "trajectory", score.trajectory_id, reason, (score.trajectory_id,), detail)

    def _drop_revision(self, state: GroupingState, score: Score, reason: DropReason, detail: str) -> Outgoing:
        """Count a revision that changes nothing: it came too late, or the first score of its trajectory is not known.

        It is dropped as an event; a trajectory that was seen is counted elsewhere.
        """
        unit_id = f"{score.trajectory_id}#{score.revision}"
        return self.drop(state, "event", unit_id, reason, (), detail)

    def _frame(self, state: GroupingState, shared: str, closed_by: GroupClosedBy) -> GroupFrame:
        config = state.config.value.grouping
        return GroupFrame(
            run_id=self.run_id,
            group_key=shared,
            strategy=config.strategy,
            advantage_kind="baseline" if closed_by == "baseline" else config.advantage,
            tolerance=config.signal_tolerance,
            closed_by=closed_by,
            closed_at_ms=state.clock.now_ms,
            config_hash=state.config.hash,
        )

    def _target_size(self, state: GroupingState, group: OpenGroup) -> int:
        first = state.scores.rows[group.first_member].score()
        declared = first.group_size if first.group_id is not None else None
        return declared or state.config.value.grouping.group_size


def _refusal(score: Score, config: RunConfig) -> tuple[DropReason, str] | None:
    """Return why a score can join no group of the run; None if it can."""
    if outside := _mismatch_with_filter(score, config):
        return DropReason.NOT_TARGETED, f"{outside} is not of this run"
    if score.excluded:
        return DropReason.EXCLUDED, ""
    reason = score.untrainable_reason or ("no_policy_version" if score.min_policy_version is None else None)
    if reason is not None and (reason in _OWN_CODES or not config.filter.without_tokens):
        return (DropReason(reason) if reason in _OWN_CODES else DropReason.UNTRAINABLE), reason
    limit = config.grouping.max_history_tokens
    if limit is not None and score.longest_history_tokens > limit:
        return DropReason.OVERLONG, f"{score.longest_history_tokens} tokens, {limit} are allowed"
    return None


def _mismatch_with_filter(score: Score, config: RunConfig) -> str | None:
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


def _is_comparable(value: float | None) -> TypeGuard[float]:
    """Say whether the value can be compared."""
    return value is not None and computable(value)


def _without_value(score: Score) -> tuple[DropReason, str]:
    if score.outcome == "failed" or score.value is not None:
        return DropReason.SCORE_FAILED, score.error or f"the score is {score.value}"
    return DropReason.SCORE_MISSING, "no reward came in time"


def _explicit_refusal(state: GroupingState, key: str, score: Score) -> tuple[DropReason, str] | None:
    """Return why an explicit group does not accept a score."""
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
