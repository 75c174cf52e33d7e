"""Groups become curriculum windows, and then training batches; per run, decided on the run's log alone.

A window closes by count, by span of stream time or by command; its mode chooses the groups to admit. Admitted groups
wait for a batch, oldest first, those of several principals in turn. A batch is cut when there is room, and the
trainer's StepOutcome makes room. Beyond `max_waiting_groups` the oldest are superseded: overload shows as drops, not as
stale batches. Where rewards come late, batches are cut so seldom that what is on its way does not become too old.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import fsum

from rollbus.schemas.codec import encode
from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.ids import canonical_json
from rollbus.schemas.numbers import LARGEST, computable
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.groups import CurriculumState, Group, StepOutcome, TrainingBatch
from rollbus.schemas.records.steps import PolicyVersion
from rollbus.schemas.topics import BATCHES, CURRICULUM, RUN_LOG
from rollbus.streams.stages.curriculum.advantage_range import advantage_range
from rollbus.streams.stages.curriculum.batching import (
    NO_PARENT,
    Swept,
    batch_hash,
    centre_single_attempts,
    count_that_fit,
    newest_of,
    sweep,
    take_turns,
    usual_age_ms,
)
from rollbus.streams.stages.curriculum.harness import harness
from rollbus.streams.stages.curriculum.modes import Decision, Mode, Window
from rollbus.streams.stages.curriculum.pools import pools
from rollbus.streams.stages.curriculum.state import CurriculumStateRows, GroupRow
from rollbus.streams.stages.curriculum.surprise import surprise
from rollbus.streams.stages.grouping.advantages import with_members
from rollbus.streams.state.configured_stage import RunStage
from rollbus.streams.state.stage import Incoming, Outgoing

MODES: dict[str, Mode] = {"advantage_range": advantage_range, "harness": harness, "pools": pools, "surprise": surprise}
"""By name; `off` decides on arrival and has no module."""


class CurriculumStage(RunStage[CurriculumStateRows]):
    """Windows and batches of one run."""

    configured_as = "curriculum"
    input = RUN_LOG

    def new_state(self) -> CurriculumStateRows:
        """Return the empty state of a partition."""
        return CurriculumStateRows(self._config)

    def step(self, state: CurriculumStateRows, incoming: Incoming) -> Iterable[Outgoing]:
        """Take in one record of the run's log; records of other runs change nothing."""
        state.ensure_rebuilt()
        record = incoming.record
        if isinstance(record, PolicyVersion):
            change = f"version {record.version} {record.state} {record.changed_at_ms}"
            if record.model == state.config.value.model and state.is_first_time(change):
                return self._follow_version(state, record)
            return ()
        if not isinstance(record, Group | StepOutcome | RunCommand):
            return self.step_control(state, record)
        if record.run_id != self.run_id:
            return ()
        if isinstance(record, StepOutcome):
            return self._follow_outcome(state, record)
        if isinstance(record, RunCommand):
            return self._obey(state, record) if state.is_first_time(f"command {record.command_id}") else ()
        _require_numbers(record)
        return self._admit(state, record, incoming.data) if state.is_first_time(record.group_id) else ()

    def pass_time(self, state: CurriculumStateRows) -> Iterator[Outgoing]:
        """Close the window whose span is over, and cut the batches that have waited long enough."""
        state.forget_old()
        now_ms, span_ms = state.clock.now_ms, state.config.value.curriculum.window_span_ms
        opened_ms = state.head.opened_ms
        if span_ms is not None and opened_ms >= 0 and now_ms >= state.clock.since(opened_ms) + span_ms:
            yield from self._close_window(state)
        yield from self._cut_batches(state)

    def follow_config(self, state: CurriculumStateRows) -> Iterator[Outgoing]:
        """Cut the batches that the new configuration has room for."""
        return self._cut_batches(state)

    # Windows

    def _admit(self, state: CurriculumStateRows, group: Group, data: bytes) -> Iterator[Outgoing]:
        if state.head.stopped:
            yield self._drop_group(state, group, DropReason.RUN_STOPPED)
            return
        now_ms, config = state.clock.now_ms, state.config.value.curriculum
        if state.head.opened_ms < 0:
            state.head = replace(state.head, opened_ms=now_ms)
        row = GroupRow(
            data, state.next_order(), now_ms, state.head.window, len(group.members), group.reward_mean, record=group
        )
        if config.mode == "off":
            row.data, row.record, row.admitted = b"", None, group.has_signal
            state.in_window.put(group.group_id, row)
            yield from self._put_in_line(state, group, data)
            yield from self._cut_batches(state)
        else:
            state.in_window.put(group.group_id, row)
        if len(state.in_window.rows) >= config.groups_per_window:
            yield from self._close_window(state)

    def _close_window(self, state: CurriculumStateRows) -> Iterator[Outgoing]:
        rows = state.ordered(state.in_window)
        pending = {group_id: row for group_id, row in rows if row.data}
        decision = self._decide(state, pending)
        forgotten = [
            forgotten_key
            for key, mean in decision.difficulty.items()
            for forgotten_key in state.difficulty.put(key, mean)
        ]
        yield self._report(state, rows, decision, forgotten)
        for group_id, _ in rows:
            state.in_window.delete(group_id)
        state.remember(decision.memory)
        for group_id in decision.no_signal:
            yield self._drop_group(state, pending[group_id].group(), DropReason.NO_SIGNAL)
        for group_id in decision.rejected:
            yield self._drop_group(state, pending[group_id].group(), DropReason.CURRICULUM)
        for group_id in decision.admitted:
            row = pending[group_id]
            ids_left_out = decision.members_left_out.get(group_id, ())
            if ids_left_out:
                yield self._drop_left_out(state, group_id, ids_left_out)
                members = [member for member in row.group().members if member.trajectory_id not in ids_left_out]
                tolerance = state.config.value.signal_tolerance
                group = with_members(row.group(), members, tolerance)
                yield from self._put_in_line(state, group, encode(group), row.window)
            else:
                yield from self._put_in_line(state, row.group(), row.data, row.window)
        yield from self._cut_batches(state)

    def _decide(self, state: CurriculumStateRows, pending: dict[str, GroupRow]) -> Decision:
        config = state.config.value.curriculum
        if not pending:
            return Decision(state.memory)
        groups = [row.group() for row in pending.values()]
        if config.mode == "off":  # it was switched off while these waited in the window
            return Decision(state.memory, admitted=tuple(group.group_id for group in groups))
        return MODES[config.mode](Window(self.run_id, state.head.window, groups), state.memory, config)

    def _report(
        self, state: CurriculumStateRows, rows: list[tuple[str, GroupRow]], decision: Decision, forgotten: list[str]
    ) -> Outgoing:
        learned = dict.fromkeys(forgotten) | {
            key: mean for key, mean in decision.difficulty.items() if key in state.difficulty
        }
        means = [(row.reward_mean, row.size) for _, row in rows]
        count = sum(size for _, size in means)
        report = CurriculumState(
            run_id=self.run_id,
            window=state.head.window,
            mode=state.config.value.curriculum.mode,
            percentile=decision.memory.percentile,
            last_expansion_window=decision.memory.last_expansion,
            total_groups=decision.memory.total_groups,
            seen_group_ids=tuple(group_id for group_id, _ in rows),
            admitted_group_ids=tuple(group_id for group_id, row in rows if row.admitted) + decision.admitted,
            rejected_group_ids=decision.rejected,
            reward_mean=fsum(mean * size for mean, size in means) / count if count else None,
            closed_at_ms=state.clock.now_ms,
            mode_state=canonical_json(learned) if learned else "",
            config_hash=state.config.hash,
        )
        return Outgoing(CURRICULUM, self.run_id, report)

    # Batches

    def _put_in_line(
        self, state: CurriculumStateRows, group: Group, data: bytes, window: int | None = None
    ) -> Iterator[Outgoing]:
        """Put an admitted group in line; drop one without signal."""
        if not group.has_signal:
            yield self._drop_group(state, group, DropReason.NO_SIGNAL)
            return
        place = state.head.window if window is None else window
        row = GroupRow(
            data, state.next_order(), state.clock.now_ms, place, len(group.members), group.reward_mean, True, group
        )
        state.waiting.put(group.group_id, row)

    def _cut_batches(self, state: CurriculumStateRows) -> Iterator[Outgoing]:
        """Cut as many batches as there is room for, then drop the groups beyond the limit on waiting ones."""
        config = state.config.value.batching
        while not state.head.paused and len(state.batches.rows) < config.batches_ahead:
            if not self._has_enough(state):
                break
            yield from self._drop_stale(state)
            if not self._has_enough(state):
                break
            yield from self._cut_batch(state)
        room = max(config.max_waiting_groups, config.groups_per_step)
        if len(state.waiting.rows) > room:
            yield from self._drop_surplus(state, room)

    def _drop_surplus(self, state: CurriculumStateRows, room: int) -> Iterator[Outgoing]:
        """Drop what is beyond the room to wait: of each principal the oldest, and first of those that have most."""
        newest_first = [row.group() for _, row in state.ordered(state.waiting)[::-1]]
        fitting = count_that_fit(newest_first, room, self._group_size(state))
        fitting_places = set(self._take_in_turn(state, newest_first, room))
        for place in reversed(range(len(newest_first))):
            if place not in fitting_places:
                group = newest_first[place]
                state.waiting.delete(group.group_id)
                reason = DropReason.SOURCE_SHARE if place < fitting else DropReason.SUPERSEDED
                yield self._drop_group(state, group, reason)

    def _take_in_turn(self, state: CurriculumStateRows, groups: Sequence[Group], places: int) -> list[int]:
        """Return which of the groups fit into so many places, principals in turn; in the order given."""
        turns = list(take_turns(groups))
        fitting = count_that_fit((groups[place] for place in turns), places, self._group_size(state))
        return sorted(turns[:fitting])

    def _group_size(self, state: CurriculumStateRows) -> int:
        return state.config.value.grouping.group_size

    def _has_enough(self, state: CurriculumStateRows) -> bool:
        config, rows = state.config.value.batching, state.waiting.rows.values()
        if len(rows) >= config.groups_per_step:
            return state.clock.now_ms >= self._next_cut_ms(state)
        if config.flush_ms is None or not rows:
            return False
        oldest_ms = min(row.at_ms for row in rows)
        return state.clock.now_ms >= state.clock.since(oldest_ms) + config.flush_ms

    def _next_cut_ms(self, state: CurriculumStateRows) -> int:
        """Return when the next batch may be cut: in the time that a reward takes at most `max_off_policy_steps` are."""
        steps = state.config.value.batching.max_off_policy_steps
        if state.head.cut_ms < 0 or not steps:
            return 0
        return (
            state.head.cut_ms + usual_age_ms((row.group(), row.at_ms) for row in state.waiting.rows.values()) // steps
        )

    def _drop_stale(self, state: CurriculumStateRows) -> Iterator[Outgoing]:
        """Drop the groups that have become too stale as a whole; single members leave when a batch is cut."""
        for group_id, row in state.ordered(state.waiting):
            swept = _swept(state, row)
            if swept.group is None:
                state.waiting.delete(group_id)
                yield from self._drop_swept(state, group_id, swept.dropped)

    def _cut_batch(self, state: CurriculumStateRows) -> Iterator[Outgoing]:
        config, head = state.config.value, state.head
        groups, window, in_line = [], 0, state.ordered(state.waiting)
        waiting = [row.group() for _, row in in_line]
        for place in self._take_in_turn(state, waiting, config.batching.groups_per_step):
            group_id, row = in_line[place]
            swept = _swept(state, row)
            yield from self._drop_swept(state, group_id, swept.dropped)
            state.waiting.delete(group_id)
            if swept.group is not None:
                groups.append(swept.group)
                window = max(window, row.window)
        groups, newest = centre_single_attempts(groups, config.grouping.advantage), state.lineage.newest
        batch = TrainingBatch(
            batch_hash=batch_hash(self.run_id, head.next_batch, groups),
            run_id=self.run_id,
            model=config.model,
            number=head.next_batch,
            window=window,
            groups=tuple(groups),
            newest_policy_version=newest_of(groups) if newest is None else newest,
            cut_at_ms=state.clock.now_ms,
            config_hash=state.config.hash,
        )
        state.batches.put(batch.batch_hash, batch.number)
        state.head = replace(head, next_batch=head.next_batch + 1, cut_ms=state.clock.now_ms)
        yield Outgoing(BATCHES, self.run_id, batch)

    # What the trainer and the operator write

    def _follow_outcome(self, state: CurriculumStateRows, record: StepOutcome) -> Iterator[Outgoing]:
        if state.batches.get(record.batch_hash) is None:
            return
        state.batches.delete(record.batch_hash)
        if record.state == "completed":
            self._put_parent(state, record.policy_version, record.base_version)
            state.head = replace(state.head, newest=record.policy_version)
            state.relate()
            yield from self._drop_stale(state)
        yield from self._cut_batches(state)

    def _follow_version(self, state: CurriculumStateRows, record: PolicyVersion) -> Iterator[Outgoing]:
        """Follow a new version, or a roll-back; another state of a known version says nothing of what is trained."""
        is_new = state.parents.get(str(record.version)) is None
        self._put_parent(state, record.version, record.parent)
        if record.state != "rolled_back" and (is_new or state.head.newest is None):
            state.head = replace(state.head, newest=record.version)
        elif record.state == "rolled_back" and state.head.newest == record.version:
            state.head = replace(state.head, newest=record.parent)
        state.relate()
        yield from self._drop_stale(state)
        yield from self._cut_batches(state)

    def _put_parent(self, state: CurriculumStateRows, version: int, parent: int | None) -> None:
        if parent is not None or state.parents.get(str(version)) is None:
            state.parents.put(str(version), NO_PARENT if parent is None else parent)

    def _obey(self, state: CurriculumStateRows, record: RunCommand) -> Iterator[Outgoing]:
        if record.command == "pause":
            state.head = replace(state.head, paused=True)
        elif record.command == "resume":
            state.head = replace(state.head, paused=False, stopped=False)
            yield from self._cut_batches(state)
        elif record.command == "end_window":
            yield from self._close_window(state)
        elif record.command == "stop":
            yield from self._stop(state)

    def _stop(self, state: CurriculumStateRows) -> Iterator[Outgoing]:
        """Drop every group that is not in a batch; the open window ends without a report."""
        for table in (state.in_window, state.waiting):
            for group_id, row in state.ordered(table):
                table.delete(group_id)
                if row.data:
                    yield self._drop_group(state, row.group(), DropReason.RUN_STOPPED)
        state.head = replace(state.head, stopped=True, opened_ms=-1)

    # Drops

    def _drop_group(self, state: CurriculumStateRows, group: Group, reason: DropReason) -> Outgoing:
        ids = tuple(member.trajectory_id for member in group.members)
        return self.drop(state, "group", group.group_id, reason, ids, group.group_key)

    def _drop_left_out(self, state: CurriculumStateRows, group_id: str, ids: tuple[str, ...]) -> Outgoing:
        return self.drop(state, "trajectory", ids[0], DropReason.CURRICULUM, ids, f"left out of group {group_id}")

    def _drop_swept(
        self, state: CurriculumStateRows, group_id: str, dropped: tuple[tuple[DropReason, tuple[str, ...], str], ...]
    ) -> Iterator[Outgoing]:
        for reason, ids, detail in dropped:
            yield self.drop(state, "trajectory", ids[0], reason, ids, f"group {group_id}: {detail}")


def _swept(state: CurriculumStateRows, row: GroupRow) -> Swept:
    """Return a group without stale members; what trains on messages does not grow stale."""
    config = state.config.value
    if config.filter.without_tokens:
        return Swept(row.group())
    return sweep(row.group(), state.lineage, config.batching.max_off_policy_steps)


def _require_numbers(group: Group) -> None:
    """Raise InvalidRecordError for a group with rewards that cannot be computed with; grouping makes none."""
    if not all(map(computable, (group.reward_mean, *(member.reward for member in group.members)))):
        raise InvalidRecordError(f"group {group.group_id} holds rewards beyond {LARGEST:g}, or that are not numbers")
