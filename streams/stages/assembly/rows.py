"""The rows that assembly writes to its changelog: an event of an open episode, and what stays of a closed one."""

import struct
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rollbus.schemas.records.events import (
    EpisodeEnded,
    EpisodeStarted,
    Excluded,
    RewardReported,
    ToolCalled,
    TurnRecorded,
    WriterClosed,
)
from rollbus.streams.state.rows import json_codec
from rollbus.streams.state.table import RowCodec

Kind = Literal["s", "t", "o", "r", "e", "w", "x", "n", "!"]
KINDS: dict[type, Kind] = {
    EpisodeStarted: "s",
    TurnRecorded: "t",
    ToolCalled: "o",
    RewardReported: "r",
    EpisodeEnded: "e",
    WriterClosed: "w",
    Excluded: "x",
}
REFUSED: Kind = "!"
"""An event that was refused (late, or known with other content): only its checksum is kept."""
NOT_ALLOWED: Kind = "n"
"""A reward whose source may not set it: it counts as an event of its writer, and for nothing else."""
EPISODE_KINDS: tuple[Kind, ...] = ("s", "t", "o", "e", "w")
"""What an episode is made of, rewards apart."""

NEVER_TAKEN = -1
"""In a topic that keeps the producer's time, nothing says when the broker took an event."""


@dataclass(slots=True)
class EventRow:
    """One event of an episode."""

    kind: Kind
    arrived_ms: int
    """Stream time."""
    data: bytes
    """The event's own bytes; four bytes of checksum for a refused one."""
    record: Any = None
    order: int = 0
    """Grows with arrival, which is the broker's order."""
    taken_ms: int = NEVER_TAKEN
    """The broker's clock when it took the event."""
    principal: str = ""
    """Whose valid signature it carries; empty for nobody's."""


_HEAD = struct.Struct(">cqqqH")


def _encode_event(row: EventRow) -> bytes:
    principal = row.principal.encode()
    head = _HEAD.pack(row.kind.encode(), row.arrived_ms, row.order, row.taken_ms, len(principal))
    return head + principal + row.data


def _decode_event(data: bytes) -> EventRow:
    letter, arrived_ms, order, taken_ms, size = _HEAD.unpack_from(data)
    kind: Any = letter.decode()
    rest = data[_HEAD.size :]
    return EventRow(kind, arrived_ms, rest[size:], None, order, taken_ms, rest[:size].decode())


EVENTS: RowCodec[EventRow] = RowCodec(1, _encode_event, {1: _decode_event})


@dataclass(frozen=True, slots=True)
class Stub:
    """What stays of a closed episode for the late horizon."""

    closed_ms: int
    trajectory_id: str | None
    """None where no trajectory went out."""
    group_hint: str = ""
    revision: int = 0
    excluded: bool = False
    rewards: tuple[tuple[str, float], ...] = ()
    """Event ids and values of the rewards in force when last sent out."""
    seen: dict[str, int] = field(default_factory=dict)
    """Checksums of the events it was made of, by their key within the episode."""
    root: str = ""
    """Of a sub-agent's episode; empty for a root."""
    agent: str = ""
    """Only of a sub-agent's episode."""
    considered_ms: int = -1
    """Stream time when a report on it was last looked at; −1 before the first."""
    is_waiting: bool = False
    """Whether reports came since then, and wait for a later tick."""
    last_turn: tuple[str, str, str] | None = None
    """Id, question and answer of the last turn; only of an episode of a conversation."""


def _decode_stub(plain: Any) -> Stub:
    *fields, last_turn = plain
    stub = Stub(*fields)
    rewards = tuple((event_id, value) for event_id, value in stub.rewards)
    return replace(stub, rewards=rewards, last_turn=None if last_turn is None else tuple(last_turn))


STUBS: RowCodec[Stub] = json_codec(
    lambda row: [
        row.closed_ms,
        row.trajectory_id,
        row.group_hint,
        row.revision,
        row.excluded,
        row.rewards,
        dict(sorted(row.seen.items())),  # a restore has them in another order
        row.root,
        row.agent,
        row.considered_ms,
        row.is_waiting,
        row.last_turn,
    ],
    _decode_stub,
)
