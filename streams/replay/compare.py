"""What two namespaces made of the same range, and where they differ: by kind and cause, with counts and examples.

Pure. Each side is folded into a `Made`; `compare` then names what came out otherwise. What the range's edge has cut (an
episode that had begun before it, a group that closed after it) is counted apart: it says nothing of the change.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rollbus.schemas.codec import encode
from rollbus.schemas.drops import Drop, DropReason
from rollbus.schemas.groups import CurriculumState, Group, TrainingBatch
from rollbus.schemas.trajectories import RewardRevised, Score, Trajectory

EXAMPLES = 3
Kind = Literal["trajectory", "score", "group", "signal", "curriculum", "batch"]
ABSENT = "nothing"


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
class Made:
    """What one namespace holds of a range."""

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
    batches: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """By run."""

    def take(self, record: Any) -> None:
        """Take in one record; those that say nothing of the outcome change nothing."""
        if isinstance(record, Trajectory):
            self.trajectories.setdefault(record.trajectory_id, _assembled(record))
        elif isinstance(record, RewardRevised):
            pass  # the score that follows tells it
        elif isinstance(record, Score):
            known = self.scores.get(record.trajectory_id)
            if known is None or record.revision > known.revision:
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
            self.batches[record.run_id] += 1

    def _drop(self, record: Drop) -> None:
        run = record.run_id or ""
        told = (record.reason, record.detail)
        if record.unit != "event":
            self.dropped.setdefault((run, record.unit_id), told)
            for trajectory_id in record.trajectory_ids:
                self.dropped.setdefault((run, trajectory_id), told)
        if record.unit == "group" and record.stage.partition(".")[0] == "curriculum":
            self.fates[run, record.unit_id] = record.reason


@dataclass(frozen=True, slots=True)
class Span:
    """Stream time that both sides have in full; None where a side has no ticks."""

    from_ms: int | None = None
    to_ms: int | None = None

    def has(self, at_ms: int) -> bool:
        """Say whether a time lies inside."""
        return (self.from_ms is None or at_ms >= self.from_ms) and (self.to_ms is None or at_ms <= self.to_ms)


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which the sides differ."""

    kind: Kind
    what: str
    cause: str
    edge: bool
    """True where the range's edge is the cause."""
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """All of it."""

    one: str
    other: str
    same: Mapping[Kind, int]
    """Units that both sides have alike, by kind."""
    differences: tuple[Difference, ...]

    @property
    def inside(self) -> tuple[Difference, ...]:
        """Differences that the edge does not explain."""
        return tuple(each for each in self.differences if not each.edge)


Found = tuple[Kind, str, str, bool, str]
"""Kind, what, cause, edge and example."""


def compare(one: Made, other: Made, span: Span) -> Comparison:
    """Return every difference between two sides, counted by kind and cause."""
    same: dict[Kind, int] = defaultdict(int)
    counted: dict[tuple[Kind, str, str, bool], list[str]] = defaultdict(list)
    cut = _cut(one, other, span)
    for found in (
        *_trajectories(one, other, cut, same),
        *_scores(one, other, cut, same),
        *_groups(one, other, cut, span, same),
        *_curriculum(one, other, same),
        *_batches(one, other, same),
    ):
        counted[found[:4]].append(found[4])
    differences = [
        Difference(kind, what, cause, edge, len(examples), tuple(examples[:EXAMPLES]))
        for (kind, what, cause, edge), examples in counted.items()
    ]
    return Comparison(one.name, other.name, dict(same), tuple(differences))


def _cut(one: Made, other: Made, span: Span) -> set[str]:
    """Return the trajectories that the edge has cut: outside the span, or without their beginning on one side."""
    cut = set()
    for mine, theirs in ((one, other), (other, one)):
        for trajectory_id, found in mine.trajectories.items():
            reason = theirs.dropped.get(("", found.episode_id), ("", ""))[0]
            begun_before = reason == DropReason.MISSING_EVENTS.value and found.untrainable != reason
            if not span.has(found.at_ms) or begun_before:
                cut.add(trajectory_id)
    return cut


def _trajectories(one: Made, other: Made, cut: set[str], same: dict[Kind, int]) -> Iterator[Found]:
    for trajectory_id in sorted(one.trajectories.keys() | other.trajectories.keys()):
        mine, theirs = one.trajectories.get(trajectory_id), other.trajectories.get(trajectory_id)
        edge = trajectory_id in cut
        if mine is None or theirs is None:
            there, gone = (other, one) if mine is None else (one, other)
            known = there.trajectories[trajectory_id]
            reason = gone.dropped.get(("", known.episode_id), (ABSENT, ""))[0]
            why = "the range's edge" if edge else f"{gone.name} says: {reason}"
            yield "trajectory", f"only in {there.name}", why, edge, trajectory_id
        elif mine.digest == theirs.digest:
            same["trajectory"] += 1
        else:
            yield "trajectory", "other content", _why_other(mine, theirs), edge, trajectory_id


def _why_other(mine: Assembled, theirs: Assembled) -> str:
    if mine.config_hash != theirs.config_hash:
        return "another assembly configuration"
    if mine.rewards != theirs.rewards:
        return "other rewards were in when it was assembled"
    if mine.untrainable != theirs.untrainable:
        return f"{mine.untrainable or 'trainable'} → {theirs.untrainable or 'trainable'}"
    return "assembled at another stream time" if mine.at_ms != theirs.at_ms else "other turns"


