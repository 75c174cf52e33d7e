"""One side of a comparison: a namespace's records of a range, folded into what can be compared.

Pure. Records come in the order of the flow; what lies outside the range is not taken in.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rollbus.schemas.codec import encode
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.groups import CurriculumState, Group, TrainingBatch
from rollbus.schemas.records.trajectories import RewardRevised, Score, Trajectory


@dataclass(frozen=True, slots=True)
class Assembled:
    """What matters of a trajectory."""

    digest: bytes
    episode_id: str
    at_ms: int
    rewards: tuple[tuple[str, float], ...]
    untrainable: str | None
    config_hash: str


@dataclass(slots=True)
class Side:
    """What one namespace made of a range, folded."""

    name: str
    trajectories: dict[str, Assembled] = field(default_factory=dict)
    scores: dict[str, Score] = field(default_factory=dict)
    """The newest revision of each."""
    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    """By run and group id."""
    dropped: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """By run (empty for the namespace's stages) and unit id: the first reason, and its detail."""
    members: dict[tuple[str, str], str] = field(default_factory=dict)
    """By run and trajectory id: the group that has it."""
    fates: dict[tuple[str, str], str] = field(default_factory=dict)
    """By run and group id: `admitted`, or why not."""
    batches: dict[tuple[str, tuple[str, ...]], int] = field(default_factory=dict)
    """By run and group ids in order: its number, which another beginning of the range makes another."""

    configurations: dict[str, set[str]] = field(default_factory=dict)
    """By run, empty for assembly: the hashes of the configurations that its records name."""

    def take(self, record: Any) -> None:
        """Take in one record; those that say nothing of the outcome change nothing."""
        if isinstance(record, Trajectory | Group | TrainingBatch):
            run = "" if isinstance(record, Trajectory) else record.run_id
            self.configurations.setdefault(run, set()).add(record.config_hash)
        if isinstance(record, Trajectory):
            self.trajectories.setdefault(record.trajectory_id, _digest_trajectory(record))
        elif isinstance(record, RewardRevised):
            pass  # the score that follows has its value
        elif isinstance(record, Score):
            score = self.scores.get(record.trajectory_id)
            if score is None or record.revision > score.revision:
                self.scores[record.trajectory_id] = record
        elif isinstance(record, Group):
            self.groups.setdefault((record.run_id, record.group_id), record)
            for member in record.members:
                self.members.setdefault((record.run_id, member.trajectory_id), record.group_id)
        elif isinstance(record, Drop):
            self._drop(record)
        elif isinstance(record, CurriculumState):
            for group_id in record.admitted_group_ids:
                self.fates.setdefault((record.run_id, group_id), "admitted")
        elif isinstance(record, TrainingBatch):
            self.batches.setdefault((record.run_id, tuple(group.group_id for group in record.groups)), record.number)

    def knows(self, run: str, config_hash: str) -> bool:
        """Say whether a configuration was in force here, as far as there is a record that would name it."""
        return config_hash in self.configurations.get(run, {config_hash})

    def _drop(self, record: Drop) -> None:
        run = record.run_id or ""
        fate = (record.reason, record.detail)
        if record.unit != "event":
            self.dropped.setdefault((run, record.unit_id), fate)
            for trajectory_id in record.trajectory_ids:
                self.dropped.setdefault((run, trajectory_id), fate)
        if record.unit == "group" and record.stage.partition(".")[0] == "curriculum":
            self.fates[run, record.unit_id] = record.reason


@dataclass(frozen=True, slots=True)
class CommonTime:
    """Stream time that both sides have in full; None where a side has no ticks."""

    from_ms: int | None = None
    to_ms: int | None = None

    def has(self, at_ms: int) -> bool:
        """Say whether a time lies inside."""
        return (self.from_ms is None or at_ms >= self.from_ms) and (self.to_ms is None or at_ms <= self.to_ms)

    def has_whole(self, at_ms: int) -> bool:
        """Say whether both sides have all of a time: of the last, a tick's, what came behind the tick may be cut."""
        return self.has(at_ms) and at_ms != self.to_ms


def take_in_span(records: Iterable[Any], side: Side, span: CommonTime) -> Side:
    """Take in records in the order of the flow, of those outside a span only what is cut by its edge."""
    for record in records:
        if isinstance(record, Trajectory) and not span.has(record.assembled_at_ms):
            continue
        if isinstance(record, Score) and record.trajectory_id not in side.trajectories:
            continue
        if isinstance(record, Group) and not _reaches(record, side):
            continue
        if isinstance(record, TrainingBatch) and not any(_reaches(group, side) for group in record.groups):
            continue
        side.take(record)
    return side


def _reaches(group: Group, side: Side) -> bool:
    """Say whether a member of a group lies in what was taken in."""
    return any(member.trajectory_id in side.trajectories for member in group.members)


def _digest_trajectory(record: Trajectory) -> Assembled:
    return Assembled(
        digest=hashlib.blake2b(encode(record), digest_size=16).digest(),
        episode_id=record.episode_id,
        at_ms=record.assembled_at_ms,
        rewards=tuple((reward.event_id, reward.value) for reward in record.rewards),
        untrainable=record.untrainable_reason,
        config_hash=record.config_hash,
    )
