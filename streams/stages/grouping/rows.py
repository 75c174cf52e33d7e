"""The rows that grouping writes to its changelog, and how each becomes bytes and back: scores under way, marks, levels
and habits.
"""

import struct
from dataclasses import asdict, dataclass, replace
from math import isnan, nan

from rollbus.schemas.codec import encode
from rollbus.schemas.records.trajectories import Score
from rollbus.streams.stages.grouping.habits import Habit
from rollbus.streams.stages.grouping.tracker import Level
from rollbus.streams.state.rows import json_codec, kept_record
from rollbus.streams.state.stage import Incoming
from rollbus.streams.state.table import RowCodec

_SCORE_HEAD = struct.Struct(">qqqqH")
_MARK = struct.Struct(">qiqd")
_LEVEL = struct.Struct(">ddqq")


@dataclass(slots=True)
class ScoreRow:
    """A score on its way into a group."""

    data: bytes
    """Its newest revision."""
    arrived_ms: int
    """Stream time of its first revision."""
    order: int
    """Grows with arrival."""
    grace_ms: int = 0
    """How long it waits for a further reward once it has one: what the habits of its task gave when it came."""
    joined_ms: int = 0
    """Stream time when it joined its group."""
    group: str = ""
    """Key of the open group that it is in; empty while it waits for rewards."""
    record: Score | None = None

    def score(self) -> Score:
        """Return the score, decoded at most once while it is in a group."""
        if self.record is None:
            record = kept_record(self.data)
            if not self.group:
                return record  # type: ignore[no-any-return]  # thousands wait, and each decoded one takes 2 kB
            self.record = record
        return self.record


def with_place_of_hints(incoming: Incoming) -> tuple[Score, bytes]:
    """Return a score and its bytes with the place of a judge's hints instead of their words.

    A group names that place, and its record in the run's log is kept for ever: words stay where retention ends.
    """
    score: Score = incoming.record
    if not any(turn.is_hint and turn.hint for turn in score.turn_rewards):
        return score, incoming.data
    turn_rewards = tuple(replace(turn, hint="") for turn in score.turn_rewards)
    score = replace(score, turn_rewards=turn_rewards, hints_at=incoming.location)
    return score, encode(score)


def _encode_score(row: ScoreRow) -> bytes:
    group_key = row.group.encode()
    head = _SCORE_HEAD.pack(row.arrived_ms, row.order, row.grace_ms, row.joined_ms, len(group_key))
    return head + group_key + row.data


def _decode_score(data: bytes) -> ScoreRow:
    arrived_ms, order, grace_ms, joined_ms, size = _SCORE_HEAD.unpack_from(data)
    end = _SCORE_HEAD.size + size
    return ScoreRow(data[end:], arrived_ms, order, grace_ms, joined_ms, data[_SCORE_HEAD.size : end].decode())


SCORES: RowCodec[ScoreRow] = RowCodec(1, _encode_score, {1: _decode_score})


@dataclass(frozen=True, slots=True)
class Mark:
    """A trajectory whose score has left for a group or a drop: what comes of it later is compared with this."""

    decided_ms: int
    revision: int
    """Newest revision seen."""
    arrived_ms: int = 0
    """Stream time of its first score."""
    value: float | None = None
    """The reward that it was decided with."""


def _encode_mark(row: Mark) -> bytes:
    return _MARK.pack(row.decided_ms, row.revision, row.arrived_ms, nan if row.value is None else row.value)


def _decode_mark(data: bytes) -> Mark:
    decided_ms, revision, arrived_ms, value = _MARK.unpack(data)
    return Mark(decided_ms, revision, arrived_ms, None if isnan(value) else value)


MARKS: RowCodec[Mark] = RowCodec(1, _encode_mark, {1: _decode_mark})
LEVELS: RowCodec[Level] = RowCodec(
    1,
    lambda row: _LEVEL.pack(row.total, row.weight, row.version, row.seen_ms),
    {1: lambda data: Level(*_LEVEL.unpack(data))},
)


def _read_habit(plain: dict[str, object]) -> Habit:
    return Habit(**plain | {"delays": tuple(plain["delays"])})  # type: ignore[arg-type]


HABITS: RowCodec[Habit] = json_codec(asdict, _read_habit)
