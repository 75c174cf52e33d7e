"""What grouping remembers: one row per score that is not decided yet, and a small mark per decided one.

Open groups are an index over the scores' rows. Marks stay for two days, longer than revisions may come; a baseline
stays as long as its key is among those used last.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from rollbus.schemas.ids import content_hash
from rollbus.schemas.records.config import RunConfig
from rollbus.schemas.records.trajectories import Score
from rollbus.streams.state.recent import Recent
from rollbus.streams.state.rows import INT, json_codec, kept_record
from rollbus.streams.state.stage_state import REMEMBER_MS, StageState, keys_by_kind
from rollbus.streams.state.table import RowCodec, Table

WAITING = 0
SEPARATOR = "\x1f"
WAITING_SCORE, OPEN_GROUP, DECIDED, CLOSED_GROUP = "w", "g", "m", "c"
"""First letters of the keys under which `due` watches these."""
_HEAD = struct.Struct(">qqq")
_MARK = struct.Struct(">qi")


@dataclass(slots=True)
class ScoreRow:
    """A score on its way into a group."""

    data: bytes
    """Its newest revision."""
    arrived_ms: int
    """Stream time of its first revision."""
    order: int
    """Grows with arrival."""
    joined_ms: int = WAITING
    """Stream time when it joined its group; WAITING while it waits for rewards."""
    joined: bool = False
    record: Score | None = None

    def score(self) -> Score:
        """Return the score, decoded at most once."""
        if self.record is None:
            self.record = kept_record(self.data)
        return self.record


def _encode(row: ScoreRow) -> bytes:
    return _HEAD.pack(row.arrived_ms, row.order, row.joined_ms if row.joined else -1) + row.data


def _decode(data: bytes) -> ScoreRow:
    arrived_ms, order, joined_ms = _HEAD.unpack_from(data)
    return ScoreRow(data[_HEAD.size :], arrived_ms, order, max(joined_ms, WAITING), joined_ms >= 0)


_SCORES: RowCodec[ScoreRow] = RowCodec(1, _encode, {1: _decode})


@dataclass(frozen=True, slots=True)
class Mark:
    """A trajectory that this stage has decided."""

    decided_ms: int
    revision: int
    """Newest revision seen."""


_MARKS: RowCodec[Mark] = RowCodec(
    1, lambda row: _MARK.pack(row.decided_ms, row.revision), {1: lambda data: Mark(*_MARK.unpack(data))}
)


@dataclass(frozen=True, slots=True)
class Baseline:
    """A decaying mean of rewards, corrected for its start: the mean is total / weight."""

    total: float = 0.0
    weight: float = 0.0

    def mean(self) -> float | None:
        """Return the mean; None before the first reward."""
        return self.total / self.weight if self.weight else None

    def add(self, reward: float, decay: float) -> "Baseline":
        """Return the baseline after one more reward."""
        return Baseline(decay * self.total + (1 - decay) * reward, decay * self.weight + (1 - decay))


_BASELINES: RowCodec[Baseline] = json_codec(lambda row: [row.total, row.weight], lambda plain: Baseline(*plain))


@dataclass(slots=True)
class OpenGroup:
    """Index over the rows of one group's members."""

    members: set[str] = field(default_factory=set)
    first_ms: int = 0
    first_order: int = -1
    first_member: str = ""
    """The member with which the others must agree."""

    def add(self, trajectory_id: str, row: ScoreRow) -> None:
        """Take in a member."""
        if not self.members or (row.joined_ms, row.order) < (self.first_ms, self.first_order):
            self.first_ms, self.first_order, self.first_member = row.joined_ms, row.order, trajectory_id
        self.members.add(trajectory_id)


class GroupingState(StageState[RunConfig]):
    """Undecided scores, open groups over them, marks of decided scores, baselines."""

    def __init__(self, config: RunConfig) -> None:
        self.scores: Table[ScoreRow] = Table("score", _SCORES)
        self.marks: Table[Mark] = Table("mark", _MARKS)
        self.closed: Table[int] = Table("closed", INT)
        """Explicit groups that have closed, and when."""
        self.baselines: Recent[Baseline] = Recent("baseline", _BASELINES)
        super().__init__(config, self.scores, self.marks, self.closed, self.baselines.table)
        self.groups: dict[str, OpenGroup] = {}
        self.order = 0

    def rebuild(self) -> None:
        """Derive the open groups from the scores' rows, and the order of the baselines."""
        self.groups = {}
        self.baselines.rebuild()
        for trajectory_id, row in self.scores.rows.items():
            if row.joined:
                self.groups.setdefault(self.key_of(row.score()), OpenGroup()).add(trajectory_id, row)
        self.order = 1 + max((row.order for row in self.scores.rows.values()), default=0)
        super().rebuild()

    @property
    def forgotten(self) -> int:
        """How many baselines were forgotten to make room for those of other keys."""
        return self.baselines.forgotten

    def remove(self, trajectory_id: str, key: str) -> None:
        """Take a member out of its open group; the group goes with its last one."""
        group = self.groups[key]
        group.members.discard(trajectory_id)
        if not group.members:
            del self.groups[key]
        elif trajectory_id == group.first_member:
            smaller = self.groups[key] = OpenGroup()
            for member in group.members:
                smaller.add(member, self.scores.rows[member])

    def waiting_keys(self) -> Iterable[str]:
        """Return waiting scores, open groups, marks and closed groups."""
        return keys_by_kind(
            {
                WAITING_SCORE: self.scores.rows,
                OPEN_GROUP: self.groups,
                DECIDED: self.marks.rows,
                CLOSED_GROUP: self.closed.rows,
            }
        )

    def key_of(self, score: Score) -> str:
        """Return the key of the group that a score belongs to, with what its members must share."""
        base = group_key(score, self.config.value.grouping.strategy)
        return base if score.group_id is not None else f"{base}{SEPARATOR}{fingerprint(score)}"

    def place_of(self, score: Score) -> tuple[str, str]:
        """Return all that the members of a score's group share, which no revision changes."""
        return group_key(score, self.config.value.grouping.strategy), fingerprint(score)

    def deadline(self, key: str) -> int | None:
        """Return when something is due: a waiting score, a group's window, a mark or a closed group's memory."""
        config, name, since = self.config.value.grouping, key[1:], self.clock.since
        if key[0] == WAITING_SCORE:
            row = self.scores.get(name)
            return since(row.arrived_ms) + config.reward_grace_ms if row and not row.joined else None
        if key[0] == OPEN_GROUP:
            group = self.groups.get(name)
            return since(group.first_ms) + config.window_ms if group else None
        if key[0] == DECIDED:
            mark = self.marks.get(name)
            return since(mark.decided_ms) + REMEMBER_MS if mark else None
        closed_ms = self.closed.get(name)
        return None if closed_ms is None else since(closed_ms) + REMEMBER_MS


def group_key(score: Score, strategy: str) -> str:
    """Return the key that members share: explicit group, else example, else prompt."""
    if score.group_id is not None:
        return f"group:{score.group_id}"
    if strategy == "by_example" and score.example_id is not None:
        return f"example:{score.task}:{score.example_id}"
    return f"prompt:{score.task}:{score.prompt_hash}"


def fingerprint(score: Score) -> str:
    """Return the hash of what makes two attempts comparable: prompt tokens, tools and model."""
    return _shared(score.prompt_hash, score.tools_hash, score.model)


@lru_cache(maxsize=4_096)
def _shared(prompt_hash: str, tools_hash: str, model: str) -> str:
    """Return the hash of what the members of a group have in common, computed for the first of them."""
    return content_hash([prompt_hash, tools_hash, model])
