"""What assembly remembers: one row per event of an open episode, one stub per closed one.

Event rows hold the event's own bytes, so each is written to the changelog once. Who has written what of an episode is
an index over these rows.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from rollbus.schemas.ids import SEPARATOR
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.events import EpisodeStarted, Event, RewardReported
from rollbus.schemas.records.trajectories import Reward
from rollbus.streams.stages.assembly.event_rows import checksum, event_of, is_sent_again, key_within, split_key
from rollbus.streams.stages.assembly.families import Families, pass_rewards_down
from rollbus.streams.stages.assembly.open_episode import OpenEpisode
from rollbus.streams.stages.assembly.rewards import TakenReport, standing
from rollbus.streams.stages.assembly.rows import (
    EPISODE_KINDS,
    EVENTS,
    NEVER_TAKEN,
    NOT_ALLOWED,
    REFUSED,
    STUBS,
    EventRow,
    Kind,
    Stub,
)
from rollbus.streams.state.stage import Incoming
from rollbus.streams.state.stage_state import StageState
from rollbus.streams.state.table import Table

_NO_PART = (REFUSED, NOT_ALLOWED)
"""Kinds of rows that no trajectory is made of."""
MS_PER_ROW = 1
"""Stream time for each row of an episode between two looks at its reports: what many reports cost grows with time, and
not with their square. A row takes some microseconds."""


class AssemblyState(StageState[AssemblyConfig]):
    """Open episodes and stubs."""

    def __init__(self, config: AssemblyConfig) -> None:
        self.events: Table[EventRow] = Table("e", EVENTS)
        self.stubs: Table[Stub] = Table("stub", STUBS)
        super().__init__(config, self.events, self.stubs)
        self.open: dict[str, OpenEpisode] = {}
        self.late: dict[str, list[str]] = {}
        """Keys of the rows kept with a stub: its rewards."""
        self.refused: dict[str, list[str]] = {}
        """Keys of the rows kept with a stub of what was refused."""
        self.counts: dict[str, Counter[tuple[str, str | None]]] = {}
        """Of the episodes with many reports: how many, by principal, and by principal and reward."""
        self.families = Families()
        self.order = -1
        """Of the event that was kept last."""

    def rebuild(self) -> None:
        """Derive open episodes, families and what is kept with stubs from the rows."""
        self.open, self.late, self.refused, self.counts, self.families = {}, {}, {}, {}, Families()
        self.order = max((row.order for row in self.events.rows.values()), default=-1)
        for episode_id, stub in self.stubs.rows.items():
            if stub.root and not stub.excluded:
                self.families.add_child(episode_id, stub.root)
        for key, row in self.events.rows.items():
            self._index(key, row)
        super().rebuild()

    def waiting_keys(self) -> list[str]:
        """Return all episodes, open and closed."""
        return [*self.open, *self.stubs.rows]

    def look_up(self, event: Event, incoming: Incoming) -> tuple[str, bool | None]:
        """Return an event's key, and whether it comes again: None if it is new, False if its content differs."""
        within, data = key_within(event, incoming.signer), incoming.data
        key = f"{event.episode_id}{SEPARATOR}{within}"
        row = self.events.get(key)
        if row is None:
            stub = self.stubs.get(event.episode_id)
            known_sum = stub.seen.get(within) if stub else None
            return key, None if known_sum is None else known_sum == checksum(data)
        known_sum = int.from_bytes(row.data, "big") if row.kind == REFUSED else checksum(row.data)
        return key, known_sum == checksum(data) or (event.sequence < 0 and is_sent_again(event_of(row), event))

    def keep_open(self, key: str, event: Event, incoming: Incoming, kind: Kind) -> bool:
        """Keep an event of an episode that is not closed; return whether the episode is complete."""
        row = self._row(kind, event, incoming)
        self.events.put(key, row)
        episode = self.open.get(event.episode_id)
        if episode is None:
            episode = self.open[event.episode_id] = OpenEpisode()
        if type(event) is EpisodeStarted and event.root_episode_id != event.episode_id:
            self.families.add_child(event.episode_id, event.root_episode_id)
        lived = episode.lives
        episode.add(key, row, event.writer_id, event.sequence, event)
        if not lived or kind == "e":  # the deadline is new, or may have come nearer
            self.due.watch(event.episode_id)
        return episode.complete()

    def keep_late(self, key: str, event: Event, incoming: Incoming, kind: Kind) -> None:
        """Keep an event of an episode that is closed."""
        self._put(key, self._row(kind, event, incoming))

    def _row(self, kind: Kind, event: Event, incoming: Incoming) -> EventRow:
        taken_ms, principal = incoming.taken_ms, incoming.signer or ""
        # its place in the log, as a restore no longer knows of rows that are gone; a topic made again begins at 0
        self.order = max(self.order + 1, incoming.location.offset)
        if kind == "r" and (counts := self.counts.get(event.episode_id)) is not None:
            counts.update(_count_keys_of(principal, event))
        return EventRow(
            kind,
            self.clock.now_ms,
            incoming.data,
            event,
            self.order,
            NEVER_TAKEN if taken_ms is None else taken_ms,
            principal,
        )

    def has_room(self, event: RewardReported, principal: str) -> bool:
        """Say whether a principal may report once more on an episode."""
        config, episode_id = self.config.value, event.episode_id
        if len(self._report_keys(episode_id)) < min(config.max_reports_per_name, config.max_reports):
            return True
        counts = self.counts.get(episode_id)
        if counts is None:  # counted once, and again after a restore: few episodes have so many
            counts = self.counts[episode_id] = Counter()
            for report in self.reports_of(episode_id):
                counts.update(_count_keys_of(report.principal, report.record))
        of_name, of_all = _count_keys_of(principal, event)
        return counts[of_name] < config.max_reports_per_name and counts[of_all] < config.max_reports

    def keep_refused(self, event: Event, data: bytes) -> bool:
        """Remember an event that cannot be used by its checksum; return False if it was refused before."""
        mark = checksum(data)
        key = SEPARATOR.join((event.episode_id, "", "-1", f"{event.event_id}{mark:08x}"))
        if self.events.get(key) is not None:
            return False
        self._put(key, EventRow(REFUSED, self.clock.now_ms, mark.to_bytes(4, "big")))
        return True

    def events_of(self, episode_id: str) -> list[Event]:
        """Return the events of an open episode that its trajectory is made of."""
        rows = (self.events.rows[key] for key in self.open[episode_id].keys)
        return [event_of(row) for row in rows if row.kind not in _NO_PART]

    def principal_of(self, episode_id: str) -> str:
        """Return who recorded an open episode, by valid signatures: several are named all, in the order of the
        alphabet; it is nobody's if a part of it is.
        """
        rows = (self.events.rows[key] for key in self.open[episode_id].keys)
        names = {row.principal for row in rows if row.kind in EPISODE_KINDS}
        return "" if "" in names else ",".join(sorted(names))

    def reports_of(self, episode_id: str) -> list[TakenReport]:
        """Return the reward reports of an episode, open or closed."""
        rows = (self.events.rows[key] for key in self._report_keys(episode_id))
        return [TakenReport(event_of(row), row.order, row.principal) for row in rows if row.kind == "r"]

    def _report_keys(self, episode_id: str) -> list[str]:
        """Return the keys among which an episode's reports are."""
        episode = self.open.get(episode_id)
        return episode.keys if episode else self.late.get(episode_id, [])

    def rewards_in_force(self, episode_id: str, root: str, agent: str) -> tuple[Reward, ...]:
        """Return an episode's rewards: its own, and those that its closed root passes down; an empty root has none."""
        rewards, rules = standing(self.reports_of(episode_id)), self.config.value.pass_down
        if not rules or not root or not self.has_whole_stub(root):
            return rewards
        of_root, children = standing(self.reports_of(root)), len(self.families.children_of(root))
        return rewards + pass_rewards_down(rules, rewards, of_root, agent=agent, children=children)

    def may_consider(self, episode_id: str, stub: Stub) -> bool:
        """Say whether reports on a closed episode may be looked at now, and need not wait for a later tick."""
        return stub.considered_ms < 0 or self.clock.now_ms > self._considered_until_ms(episode_id, stub)

    def _considered_until_ms(self, episode_id: str, stub: Stub) -> int:
        rows = len(self.late.get(episode_id, ())) + len(stub.seen)
        family = 1 + len(self.families.children_by_root.get(episode_id, ()))
        return stub.considered_ms + rows * family * MS_PER_ROW

    def let_wait(self, episode_id: str, stub: Stub) -> None:
        """Look at the reports on a closed episode later, once for all that come until then."""
        if not stub.is_waiting:
            self.stubs.put(episode_id, replace(stub, is_waiting=True))
            self.due.watch(episode_id)

    def has_whole_stub(self, episode_id: str) -> bool:
        """Say whether an episode has closed with a trajectory that may be used."""
        stub = self.stubs.get(episode_id)
        return stub is not None and stub.trajectory_id is not None and not stub.excluded

    def close(self, episode_id: str, stub: Stub) -> None:
        """Replace an open episode's rows by its new stub; rewards stay, since later ones may supersede them."""
        keys = self.open.pop(episode_id).keys
        if refused_keys := [key for key in keys if self.events.rows[key].kind == REFUSED]:
            self.refused[episode_id] = refused_keys
        self.late[episode_id] = keys
        self.keep_stub(episode_id, stub)
        self.families.remove_child(episode_id)
        if stub.root:
            self.families.add_child(episode_id, stub.root)
        self.due.watch(episode_id)

    def keep_stub(self, episode_id: str, stub: Stub) -> None:
        """Keep a stub, and of the episode's rows only its rewards; of an excluded one no row with words."""
        late: list[str] = []
        rows, of_episode = self.events.rows, len(episode_id) + len(SEPARATOR)
        for key in self.late.get(episode_id, ()):
            row = rows[key]
            if row.kind == "r" and not stub.excluded:
                late.append(key)
            elif row.kind != REFUSED:
                stub.seen[key[of_episode:]] = checksum(row.data)
                self.events.delete(key)
        self.late[episode_id] = late
        self.stubs.put(episode_id, stub)

    def forget(self, episode_id: str) -> None:
        """Forget a closed episode."""
        for key in (*self.late.pop(episode_id, ()), *self.refused.pop(episode_id, ())):
            self.events.delete(key)
        self.counts.pop(episode_id, None)
        self.stubs.delete(episode_id)
        self.families.remove_child(episode_id)

    def _put(self, key: str, row: EventRow) -> None:
        self.events.put(key, row)
        self._index(key, row)

    def _index(self, key: str, row: EventRow) -> None:
        episode_id, writer_id, sequence = split_key(key)
        if episode_id in self.stubs.rows:
            keys_by_episode = self.refused if row.kind == REFUSED else self.late
            keys_by_episode.setdefault(episode_id, []).append(key)
            return
        record = event_of(row) if row.kind in "esw" else None
        if type(record) is EpisodeStarted and record.root_episode_id != episode_id:
            self.families.add_child(episode_id, record.root_episode_id)
        episode = self.open.get(episode_id)
        if episode is None:
            episode = self.open[episode_id] = OpenEpisode()
        episode.add(key, row, writer_id, sequence, record)

    def deadline(self, episode_id: str) -> int | None:
        """Return when an open episode closes, or a closed one is forgotten."""
        config = self.config.value
        if stub := self.stubs.get(episode_id):
            forget_ms = self._forget_ms(episode_id, stub)
            return min(forget_ms, self._considered_until_ms(episode_id, stub) + 1) if stub.is_waiting else forget_ms
        episode = self.open.get(episode_id)
        if episode is None:
            return None
        if not episode.lives:
            return self.clock.since(episode.first_ms) + config.late_horizon_ms
        deadline = self.clock.since(episode.last_ms) + config.inactivity_ms
        if episode.paused_ms is not None:
            deadline = max(deadline, self.clock.since(episode.paused_ms) + config.pause_ms)
        if episode.ended_by is not None:
            deadline = min(deadline, self.clock.since(episode.ended_ms) + config.gap_grace_ms)
        return deadline

    def is_past(self, episode_id: str, stub: Stub) -> bool:
        """Say whether a closed episode is past its late horizon."""
        return self._forget_ms(episode_id, stub) <= self.clock.now_ms

    def _forget_ms(self, episode_id: str, stub: Stub) -> int:
        return self.clock.since(self._last_closed_ms(episode_id, stub)) + self.config.value.late_horizon_ms

    def _last_closed_ms(self, episode_id: str, stub: Stub) -> int:
        """Return when the last of a family closed whose root passes rewards down: until then it is not forgotten."""
        if not self.config.value.pass_down or episode_id not in self.families.children_by_root:
            return stub.closed_ms
        child_stubs = (self.stubs.get(child) for child in self.families.children_by_root[episode_id])
        return max([stub.closed_ms, *(child.closed_ms for child in child_stubs if child)])


def _count_keys_of(principal: str, event: Any) -> Iterator[tuple[str, str | None]]:
    """Yield under what a report is counted: its principal's of its name, and all of its principal's."""
    yield principal, event.name
    yield principal, None
