"""What live recorded of the outside world, fed to the replay at the same stream time: a replay asks no one.

Before tick n the replay gets what live had between the ticks n − 1 and n: configurations, new policy versions, ends of
epochs, and the trainer's answer to a batch that the replay cuts too. That answer is known from the start, since it
always comes later than the batch. No trainer runs during a replay, so any other batch is answered at once as skipped:
it makes room for the next one, and no new weights follow.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from rollbus.schemas.records.control import ConfigApplied, RunCommand, Tick
from rollbus.schemas.records.groups import Group, StepOutcome, TrainingBatch
from rollbus.schemas.records.steps import PolicyVersion
from rollbus.schemas.records.trajectories import Score
from rollbus.schemas.topics import RUN_LOG, Topic

BEFORE_ALL = -1
FindScore = Callable[[str, str, int, int], Awaitable[Score | None]]
"""Group hint, trajectory id, revision and stream time of what is scored to the score that live gave it, or None.

An episode whose events all come again after the late horizon has the same ids, at another time.
"""
Change = Callable[[ConfigApplied], ConfigApplied | None]
"""A recorded configuration to the one that the replay uses in its place; None for none."""


@dataclass(frozen=True, slots=True)
class LiveRecord:
    """One record of live that the replay writes into an input of its own."""

    topic: Topic
    key: str
    record: Any
    offset: int = -1
    """Where live has it; less than any for what came before the range."""
    partition: int | None = None
    """The one that it goes into; None for every partition of the topic."""
    ends_round: bool = True
    """Whether no record of its round is behind it: a promoted configuration may lie in the middle of one."""


Identity = tuple[str, str, int]
"""Topic, id and revision of a record that live and the replay have alike."""


def identity_of(topic: Topic, record: Any) -> Identity | None:
    """Return what names a record on both sides; None for one whose place in its round means nothing."""
    if isinstance(record, Score):
        return topic.name, record.trajectory_id, record.revision
    return (topic.name, record.group_id, 0) if isinstance(record, Group) else None


@dataclass(slots=True)
class Places:
    """Where live has the records that the replay makes too: within a round, only live knows the order of partitions."""

    _offsets: dict[Identity, int] = field(default_factory=dict)
    _by_round: dict[int, list[Identity]] = field(default_factory=lambda: defaultdict(list))

    def note(self, identity: Identity, offset: int, round_number: int) -> None:
        """Take note of a record of live, made in a round."""
        self._offsets[identity] = offset
        self._by_round[round_number].append(identity)

    def find(self, topic: Topic, record: Any) -> int | None:
        """Return where live has a record; None if it has none such."""
        identity = identity_of(topic, record)
        return None if identity is None else self._offsets.get(identity)

    def forget_until(self, round_number: int) -> None:
        """Forget what was made up to a round: it was there to be found."""
        for number in [number for number in self._by_round if number <= round_number]:
            for identity in self._by_round.pop(number):
                self._offsets.pop(identity, None)


@dataclass(slots=True)
class LiveInputs:
    """All of it that a range needs."""

    places: Places = field(default_factory=Places)

    before: dict[int, list[LiveRecord]] = field(default_factory=lambda: defaultdict(list))
    """By number of the tick that follows it; BEFORE_ALL for what held when the range began."""
    outcomes: "dict[str, LiveOutcome]" = field(default_factory=dict)
    """By batch hash."""

    def due(self, tick: int, topic: str | None = None) -> list[LiveRecord]:
        """Return, once, what came before a tick, into one input or into any, and has not been fed to the replay."""
        due = []
        for number in sorted(number for number in self.before if number <= tick):
            records = self.before.pop(number)
            due += [live for live in records if topic in (None, live.topic.name)]
            if other_records := [live for live in records if topic not in (None, live.topic.name)]:
                self.before[number] = other_records
        return due

    def answer(self, batch: TrainingBatch, last_tick: int) -> StepOutcome | None:
        """Return the outcome to feed now; None where live's own comes later."""
        live = self.outcomes.pop(batch.batch_hash, None)
        if live is None:
            return StepOutcome(
                run_id=batch.run_id,
                step=0,
                batch_hash=batch.batch_hash,
                batch_number=batch.number,
                state="skipped",
                base_version=batch.newest_policy_version,
                policy_version=batch.newest_policy_version,
            )
        if live.tick <= last_tick:
            return live.outcome
        self.before[live.tick].append(LiveRecord(RUN_LOG, batch.run_id, live.outcome, live.offset))
        return None


