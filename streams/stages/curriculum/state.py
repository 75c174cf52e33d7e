"""What the curriculum of a run remembers: one row per group in its window or waiting, and one small row of counters."""

import struct
from dataclasses import asdict, dataclass, replace
from typing import Any

from rollbus.schemas.records.config import RunConfig
from rollbus.schemas.records.groups import Group, TrainingBatch
from rollbus.streams.stages.curriculum.batching import VersionPath
from rollbus.streams.stages.curriculum.modes import Memory
from rollbus.streams.state.recent_keys import Recent
from rollbus.streams.state.rows import FLOAT, INT, json_codec, kept_record
from rollbus.streams.state.stage_state import RememberingState
from rollbus.streams.state.table import RowCodec, Table

_HEAD = struct.Struct(">qqqqd")
_KEY = "head"


@dataclass(frozen=True, slots=True)
class CurriculumHead:
    """Counters and switches of a run."""

    window: int = 0
    """Index of the open window."""
    opened_ms: int = -1
    """Stream time of the open window's first group; −1 while it has none."""
    next_batch: int = 0
    cut_ms: int = -1
    """Stream time of the last batch; −1 before the first."""
    paused: bool = False
    stopped: bool = False
    newest: int | None = None
    """Newest policy version."""
    percentile: float | None = None
    """None before the first window has closed."""
    last_expansion: int = -1
    """Before the harness has decided, the last window of another mode."""
    total_groups: int | None = None


@dataclass(slots=True)
class GroupRow:
    """A group in the open window or waiting for a batch."""

    data: bytes
    """Empty in the window if the group was decided on arrival."""
    order: int
    """Arrival in the window; order of admission among the waiting."""
    at_ms: int
    """Stream time of arrival or admission."""
    window: int
    size: int
    reward_mean: float
    admitted: bool = False
    record: Group | None = None

    def group(self) -> Group:
        """Return the group, decoded at most once."""
        if self.record is None:
            self.record = kept_record(self.data)
        return self.record


def _encode(row: GroupRow) -> bytes:
    return (
        _HEAD.pack(row.order, row.at_ms, row.window, row.size, row.reward_mean)
        + (b"\x01" if row.admitted else b"\x00")
        + row.data
    )


def _decode(data: bytes) -> GroupRow:
    order, at_ms, window, size, mean = _HEAD.unpack_from(data)
    return GroupRow(data[_HEAD.size + 1 :], order, at_ms, window, size, mean, bool(data[_HEAD.size]))


_GROUPS: RowCodec[GroupRow] = RowCodec(1, _encode, {1: _decode})
_HEADS: RowCodec[CurriculumHead] = json_codec(asdict, lambda plain: CurriculumHead(**plain))


class CurriculumStateRows(RememberingState[RunConfig]):
    """The open window, the groups that wait, open batches, versions, and ids seen."""

    def __init__(self, config: RunConfig) -> None:
        self.heads: Table[CurriculumHead] = Table("head", _HEADS)
        self.in_window: Table[GroupRow] = Table("window", _GROUPS)
        self.waiting: Table[GroupRow] = Table("wait", _GROUPS)
        self.batches: Table[int] = Table("batch", INT)
        """Open batches: number by hash."""
        self.parents: Table[int] = Table("parent", INT)
        """Parent by version."""
        self.difficulty: Recent[float] = Recent("difficulty", FLOAT)
        """Mean reward of the last group by group key, for the modes that remember it, of the keys seen last."""
        super().__init__(
            config,
            self.heads,
            self.in_window,
            self.waiting,
            self.batches,
            self.parents,
            self.difficulty.table,
        )
        self.order = 0
        self.lineage = VersionPath({}, None)

    @property
    def forgotten(self) -> int:
        """How many keys were forgotten to make room for others."""
        return self.difficulty.forgotten

    @property
    def head(self) -> CurriculumHead:
        """The counters."""
        return self.heads.get(_KEY) or CurriculumHead()

    @head.setter
    def head(self, head: CurriculumHead) -> None:
        if head != self.head:
            self.heads.put(_KEY, head)

    @property
    def memory(self) -> Memory:
        """The mode's memory; before the harness' first decision its percentile is that of the configuration."""
        head, config = self.head, self.config.value.curriculum
        initial = 1.0 if config.mode == "off" else config.initial_percentile
        percentile = initial if head.percentile is None or head.total_groups is None else head.percentile
        last = -1 if config.mode != "harness" and head.total_groups is None else head.last_expansion
        return Memory(percentile, last, head.total_groups, self.difficulty)

    def remember(self, memory: Memory) -> None:
        """Begin the next window; until the harness first decides, windows of other modes do not count for it."""
        head, mode = self.head, self.config.value.curriculum.mode
        is_first_of_mode = mode != "harness" and memory.total_groups is None
        self.head = replace(
            head,
            window=head.window + 1,
            opened_ms=-1,
            percentile=memory.percentile,
            last_expansion=head.window if is_first_of_mode else memory.last_expansion,
            total_groups=memory.total_groups,
        )

    def note_unwritten(self, record: Any) -> None:
        """Do not wait for the outcome of a batch that was not written: the trainer never sees it."""
        if isinstance(record, TrainingBatch):
            self.batches.delete(record.batch_hash)

    def rebuild(self) -> None:
        """Derive order, lineage and expiry from the rows."""
        rows = [*self.in_window.rows.values(), *self.waiting.rows.values()]
        self.order = 1 + max((row.order for row in rows), default=0)
        self.relate()
        self.difficulty.rebuild()
        super().rebuild()

    def relate(self) -> None:
        """Derive the lineage of the newest version."""
        parents = {int(version): parent for version, parent in self.parents.rows.items()}
        self.lineage = VersionPath(parents, self.head.newest)

    def next_order(self) -> int:
        """Return the next place in line."""
        self.order += 1
        return self.order

    def ordered(self, table: Table[GroupRow]) -> list[tuple[str, GroupRow]]:
        """Return a table's groups in their order."""
        return sorted(table.rows.items(), key=lambda item: item[1].order)
