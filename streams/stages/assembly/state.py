"""What assembly remembers: one row per event of an open episode, one stub per closed one.

Event rows hold the event's own bytes, so each is written to the changelog once. Who has written what of an episode is
an index over these rows.
"""

import zlib
from dataclasses import dataclass, field, replace
from typing import Any

from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.events import (
    EpisodeEnded,
    EpisodeStarted,
    Event,
    RewardReported,
    WriterClosed,
)
from rollbus.schemas.records.trajectories import Reward
from rollbus.streams.stages.assembly.families import Families, pass_rewards_down
from rollbus.streams.stages.assembly.rewards import standing
from rollbus.streams.stages.assembly.rows import EVENTS, NOT_ALLOWED, REFUSED, SEPARATOR, STUBS, EventRow, Kind, Stub
from rollbus.streams.state.rows import kept_record
from rollbus.streams.state.stage_state import StageState
from rollbus.streams.state.table import Table

_NO_PART = (REFUSED, NOT_ALLOWED)
"""Kinds of rows that no trajectory is made of."""
_FROM_OUTSIDE = ("r", "x", NOT_ALLOWED)
"""Kinds that people and services send who take no part in the episode: they keep no episode open."""
_OF_SENDER = ("root_episode_id", "writer_id", "occurred_at_ms", "episode_started_at_ms", "producer", "environment")
"""Fields that differ when another process, or the same one later, sends a report again."""


@dataclass(slots=True)
class Writer:
    """What has come of one writer of an open episode."""

    sequences: set[int] = field(default_factory=set)
    highest: int = -1
    """The largest of them."""
    count: int | None = None
    """How many it sent, once it has closed."""
    takes_part: bool = False
    """False while only rewards and exclusions came of it: such writers need not close."""

    def missing(self) -> int:
        """Return how many of its events are known to be missing."""
        if self.count is None:
            return self.highest + 1 - len(self.sequences)
        if self.highest <= self.count:  # its own closing event has the number `count`
            return self.count + (self.highest == self.count) - len(self.sequences)
        return self.count - sum(sequence < self.count for sequence in self.sequences)


@dataclass(slots=True)
class OpenEpisode:
    """Index over the rows of one open episode."""

    keys: list[str] = field(default_factory=list)
    writers: dict[str, Writer] = field(default_factory=dict)
    ended_by: tuple[str, ...] | None = None
    """Writers named by EpisodeEnded, once it is in."""
    ended_ms: int = 0
    first_ms: int = 0
    last_ms: int = 0
    lives: bool = False
    """True once anything but rewards and exclusions came."""

    def add(self, key: str, row: EventRow, writer_id: str, sequence: int, record: Event | None) -> None:
        """Take in one row; `record` is needed of the kinds `e` and `w` only."""
        if row.arrived_ms < self.first_ms or not self.keys:
            self.first_ms = row.arrived_ms
        if row.arrived_ms > self.last_ms:
            self.last_ms = row.arrived_ms
        self.keys.append(key)
        if row.kind == REFUSED:
            return
        inside = row.kind not in _FROM_OUTSIDE
        if sequence >= 0:
            writer = self.writers.get(writer_id)
            if writer is None:
                writer = self.writers[writer_id] = Writer()
            writer.sequences.add(sequence)
            if sequence > writer.highest:
                writer.highest = sequence
            if inside:
                writer.takes_part = True
            if type(record) is WriterClosed:
                writer.count = record.count
        if inside:
            self.lives = True
        if type(record) is EpisodeEnded:
            self.ended_by, self.ended_ms = record.writer_ids, row.arrived_ms

    def holes(self) -> dict[str, int]:
        """Return how many events are missing, by writer; −1 where nothing says how many."""
        found: dict[str, int] = {}
        for writer_id, writer in self.writers.items():
            if missing := writer.missing():
                found[writer_id] = missing
            elif self.ended_by is not None and writer.count is None and writer.takes_part:
                found[writer_id] = -1
        for writer_id in self.ended_by or ():
            if writer_id not in self.writers or self.writers[writer_id].count is None:
                found.setdefault(writer_id, -1)
        return dict(sorted(found.items())) if found else found

    def complete(self) -> bool:
        """Say whether it has ended and every event of every writer is in."""
        return self.ended_by is not None and not self.holes()