@dataclass(frozen=True, slots=True)
class LiveOutcome:
    """What the trainer answered to a batch."""

    tick: int
    """The one that follows it in the run's log."""
    outcome: StepOutcome
    offset: int


class RecordedInputs:
    """Takes from one recorded input what a replay of an earlier stage must write into its own.

    `first_tick` is where the range begins: of what came before, only what still held counts. Of an input whose
    partitions are all read, each has one of these, and the first one's says what held.
    """

    def __init__(
        self,
        topic: Topic,
        *,
        first_tick: int | None,
        change: Change,
        live_inputs: LiveInputs,
        partition: int | None = None,
    ) -> None:
        """`partition` is the one that the records go into; None for all."""
        self._topic, self._first_tick, self._change, self._live_inputs = topic, first_tick, change, live_inputs
        self._partition = partition
        self._beginning: dict[str, LiveRecord] = {}
        self._waiting: list[LiveRecord] = []
        self.tick = BEFORE_ALL
        """The last one seen."""

    def take(self, key: str, record: Any, offset: int = -1) -> None:
        """Take in the next record of the partition."""
        if isinstance(record, Tick):
            waiting, self._waiting, self.tick = self._waiting, [], record.number
            if self._first_tick is not None and record.number < self._first_tick:
                self._hold(live_record for live_record in waiting if not isinstance(live_record.record, RunCommand))
            else:
                self._begin()
                self._live_inputs.before[record.number] += waiting
        elif (needed := _needed_record(self._topic, key, record, self._change, offset)) is not None:
            self._waiting.append(replace(needed, partition=self._partition))

    def note_record(self) -> None:
        """Take note of a record of the present round: what waits for the tick lies in front of it."""
        if self._waiting:
            self._waiting = [replace(live_record, ends_round=False) for live_record in self._waiting]

    def end(self) -> None:
        """Say that nothing follows."""
        self._begin()

    def _hold(self, live_records: Iterable[LiveRecord]) -> None:
        for live_record in live_records:
            self._beginning.pop(_place(live_record), None)  # a version that is served again comes after those between
            if not live_record.partition:
                self._beginning[_place(live_record)] = replace(live_record, partition=None)

    def _begin(self) -> None:
        self._live_inputs.before[BEFORE_ALL] += self._beginning.values()
        self._beginning = {}


class Outcomes:
    """Takes from the recorded run-log what the trainer answered within the range, and before which tick."""

    def __init__(self, first_tick: int | None) -> None:
        self._first_tick = -1 if first_tick is None else first_tick
        self._waiting: list[tuple[StepOutcome, int]] = []
        self._tick = BEFORE_ALL
        self.by_batch: dict[str, LiveOutcome] = {}
        """By batch hash."""

    def take(self, record: Any, offset: int = -1) -> None:
        """Take in the next record of the log."""
        if isinstance(record, StepOutcome):
            self._waiting.append((record, offset))
        elif isinstance(record, Tick):
            self._tick = record.number
            self._note(record.number)

    def end(self) -> None:
        """Say that nothing follows: what came last comes before a tick that is not there yet."""
        self._note(self._tick + 1)

    def _note(self, tick: int) -> None:
        waiting, self._waiting = self._waiting, []
        if tick >= self._first_tick:
            self.by_batch.update(
                (outcome.batch_hash, LiveOutcome(tick, outcome, offset)) for outcome, offset in waiting
            )


def _needed_record(topic: Topic, key: str, record: Any, change: Change, offset: int) -> LiveRecord | None:
    if isinstance(record, ConfigApplied):
        changed_record = change(record)
        return None if changed_record is None else LiveRecord(topic, key, changed_record, offset)
    ends_window = isinstance(record, RunCommand) and record.command == "end_window"
    return LiveRecord(topic, key, record, offset) if ends_window or isinstance(record, PolicyVersion) else None


def _place(live: LiveRecord) -> str:
    """Return what a later record of the same place replaces."""
    record = live.record
    if isinstance(record, ConfigApplied):
        return f"config {record.stage} {record.run_id}"
    return f"version {record.model} {record.version}"