def _scores(one: Made, other: Made, cut: set[str], same: dict[Kind, int]) -> Iterator[Found]:
    for trajectory_id in sorted(one.scores.keys() & other.scores.keys()):
        mine, theirs = one.scores[trajectory_id], other.scores[trajectory_id]
        if (mine.outcome, mine.value, mine.excluded) == (theirs.outcome, theirs.value, theirs.excluded):
            same["score"] += 1
        else:
            shown = f"{trajectory_id}: {_shown(mine)} → {_shown(theirs)}"
            yield "score", "changed", _why_score(mine, theirs), trajectory_id in cut, shown


def _shown(score: Score) -> str:
    if score.value is not None:
        return f"{score.value:g}"
    return f"{score.outcome} ({score.error[:60]})" if score.error else score.outcome


def _why_score(mine: Score, theirs: Score) -> str:
    if mine.reward_version != theirs.reward_version:
        return "another reward"
    if mine.excluded != theirs.excluded:
        return "excluded on one side"
    if mine.outcome != theirs.outcome:
        return f"{mine.outcome} → {theirs.outcome}"
    return "other feedback counted" if mine.revision != theirs.revision else "a function answered otherwise"


def _groups(one: Made, other: Made, cut: set[str], span: Span, same: dict[Kind, int]) -> Iterator[Found]:
    for run, group_id in sorted(one.groups.keys() | other.groups.keys()):
        mine, theirs = one.groups.get((run, group_id)), other.groups.get((run, group_id))
        if mine is not None and theirs is not None:
            yield from _same_group(run, mine, theirs, same)
            continue
        there, gone, group = (one, other, mine) if mine is not None else (other, one, theirs)
        assert group is not None
        edge = not span.has(group.closed_at_ms) or any(member.trajectory_id in cut for member in group.members)
        why = "the range's edge" if edge else _why_no_group(run, group, gone)
        yield "group", f"only in {there.name}", why, edge, f"{group.group_key} ({len(group.members)} members)"


def _same_group(run: str, mine: Group, theirs: Group, same: dict[Kind, int]) -> Iterator[Found]:
    if mine.has_signal != theirs.has_signal:
        what = "gained" if theirs.has_signal else "lost"
        yield "signal", f"{what} (run {run})", _why_advantages(mine, theirs), False, mine.group_key
    elif [member.advantage for member in mine.members] != [member.advantage for member in theirs.members]:
        yield "group", f"other advantages (run {run})", _why_advantages(mine, theirs), False, mine.group_key
    else:
        same["group"] += 1


def _why_advantages(mine: Group, theirs: Group) -> str:
    if _rewards(mine) != _rewards(theirs):
        return "other rewards"
    if mine.config_hash != theirs.config_hash:
        return "another grouping configuration"
    return "other scores came before it" if mine.strategy == "baseline" else "another way to compute advantages"


def _rewards(group: Group) -> list[float]:
    return [member.reward for member in group.members]


def _why_no_group(run: str, group: Group, gone: Made) -> str:
    """Say what became of a group's members on the side that has not this group."""
    fates = {_fate(run, member.trajectory_id, gone) for member in group.members}
    if fates == {"in another group"}:
        return "its members are in other groups"
    return ", ".join(sorted(fates))


def _fate(run: str, trajectory_id: str, made: Made) -> str:
    if (run, trajectory_id) in made.members:
        return "in another group"
    for place in ((run, trajectory_id), ("", trajectory_id)):
        if place in made.dropped:
            return f"dropped as {made.dropped[place][0]}"
    return "still waiting" if trajectory_id in made.scores else "not assembled"


def _curriculum(one: Made, other: Made, same: dict[Kind, int]) -> Iterator[Found]:
    for place in sorted(one.groups.keys() & other.groups.keys()):
        mine, theirs = one.fates.get(place, "waiting"), other.fates.get(place, "waiting")
        if mine == theirs:
            same["curriculum"] += 1
        else:
            group = one.groups[place]
            why = "its rewards differ" if _rewards(group) != _rewards(other.groups[place]) else "other window or rank"
            edge = "waiting" in (mine, theirs)
            cause = "the open window at the range's edge" if edge else why
            yield "curriculum", f"{mine} → {theirs} (run {place[0]})", cause, edge, group.group_key


def _batches(one: Made, other: Made, same: dict[Kind, int]) -> Iterator[Found]:
    for run in sorted(one.batches.keys() | other.batches.keys()):
        mine, theirs = one.batches.get(run, 0), other.batches.get(run, 0)
        if mine == theirs:
            same["batch"] += mine
        else:
            why = "live waits for its trainer; a replay answers each batch at once"
            yield "batch", f"{mine} → {theirs} (run {run})", why, False, run


def within(records: Iterable[Any], made: Made, span: Span) -> Made:
    """Take in records in the order of the flow, of those outside a span only what is cut by its edge."""
    for record in records:
        if isinstance(record, Trajectory) and not span.has(record.assembled_at_ms):
            continue
        if isinstance(record, Score) and record.trajectory_id not in made.trajectories:
            continue
        if isinstance(record, Group) and not any(m.trajectory_id in made.trajectories for m in record.members):
            continue
        made.take(record)
    return made


def _assembled(record: Trajectory) -> Assembled:
    return Assembled(
        digest=hashlib.blake2b(encode(record), digest_size=16).digest(),
        episode_id=record.episode_id,
        at_ms=record.assembled_at_ms,
        rewards=tuple((reward.event_id, reward.value) for reward in record.rewards),
        untrainable=record.untrainable_reason,
        config_hash=record.config_hash,
    )