class AssemblyState(StageState[AssemblyConfig]):
    """Open episodes and stubs."""

    def __init__(self, config: AssemblyConfig) -> None:
        self.events: Table[EventRow] = Table("e", EVENTS)
        self.stubs: Table[Stub] = Table("stub", STUBS)
        super().__init__(config, self.events, self.stubs)
        self.open: dict[str, OpenEpisode] = {}
        self.late: dict[str, list[str]] = {}
        """Keys of the rows kept with a stub: its rewards and what was refused."""
        self.families = Families()

    def rebuild(self) -> None:
        """Derive open episodes, families and what is kept with stubs from the rows."""
        self.open, self.late, self.families = {}, {}, Families()
        for episode_id, stub in self.stubs.rows.items():
            if stub.root and not stub.excluded:
                self.families.add_child(episode_id, stub.root)
        for key, row in self.events.rows.items():
            self._index(key, row)
        super().rebuild()

    def waiting_keys(self) -> list[str]:
        """Return all episodes, open and closed."""
        return [*self.open, *self.stubs.rows]

    def look_up(self, event: Event, data: bytes, signer: str | None) -> tuple[str, bool | None]:
        """Return an event's key, and whether it comes again: None if it is new, False if its content differs."""
        within = _key_within(event, signer)
        key = f"{event.episode_id}{SEPARATOR}{within}"
        row = self.events.get(key)
        if row is None:
            stub = self.stubs.get(event.episode_id)
            known_sum = stub.seen.get(within) if stub else None
            return key, None if known_sum is None else known_sum == _checksum(data)
        known_sum = int.from_bytes(row.data, "big") if row.kind == REFUSED else _checksum(row.data)
        return key, known_sum == _checksum(data) or (event.sequence < 0 and _is_sent_again(_event_of(row), event))

    def keep_open(self, key: str, event: Event, data: bytes, kind: Kind) -> bool:
        """Keep an event of an episode that is not closed; return whether the episode is complete."""
        row = EventRow(kind, self.clock.now_ms, data, event)
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

    def keep_late(self, key: str, event: Event, data: bytes, kind: Kind) -> None:
        """Keep an event of an episode that is closed."""
        self._put(key, EventRow(kind, self.clock.now_ms, data, event))

    def keep_refused(self, event: Event, data: bytes) -> bool:
        """Remember an event that cannot be used by its checksum; return False if it was refused before."""
        mark = _checksum(data)
        key = SEPARATOR.join((event.episode_id, "", "-1", f"{event.event_id}{mark:08x}"))
        if self.events.get(key) is not None:
            return False
        self._put(key, EventRow(REFUSED, self.clock.now_ms, mark.to_bytes(4, "big")))
        return True

    def events_of(self, episode_id: str) -> list[Event]:
        """Return the events of an open episode that its trajectory is made of."""
        rows = (self.events.rows[key] for key in self.open[episode_id].keys)
        return [_event_of(row) for row in rows if row.kind not in _NO_PART]

    def rewards_of(self, episode_id: str) -> list[RewardReported]:
        """Return the reward reports of an episode, open or closed."""
        episode = self.open.get(episode_id)
        keys = episode.keys if episode else self.late.get(episode_id, [])
        return [_event_of(row) for key in keys if (row := self.events.rows[key]).kind == "r"]

    def rewards_in_force(self, episode_id: str, root: str, agent: str) -> tuple[Reward, ...]:
        """Return an episode's rewards: its own, and those that its closed root passes down; an empty root has none."""
        own, rules = standing(self.rewards_of(episode_id)), self.config.value.pass_down
        if not rules or not root or not self.has_whole_stub(root):
            return own
        of_root, children = standing(self.rewards_of(root)), len(self.families.children_of(root))
        return own + pass_rewards_down(rules, own, of_root, agent=agent, children=children)

    def has_whole_stub(self, episode_id: str) -> bool:
        """Say whether an episode has closed with a trajectory that may be used."""
        stub = self.stubs.get(episode_id)
        return stub is not None and stub.trajectory_id is not None and not stub.excluded

    def close(self, episode_id: str, stub: Stub) -> None:
        """Replace an open episode's rows by its new stub; rewards stay, since later ones may supersede them."""
        self.late[episode_id] = self.open.pop(episode_id).keys
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
            if row.kind == REFUSED or (row.kind == "r" and not stub.excluded):
                late.append(key)
            else:
                stub.seen[key[of_episode:]] = _checksum(row.data)
                self.events.delete(key)
        self.late[episode_id] = late
        self.stubs.put(episode_id, stub)

    def forget(self, episode_id: str) -> None:
        """Forget a closed episode."""
        for key in self.late.pop(episode_id, ()):
            self.events.delete(key)
        self.stubs.delete(episode_id)
        self.families.remove_child(episode_id)

    def _put(self, key: str, row: EventRow) -> None:
        self.events.put(key, row)
        self._index(key, row)

    def _index(self, key: str, row: EventRow) -> None:
        episode_id, writer_id, sequence = _split_key(key)
        if episode_id in self.stubs.rows:
            self.late.setdefault(episode_id, []).append(key)
            return
        record = _event_of(row) if row.kind in "esw" else None
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
            return self.clock.since(self._last_closed_ms(episode_id, stub)) + config.late_horizon_ms
        episode = self.open.get(episode_id)
        if episode is None:
            return None
        if not episode.lives:
            return self.clock.since(episode.first_ms) + config.late_horizon_ms
        deadline = self.clock.since(episode.last_ms) + config.inactivity_ms
        if episode.ended_by is not None:
            deadline = min(deadline, self.clock.since(episode.ended_ms) + config.gap_grace_ms)
        return deadline

    def _last_closed_ms(self, episode_id: str, stub: Stub) -> int:
        """Return when the last of a family closed whose root passes rewards down: until then it is not forgotten."""
        if not self.config.value.pass_down or episode_id not in self.families.children_by_root:
            return stub.closed_ms
        closed = (self.stubs.get(child) for child in self.families.children_by_root[episode_id])
        return max([stub.closed_ms, *(child.closed_ms for child in closed if child)])


def _key_within(event: Event, signer: str | None) -> str:
    """Return the key of an event within its episode: writer and sequence, or its id where the caller's key made it.

    Such an id can be known beforehand, so the signer is a part of the key: no other writer can take its place.
    """
    if event.sequence >= 0:
        return f"{event.writer_id}{SEPARATOR}{event.sequence}"
    return event.event_id if signer is None else SEPARATOR.join(("", "-1", signer, event.event_id))


def _split_key(key: str) -> tuple[str, str, int]:
    """Return episode, writer and sequence of a row's key; sequence −1 where it has none."""
    episode_id, first, *rest = key.split(SEPARATOR)
    return episode_id, first if rest else "", int(rest[0]) if rest else -1


def _event_of(row: EventRow) -> Any:
    """Return the row's event, decoded at most once."""
    if row.record is None:
        row.record = kept_record(row.data)
    return row.record


def _checksum(data: bytes) -> int:
    """Return what distinguishes an event from another with the same key."""
    return zlib.crc32(data)


def _is_sent_again(known: Event, event: Event) -> bool:
    """Say whether an event under the caller's key repeats a known one, from any sender and at any time."""
    return known == replace(event, **{name: getattr(known, name) for name in _OF_SENDER})
