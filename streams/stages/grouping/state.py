"""What grouping remembers: one row per score that is not decided yet, and a small mark per decided one.

Open groups and the order of waiting scores are indexes over the scores' rows. Marks stay for two days, longer than
revisions may come. What was earned stays for the examples used last, and a task's habits for the tasks used last.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from rollbus.schemas.records.config import RunConfig
from rollbus.schemas.records.trajectories import Score
from rollbus.streams.stages.grouping.habits import Habit
from rollbus.streams.stages.grouping.keys import BEGINNERS, example_key, level_keys, task_key
from rollbus.streams.stages.grouping.refusals import is_unfinished
from rollbus.streams.stages.grouping.rows import HABITS, LEVELS, MARKS, SCORES, Mark, ScoreRow
from rollbus.streams.stages.grouping.tracker import Expectation, Level, expectation
from rollbus.streams.stages.grouping.turn_credit import divide
from rollbus.streams.state.recent_keys import Recent
from rollbus.streams.state.rows import INT
from rollbus.streams.state.stage_state import REMEMBER_MS, StageState, keys_by_kind
from rollbus.streams.state.table import Table

WAITING_SCORE, OPEN_GROUP, DECIDED, CLOSED_GROUP = "w", "g", "m", "c"
"""First letters of the keys under which `due` watches these."""
TURN = "turn:"
"""Begins the keys under which is kept what turns have earned."""
MOST_BEGINNERS = 64
"""First attempts of a task that wait for one another at most."""
_NO_HABIT, _NOTHING = Habit(), Level()


@dataclass(slots=True)
class OpenGroup:
    """Index over the rows of one group's members."""

    members: set[str] = field(default_factory=set)
    first_ms: int = 0
    first_order: int = -1
    first_member: str = ""
    """The member with which the others must agree."""
    last_ms: int = 0
    """Stream time when the last one's score came."""

    def add(self, trajectory_id: str, row: ScoreRow) -> None:
        """Take in a member."""
        if not self.members or (row.joined_ms, row.order) < (self.first_ms, self.first_order):
            self.first_ms, self.first_order, self.first_member = row.joined_ms, row.order, trajectory_id
        self.last_ms = max(self.last_ms, row.arrived_ms)
        self.members.add(trajectory_id)


