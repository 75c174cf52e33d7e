"""Scores become groups, per run: attempts that are compared, or one that is held against what is expected of it.

A score without a reward waits `reward_wait_ms` for one; a score with a reward waits as long as rewards of its task
usually change (`habits.py`). What came is then placed. In a named group, and under `by_example` and `by_prompt`,
attempts are compared when their group is full or its window is over. Under `single` each attempt goes on at once, held
against what its example and its task have earned (`tracker.py`). `adaptive`, the default, does the first where attempts
at an example usually come several at a time, and the second where they come once. A task's first attempts have nothing
to be held against, so they wait until their rewards differ.

A score that cannot be compared is dropped, with a reason, before the mean is taken. Members of a group share their
example and their model; that their prompts are equal is asked only with `same_prompt`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.ids import SEPARATOR
from rollbus.schemas.records.config import RunConfig
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.groups import ClosedGroup, GroupClosedBy
from rollbus.schemas.records.trajectories import Score
from rollbus.schemas.topics import CLOSED_GROUPS, RUN_LOG, SCORES
from rollbus.streams.stages.grouping.advantages import (
    GroupFrame,
    expect_of_others,
    group_id,
    make_group,
    make_single,
)
from rollbus.streams.stages.grouping.keys import (
    BEGINNERS,
    fingerprint,
    open_group_key,
    problem_key,
    task_key,
)
from rollbus.streams.stages.grouping.refusals import (
    UNFINISHED,
    is_comparable,
    is_unfinished,
    mismatch_of_rewards,
    mismatch_with_first,
    refusal_of,
    without_value,
)
from rollbus.streams.stages.grouping.rows import Mark, ScoreRow, with_place_of_hints
from rollbus.streams.stages.grouping.state import (
    CLOSED_GROUP,
    DECIDED,
    MOST_BEGINNERS,
    OPEN_GROUP,
    WAITING_SCORE,
    GroupingState,
    OpenGroup,
)
from rollbus.streams.stages.grouping.tracker import Expectation
from rollbus.streams.stages.grouping.turn_credit import TurnCredit, divide, expected_of_others
from rollbus.streams.state.configured_stage import RunStage
from rollbus.streams.state.stage import Incoming, Outgoing

MOST_WAITING = 50_000
"""Scores per partition that wait for rewards, about 1 kB each; beyond it the oldest goes as if its wait were over."""


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
            return self._admit(state, *with_place_of_hints(incoming))
        return self.step_control(state, incoming.record)

    # Arrival

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
        elif refusal := refusal_of(score, state.config.value):
            yield self._drop_score(state, score, *refusal)
        else:
            yield from self._admit_first(state, score, data)

    def _admit_first(self, state: GroupingState, score: Score, data: bytes) -> Iterator[Outgoing]:
        row = ScoreRow(data, state.clock.now_ms, state.order, grace_ms=state.grace_ms(score))
        state.order += 1
        self._learn_reward_time(state, score, before=None)
        if not state.wait_ms(row, score):
            yield from self._join(state, row, score)
            return
        state.scores.put(score.trajectory_id, row)
        state.waiting[score.trajectory_id] = None
        state.due.watch(WAITING_SCORE + score.trajectory_id)
        if len(state.waiting) > MOST_WAITING:
            oldest = state.scores.rows[next(iter(state.waiting))]
            yield from self._join(state, oldest, oldest.score(), f"{MOST_WAITING} newer scores wait, too")

    def _count_late_revision(self, state: GroupingState, score: Score, mark: Mark) -> Iterator[Outgoing]:
        if score.revision <= mark.revision:
            return
        if not score.excluded and refusal_of(score, state.config.value):
            return  # whatever it is worth, this run cannot use it, as the drop of its first revision says
        self._learn_reward_time(state, score, mark.value, mark.arrived_ms)
        state.marks.put(score.trajectory_id, replace(mark, revision=score.revision, value=score.value))
        if score.value is None and mark.value is None and not score.excluded:
            return  # it said nothing before and says nothing now: no reward came too late
        reason = DropReason.EXCLUDED if score.excluded else DropReason.GROUP_CLOSED
        waited_ms = mark.decided_ms - state.clock.since(mark.arrived_ms)
        detail = f"revised {state.clock.now_ms - mark.decided_ms} ms after it was decided; it had waited {waited_ms} ms"
        yield self._drop_revision(state, score, reason, detail)

    def _replace_revision(self, state: GroupingState, row: ScoreRow, score: Score, data: bytes) -> Iterator[Outgoing]:
        """Replace an undecided score by a newer revision of it; InvalidRecordError if its group would change."""
        before = row.score()
        if score.revision <= before.revision:
            return
        if fingerprint(score) != fingerprint(before):
            raise InvalidRecordError(
                f"revision {score.revision} of the score of {score.trajectory_id} belongs to another group than those "
                "before: a revision may change what a trajectory is worth, and nothing that members share"
            )
        self._learn_reward_time(state, score, before.value, row.arrived_ms)
        row.data, row.record = data, score if row.group else None
        state.scores.put(score.trajectory_id, row)
        if score.excluded:
            yield self._drop_score(state, score, DropReason.EXCLUDED, "")
        elif row.group and not is_comparable(score.value):
            yield self._drop_score(state, score, *without_value(score))
        elif row.group:
            state.watch_group(row.group)
        elif state.clock.since(row.arrived_ms) + state.wait_ms(row, score) <= state.clock.now_ms:
            yield from self._join(state, row, score)
        else:
            state.due.watch(WAITING_SCORE + score.trajectory_id)

    def _learn_reward_time(
        self, state: GroupingState, score: Score, before: float | None, arrived_ms: int | None = None
    ) -> None:
        """Count a score's first value, or a change of it so long after the score had come."""
        if before is None and score.value is not None:
            state.learn_habit(score, state.habit_of(score).with_rewarded())
        elif before is not None and score.value != before and arrived_ms is not None:
            delay_ms = state.clock.now_ms - state.clock.since(arrived_ms)
            state.learn_habit(score, state.habit_of(score).with_late_change(delay_ms))

    # Placing

    def _join(self, state: GroupingState, row: ScoreRow, score: Score, why: str = "") -> Iterator[Outgoing]:
        """Place a score whose waiting is over."""
        if is_unfinished(score, state.config.value.filter.unfinished):
            yield self._drop_score(state, score, DropReason.UNFINISHED, UNFINISHED)
            return
        if not is_comparable(score.value):
            reason, detail = without_value(score, state.clock.now_ms - state.clock.since(row.arrived_ms))
            yield self._drop_score(state, score, reason, "; ".join(filter(None, (detail, why))))
            return
        key = self._place(state, score)
        if key is None:
            self._mark_decided(state, score)
            yield self._hold_against(state, score, state.expect(score), state.expect_of_turn(score))
            return
        if refusal := _refusal_of_group(state, key, score):
            yield self._drop_score(state, score, *refusal)
            return
        row.joined_ms = state.clock.now_ms
        group = state.put_in_group(score, row, key)
        state.watch_group(key)
        if len(group.members) >= self._target_size(state, key, group):
            yield from self._close(state, key, "full")

    def _place(self, state: GroupingState, score: Score) -> str | None:
        """Return the key of the group that a score joins; None for one that goes on alone."""
        config, strategy = state.config.value, state.config.value.grouping.strategy
        key, beginners = open_group_key(score, strategy), task_key(score)
        is_alone = score.group_id is not None and score.group_size == 1
        is_one_of_several = score.group_id is not None and not is_alone
        if strategy in ("by_example", "by_prompt") or (strategy == "adaptive" and is_one_of_several):
            return key
        may_have_others = not is_alone or bool(config.grouping.rewards)
        if strategy == "adaptive" and may_have_others and self._comes_with_others(state, score, key, config):
            self._gather(state, beginners, key)
            return key
        return beginners if beginners in state.groups or state.expect(score) is None else None

    def _comes_with_others(self, state: GroupingState, score: Score, key: str, config: RunConfig) -> bool:
        """Say whether an attempt is compared with others at its example, and count whether it came with any."""
        seen_ms, is_open = state.last_seen_ms(score), key in state.groups
        again = is_open or (
            seen_ms is not None and state.clock.now_ms < state.clock.since(seen_ms) + config.grouping.window_ms
        )
        again = again or any(open_group_key(other, "adaptive") == key for other in state.scores_in(task_key(score)))
        habit = state.habit_of(score).with_attempt(again=again)
        state.learn_habit(score, habit)
        return is_open or habit.comes_again or config.resample is not None or bool(config.grouping.rewards)

    def _gather(self, state: GroupingState, beginners: str, key: str) -> None:
        """Move a task's first attempts at an example to the group of that example."""
        for other in list(state.scores_in(beginners)):
            if open_group_key(other, "adaptive") == key:
                state.remove(other.trajectory_id, beginners)
                state.put_in_group(other, state.scores.rows[other.trajectory_id], key)
        state.watch_group(beginners)

    # Closing

    def pass_time(self, state: GroupingState) -> Iterator[Outgoing]:
        """Let waiting scores join, close groups whose window is over, and forget what is old."""
        now_ms = state.clock.now_ms
        for key in state.due.due(now_ms):
            deadline, name = state.deadline(key), key[1:]
            if deadline is None or deadline > now_ms:
                state.due.watch(key)  # the first members of a group may have left: the others' window began later
            elif key[0] == WAITING_SCORE:
                row = state.scores.rows[name]
                yield from self._join(state, row, row.score())
            elif key[0] == OPEN_GROUP:
                yield from self._end_window(state, name)
            elif key[0] == DECIDED:
                state.marks.delete(name)
            else:
                state.closed.delete(name)

    def _end_window(self, state: GroupingState, key: str) -> Iterator[Outgoing]:
        group, config = state.groups[key], state.config.value.grouping
        size = self._target_size(state, key, group)
        if key.startswith(BEGINNERS) or len(group.members) >= min(config.min_group_size, size):
            yield from self._close(state, key, "window")
        elif config.strategy == "adaptive" and not config.rewards:
            for score in self._remove_group(state, key):
                yield self._hold_against(state, score, state.expect(score), state.expect_of_turn(score))
        else:
            scores = self._remove_group(state, key)
            what = f"had {len(scores)} of {size} members after {config.window_ms} ms"
            yield self._drop_group(state, key, scores, DropReason.INCOMPLETE_GROUP, what)

    def _close(self, state: GroupingState, key: str, closed_by: GroupClosedBy) -> Iterator[Outgoing]:
        scores = self._remove_group(state, key)
        if mismatch := mismatch_of_rewards(scores):
            yield self._drop_group(state, key, scores, DropReason.GROUP_MISMATCH, mismatch)
            return
        if key.startswith(BEGINNERS):
            yield from self._hold_against_one_another(state, scores)
            return
        if _learns(state):
            for score in scores:
                state.learn_reward(score)
        strategy = state.config.value.grouping.strategy
        group = make_group(self._frame(state, problem_key(scores[0], strategy), closed_by), scores)
        if state.config.value.grouping.rewards:  # the stage that judges it as a whole comes first
            yield Outgoing(CLOSED_GROUPS, group.group_id, ClosedGroup(group=group))
        else:
            yield Outgoing(RUN_LOG, self.run_id, group)

    def _hold_against_one_another(self, state: GroupingState, scores: list[Score]) -> Iterator[Outgoing]:
        """Hold each of a task's first attempts against the others, and the turns of each against theirs."""
        by_turn = state.config.value.grouping.credit == "turn"
        turn_credits = [divide(score) if by_turn else TurnCredit(score.value or 0.0) for score in scores]
        expectations = expect_of_others([credit.rest for credit in turn_credits]) if len(scores) > 1 else [None]
        for score, expected, of_turn in zip(scores, expectations, expected_of_others(turn_credits), strict=True):
            yield self._hold_against(state, score, expected, of_turn)

    def _hold_against(
        self, state: GroupingState, score: Score, expected: Expectation | None, of_turn: float | None
    ) -> Outgoing:
        """Hold a score against what was expected of it, and learn from it."""
        state.learn_reward(score)
        frame = self._frame(state, problem_key(score, state.config.value.grouping.strategy), "single")
        return Outgoing(RUN_LOG, self.run_id, make_single(frame, score, expected, of_turn))

    def _remove_group(self, state: GroupingState, key: str) -> list[Score]:
        """Remove a group and decide its members; return their scores by trajectory id."""
        scores = list(state.scores_in(key))
        del state.groups[key]
        for score in scores:
            self._mark_decided(state, score)
        if scores[0].group_id is not None:
            state.closed.put(key, state.clock.now_ms)
            state.due.watch(CLOSED_GROUP + key)
        return scores

    def _mark_decided(self, state: GroupingState, score: Score) -> None:
        row = state.scores.get(score.trajectory_id)
        arrived_ms = row.arrived_ms if row else state.clock.now_ms
        state.scores.delete(score.trajectory_id)
        state.waiting.pop(score.trajectory_id, None)
        mark = Mark(state.clock.now_ms, score.revision, arrived_ms, score.value)
        state.marks.put(score.trajectory_id, mark)
        state.due.watch(DECIDED + score.trajectory_id)

    def _drop_score(self, state: GroupingState, score: Score, reason: DropReason, detail: str) -> Outgoing:
        """Drop a trajectory; it leaves its open group if it had joined one."""
        row = state.scores.get(score.trajectory_id)
        if row is not None and row.group:
            state.remove(score.trajectory_id, row.group)
            state.watch_group(row.group)
        self._mark_decided(state, score)
        return self.drop(state, "trajectory", score.trajectory_id, reason, (score.trajectory_id,), detail)

    def _drop_group(
        self, state: GroupingState, key: str, scores: list[Score], reason: DropReason, what: str
    ) -> Outgoing:
        """Drop the scores of a group that was open, in the order of `_remove_group`; `what` says of the group why."""
        shared = key.partition(SEPARATOR)[0]
        ids = tuple(score.trajectory_id for score in scores)
        return self.drop(state, "group", group_id(self.run_id, shared, ids), reason, ids, f"{shared} {what}")

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
            advantage_kind="expected" if closed_by == "single" else config.advantage,
            tolerance=state.config.value.signal_tolerance,
            closed_by=closed_by,
            closed_at_ms=state.clock.now_ms,
            config_hash=state.config.hash,
            turn_discount=config.turn_discount if config.credit == "turn" else None,
        )

    def _target_size(self, state: GroupingState, key: str, group: OpenGroup) -> int:
        if key.startswith(BEGINNERS):
            return MOST_BEGINNERS
        first = state.scores.rows[group.first_member].score()
        declared = first.group_size if first.group_id is not None else None
        return declared or state.config.value.grouping.group_size


def _learns(state: GroupingState) -> bool:
    """Say whether rewards are remembered: attempts may be held against them."""
    return state.config.value.grouping.strategy in ("adaptive", "single")


def _refusal_of_group(state: GroupingState, key: str, score: Score) -> tuple[DropReason, str] | None:
    """Return why a group does not accept a score."""
    if score.group_id is not None and state.closed.get(key) is not None:
        return DropReason.GROUP_CLOSED, key
    group = state.groups.get(key)
    if group is None or key.startswith(BEGINNERS):
        return None
    first = state.scores.rows[group.first_member].score()
    mismatch = mismatch_with_first(score, first, same_prompt=state.config.value.grouping.same_prompt)
    return (DropReason.GROUP_MISMATCH, f"{key.partition(SEPARATOR)[0]} {mismatch}") if mismatch else None
