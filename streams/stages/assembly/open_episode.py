"""An index over the rows of one open episode: who has written what of it, and what is missing."""

from dataclasses import dataclass, field

from rollbus.schemas.records.events import EpisodeEnded, Event, WriterClosed
from rollbus.streams.stages.assembly.rows import NOT_ALLOWED, REFUSED, EventRow

FROM_OUTSIDE = ("r", "x", NOT_ALLOWED)
"""Kinds that people and services send who take no part in the episode: they keep no episode open."""


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
    paused_ms: int | None = None
    """When it was paused last."""
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
        inside = row.kind not in FROM_OUTSIDE
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
                if record.paused:
                    self.paused_ms = max(row.arrived_ms, self.paused_ms or 0)
        if inside:
            self.lives = True
        if type(record) is EpisodeEnded:
            self.ended_by, self.ended_ms = record.writer_ids, row.arrived_ms

    def holes(self) -> dict[str, int]:
        """Return how many events are missing, by writer; −1 where nothing says how many."""
        missing_by_writer: dict[str, int] = {}
        for writer_id, writer in self.writers.items():
            if missing := writer.missing():
                missing_by_writer[writer_id] = missing
            elif self.ended_by is not None and writer.count is None and writer.takes_part:
                missing_by_writer[writer_id] = -1
        for writer_id in self.ended_by or ():
            if writer_id not in self.writers or self.writers[writer_id].count is None:
                missing_by_writer.setdefault(writer_id, -1)
        return dict(sorted(missing_by_writer.items())) if missing_by_writer else missing_by_writer

    def complete(self) -> bool:
        """Say whether it has ended and every event of every writer is in."""
        return self.ended_by is not None and not self.holes()