class GroupingState(StageState[RunConfig]):
    """Undecided scores, open groups over them, marks of decided scores, what was earned, and tasks' habits."""

    def __init__(self, config: RunConfig) -> None:
        self.scores: Table[ScoreRow] = Table("score", SCORES)
        self.marks: Table[Mark] = Table("mark", MARKS)
        self.closed: Table[int] = Table("closed", INT)
        """Explicit groups that have closed, and when."""
        self.levels: Recent[Level] = Recent("level", LEVELS)
        """What was earned, by example, by cell of openings alike and by task, each with its model."""
        self.habits: Recent[Habit] = Recent("habit", HABITS)
        """By task and model."""
        super().__init__(config, self.scores, self.marks, self.closed, self.levels.table, self.habits.table)
        self.groups: dict[str, OpenGroup] = {}
        self.waiting: OrderedDict[str, None] = OrderedDict()
        """Scores that wait for rewards, the oldest first."""
        self.order = 0

    def rebuild(self) -> None:
        """Derive the open groups and the order of waiting from the scores' rows, and the order of use."""
        self.groups, self.waiting = {}, OrderedDict()
        self.levels.rebuild()
        self.habits.rebuild()
        for trajectory_id, row in sorted(self.scores.rows.items(), key=lambda item: item[1].order):
            if row.group:
                self.groups.setdefault(row.group, OpenGroup()).add(trajectory_id, row)
            else:
                self.waiting[trajectory_id] = None
        self.order = 1 + max((row.order for row in self.scores.rows.values()), default=0)
        super().rebuild()

    @property
    def forgotten(self) -> int:
        """How many examples and tasks were forgotten to make room for others."""
        return self.levels.forgotten + self.habits.forgotten

    def put_in_group(self, score: Score, row: ScoreRow, key: str) -> OpenGroup:
        """Put a score into the open group of a key, which begins with it if there is none."""
        row.group, row.record = key, score
        self.scores.put(score.trajectory_id, row)
        self.waiting.pop(score.trajectory_id, None)
        group = self.groups.setdefault(key, OpenGroup())
        group.add(score.trajectory_id, row)
        return group

    def remove(self, trajectory_id: str, key: str) -> None:
        """Take a member out of its open group; the group goes with its last one."""
        other_members = self.groups.pop(key).members - {trajectory_id}
        for member in other_members:
            self.groups.setdefault(key, OpenGroup()).add(member, self.scores.rows[member])

    def scores_in(self, key: str) -> Iterator[Score]:
        """Yield the scores of an open group's members by trajectory id; none if there is no such group."""
        group = self.groups.get(key)
        return (self.scores.rows[member].score() for member in (sorted(group.members) if group else ()))

    # What is learned

    def expect(self, score: Score) -> Expectation | None:
        """Return the reward that an attempt is expected to earn; None if nothing is known of its task."""
        levels = (
            (breadth, [self.levels.find(key) or _NOTHING for key in keys])
            for breadth, keys in level_keys(score, self.config.value.grouping.similar_by)
        )
        return expectation(levels, score.max_policy_version or 0)

    def expect_of_turn(self, score: Score) -> float | None:
        """Return what a rewarded turn of an attempt is expected to earn; None if nothing is known of its task."""
        levels = (
            (breadth, [self.levels.find(TURN + key) or _NOTHING for key in keys])
            for breadth, keys in level_keys(score, self.config.value.grouping.similar_by)
        )
        turn_expectation = expectation(levels, score.max_policy_version or 0)
        return None if turn_expectation is None else turn_expectation.value

    def learn_reward(self, score: Score) -> None:
        """Add a reward to what its example, openings like its own and its task have earned, and those of its turns."""
        if self.config.value.grouping.credit == "trajectory":
            self._learn_value(score, score.value or 0.0)
            return
        credit = divide(score)
        self._learn_value(score, credit.rest)
        for value in credit.earned.values():
            self._learn_value(score, value, TURN)

    def _learn_value(self, score: Score, value: float, prefix: str = "") -> None:
        for _, keys in level_keys(score, self.config.value.grouping.similar_by):
            for key in keys:
                level = self.levels.find(prefix + key) or _NOTHING
                self.levels.put(prefix + key, level.add(value, score.max_policy_version or 0, self.clock.now_ms))

    def last_seen_ms(self, score: Score) -> int | None:
        """Return when a reward of its example was last learned; None if none is known."""
        level = self.levels.find(example_key(score))
        return level.seen_ms if level else None

    def habit_of(self, score: Score) -> Habit:
        """Return how the attempts at a score's task come."""
        return self.habits.find(task_key(score)) or _NO_HABIT

    def learn_habit(self, score: Score, habit: Habit) -> None:
        """Remember how a task's attempts come; its first attempts may have to wait differently."""
        self.habits.put(task_key(score), habit)
        self.watch_group(task_key(score))

    def watch_group(self, key: str) -> None:
        """Look at an open group's end again, which may be earlier than before."""
        if key in self.groups:
            self.due.watch(OPEN_GROUP + key)

    # Deadlines

    def waiting_keys(self) -> Iterable[str]:
        """Return waiting scores, open groups, marks and closed groups."""
        return keys_by_kind(
            {
                WAITING_SCORE: self.waiting,
                OPEN_GROUP: self.groups,
                DECIDED: self.marks.rows,
                CLOSED_GROUP: self.closed.rows,
            }
        )

    def deadline(self, key: str) -> int | None:
        """Return when something is due: a waiting score, a group's window, a mark or a closed group's memory."""
        name, since = key[1:], self.clock.since
        if key[0] == WAITING_SCORE:
            row = self.scores.get(name)
            return since(row.arrived_ms) + self.wait_ms(row, row.score()) if row and not row.group else None
        if key[0] == OPEN_GROUP:
            return self._end_of_group(name)
        if key[0] == DECIDED:
            mark = self.marks.get(name)
            return since(mark.decided_ms) + REMEMBER_MS if mark else None
        closed_ms = self.closed.get(name)
        return None if closed_ms is None else since(closed_ms) + REMEMBER_MS

    def wait_ms(self, row: ScoreRow, score: Score) -> int:
        """Return how long a score waits before it joins a group."""
        config = self.config.value.grouping
        grace_ms = row.grace_ms if config.reward_grace_ms is None else config.reward_grace_ms
        trained_unfinished = self.config.value.filter.unfinished
        waits = score.outcome == "missing" or (
            trained_unfinished == "rewarded_after" and is_unfinished(score, trained_unfinished)
        )
        return max(grace_ms, config.reward_wait_ms) if waits else grace_ms

    def grace_ms(self, score: Score) -> int:
        """Return how long a score of this task that has a reward waits for a further one."""
        config = self.config.value.grouping
        if config.reward_grace_ms is not None:
            return config.reward_grace_ms
        return self.habit_of(score).grace_ms(min(config.reward_wait_ms, config.window_ms))

    def _end_of_group(self, key: str) -> int | None:
        """Return when a group's window is over; a task's first attempts end as soon as their rewards differ."""
        group = self.groups.get(key)
        if group is None:
            return None
        if key.startswith(BEGINNERS) and len(group.members) > 1:
            first, *later_scores = self.scores_in(key)
            if any(score.value != first.value for score in later_scores):
                return self.clock.since(group.last_ms) + self.grace_ms(first)
        return self.clock.since(group.first_ms) + self.config.value.grouping.window_ms
