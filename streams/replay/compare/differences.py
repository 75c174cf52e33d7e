"""What two namespaces made of the same range, and where they differ: by kind and cause, with counts and examples.

Pure. Each side is a `Side`; `compare` names the differences. What the range's edge has cut (an
episode that had begun before it, a group that closed after it) is counted apart: it says nothing of the change.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.groups import Group
from rollbus.schemas.records.trajectories import Score
from rollbus.streams.replay.compare.side import Assembled, CommonTime, Side
from rollbus.streams.replay.plan.plan import CHAIN

K = TypeVar("K", bound=Any)
V = TypeVar("V")

EXAMPLES = 3
Kind = Literal["trajectory", "score", "group", "signal", "curriculum", "batch"]
ABSENT = "nothing"
EDGE = "the range's edge"
OTHER_CONFIGURATION = "other configuration"


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
class ReplayComparison:
    """All of it."""

    left: str
    right: str
    same: Mapping[Kind, int]
    """Units that both sides have alike, by kind."""
    differences: tuple[Difference, ...]

    @property
    def inside(self) -> tuple[Difference, ...]:
        """Differences that the edge does not explain."""
        return tuple(difference for difference in self.differences if not difference.edge)


DifferenceEntry = tuple[Kind, str, str, bool, str]
"""Kind, what, cause, edge and example."""


def compare(left: Side, right: Side, span: CommonTime, last: str = "curriculum") -> ReplayComparison:
    """Return every difference between two sides, counted by kind and cause.

    `last` is the last stage that both have run: neither side has changed what follows from it.
    """
    same: dict[Kind, int] = defaultdict(int)
    counted: dict[tuple[Kind, str, str, bool], list[str]] = defaultdict(list)
    cut = _cut(left, right, span)
    by_stage: dict[str, Callable[[], Iterable[DifferenceEntry]]] = {
        "assembly": lambda: _trajectories(left, right, cut, same),
        "scoring": lambda: _scores(left, right, cut, same),
        "grouping": lambda: _groups(left, right, cut, span, same),
        "curriculum": lambda: (*_curriculum(left, right, same), *_batches(left, right, cut, span, same)),
    }
    compared = [find for stage, find in by_stage.items() if CHAIN.index(stage) <= CHAIN.index(last)]
    for difference in (entry for find in compared for entry in find()):
        counted[difference[:4]].append(difference[4])
    differences = [
        Difference(kind, what, cause, edge, len(examples), tuple(examples[:EXAMPLES]))
        for (kind, what, cause, edge), examples in counted.items()
    ]
    return ReplayComparison(left.name, right.name, dict(same), tuple(differences))


def _cut(left: Side, right: Side, span: CommonTime) -> set[str]:
    """Return the trajectories that the edge has cut: not whole on both sides, or without their beginning on one."""
    cut = set()
    for side, other_side in ((left, right), (right, left)):
        for trajectory_id, trajectory in side.trajectories.items():
            reason = other_side.dropped.get(("", trajectory.episode_id), ("", ""))[0]
            begun_before = reason == DropReason.MISSING_EVENTS.value and trajectory.untrainable != reason
            if not span.has_whole(trajectory.at_ms) or begun_before:
                cut.add(trajectory_id)
    return cut


def _pair_by_key(left: Mapping[K, V], right: Mapping[K, V]) -> Iterator[tuple[K, V | None, V | None]]:
    """Yield every key of two sides in order, with what each side has under it."""
    for key in sorted(left.keys() | right.keys()):
        yield key, left.get(key), right.get(key)


def _trajectories(left: Side, right: Side, cut: set[str], same: dict[Kind, int]) -> Iterator[DifferenceEntry]:
    for trajectory_id, left_record, right_record in _pair_by_key(left.trajectories, right.trajectories):
        edge = trajectory_id in cut
        present = left_record or right_record
        if present is not None and (left_record is None or right_record is None):
            present_side, absent_side = (right, left) if left_record is None else (left, right)
            reason = absent_side.dropped.get(("", present.episode_id), (ABSENT, ""))[0]
            why = (
                EDGE
                if edge
                else _of_configuration("", present.config_hash, absent_side, f"{absent_side.name} says: {reason}")
            )
            yield "trajectory", f"only in {present_side.name}", why, edge, trajectory_id
        elif left_record is not None and right_record is not None and left_record.digest != right_record.digest:
            yield "trajectory", "other content", _why_other(left_record, right_record), edge, trajectory_id
        else:
            same["trajectory"] += 1


def _why_other(left_record: Assembled, right_record: Assembled) -> str:
    if left_record.config_hash != right_record.config_hash:
        return f"{OTHER_CONFIGURATION} of assembly"
    if left_record.rewards != right_record.rewards:
        return "other rewards were in when it was assembled"
    if left_record.untrainable != right_record.untrainable:
        return f"{left_record.untrainable or 'trainable'} → {right_record.untrainable or 'trainable'}"
    return "assembled at another stream time" if left_record.at_ms != right_record.at_ms else "other turns"


def _scores(left: Side, right: Side, cut: set[str], same: dict[Kind, int]) -> Iterator[DifferenceEntry]:
    for trajectory_id, left_record, right_record in _pair_by_key(left.scores, right.scores):
        edge = trajectory_id in cut
        if left_record is None or right_record is None:
            present_side, absent_side = (right, left) if left_record is None else (left, right)
            if trajectory_id in absent_side.trajectories:  # else the trajectory itself is the difference
                yield "score", f"only in {present_side.name}", EDGE if edge else "not scored yet", edge, trajectory_id
        elif (left_record.outcome, left_record.value, left_record.excluded) == (
            right_record.outcome,
            right_record.value,
            right_record.excluded,
        ):
            same["score"] += 1
        else:
            left_score, right_score = _describe(left_record), _describe(right_record)
            change = f"{left_score} → {right_score}"
            if left_score == right_score and left_record.value != right_record.value:  # they differ in a later digit
                change = f"{left_record.value!r} → {right_record.value!r}"
            yield "score", "changed", _why_score(left_record, right_record), edge, f"{trajectory_id}: {change}"


def _describe(score: Score) -> str:
    if score.value is not None:
        return f"{score.value:g}"
    return f"{score.outcome} ({score.error[:60]})" if score.error else score.outcome


def _why_score(left_record: Score, right_record: Score) -> str:
    if left_record.reward_version != right_record.reward_version:
        return "another reward"
    if left_record.excluded != right_record.excluded:
        return "excluded on one side"
    if left_record.config_hash != right_record.config_hash:
        return f"{OTHER_CONFIGURATION} of scoring"
    if left_record.outcome != right_record.outcome:
        return f"{left_record.outcome} → {right_record.outcome}"
    return (
        "other feedback counted" if left_record.revision != right_record.revision else "a function answered differently"
    )


def _groups(
    left: Side, right: Side, cut: set[str], span: CommonTime, same: dict[Kind, int]
) -> Iterator[DifferenceEntry]:
    for (run, _), left_record, right_record in _pair_by_key(left.groups, right.groups):
        group = left_record or right_record
        if left_record is not None and right_record is not None:
            yield from _same_group(run, left_record, right_record, same)
        elif group is not None:
            present_side, absent_side = (right, left) if left_record is None else (left, right)
            edge = _is_cut(group, cut, span)
            why = EDGE if edge else _why_no_group(run, group, absent_side)
            yield (
                "group",
                f"only in {present_side.name}",
                why,
                edge,
                f"{group.group_key} ({len(group.members)} members)",
            )


def _is_cut(group: Group, cut: set[str], span: CommonTime) -> bool:
    return not span.has_whole(group.closed_at_ms) or any(member.trajectory_id in cut for member in group.members)


def _same_group(run: str, left_record: Group, right_record: Group, same: dict[Kind, int]) -> Iterator[DifferenceEntry]:
    if left_record.has_signal != right_record.has_signal:
        what = "gained" if right_record.has_signal else "lost"
        yield "signal", f"{what} (run {run})", _why_advantages(left_record, right_record), False, left_record.group_key
    elif [member.advantages for member in left_record.members] != [
        member.advantages for member in right_record.members
    ]:
        yield (
            "group",
            f"other advantages (run {run})",
            _why_advantages(left_record, right_record),
            False,
            left_record.group_key,
        )
    else:
        same["group"] += 1


def _why_advantages(left_record: Group, right_record: Group) -> str:
    if _rewards(left_record) != _rewards(right_record):
        return "other rewards"
    if left_record.config_hash != right_record.config_hash:
        return f"{OTHER_CONFIGURATION} of the run"
    return "other scores came before it" if left_record.is_single else "another way to compute advantages"


def _rewards(group: Group) -> list[float]:
    return [member.reward for member in group.members]


def _why_no_group(run: str, group: Group, absent_side: Side) -> str:
    """Say what became of a group's members on the side that has not this group."""
    fates = {_fate(run, member.trajectory_id, absent_side) for member in group.members}
    fate = "its members are in other groups" if fates == {"in another group"} else ", ".join(sorted(fates))
    return _of_configuration(run, group.config_hash, absent_side, fate)


def _of_configuration(run: str, config_hash: str, absent_side: Side, otherwise: str) -> str:
    """Name the configuration as the cause, if the side without a record has never had the one that made it."""
    if absent_side.knows(run, config_hash):
        return otherwise
    return f"{OTHER_CONFIGURATION} of {'the run' if run else 'assembly'}: {otherwise}"


def _fate(run: str, trajectory_id: str, side: Side) -> str:
    if (run, trajectory_id) in side.members:
        return "in another group"
    for place in ((run, trajectory_id), ("", trajectory_id)):
        if place in side.dropped:
            return f"dropped as {side.dropped[place][0]}"
    return "still waiting" if trajectory_id in side.scores else "not assembled"


def _curriculum(left: Side, right: Side, same: dict[Kind, int]) -> Iterator[DifferenceEntry]:
    for place in sorted(left.groups.keys() & right.groups.keys()):
        left_record, right_record = left.fates.get(place, "waiting"), right.fates.get(place, "waiting")
        if left_record == right_record:
            same["curriculum"] += 1
        else:
            group = left.groups[place]
            why = _why_other_choice(group, right.groups[place])
            edge = "waiting" in (left_record, right_record)
            cause = "the open window at the range's edge" if edge else why
            yield "curriculum", f"{left_record} → {right_record} (run {place[0]})", cause, edge, group.group_key


def _why_other_choice(left_record: Group, right_record: Group) -> str:
    if _rewards(left_record) != _rewards(right_record):
        return "its rewards differ"
    same_settings = left_record.config_hash == right_record.config_hash
    return "other window or rank" if same_settings else f"{OTHER_CONFIGURATION} of the run"


def _batches(
    left: Side, right: Side, cut: set[str], span: CommonTime, same: dict[Kind, int]
) -> Iterator[DifferenceEntry]:
    for (run, groups), left_record, right_record in _pair_by_key(left.batches, right.batches):
        if left_record is not None and right_record is not None:
            same["batch"] += 1
            continue
        present_side, absent_side = (right, left) if left_record is None else (left, right)
        places = [(run, group) for group in groups]
        edge = any(_is_open(place, present_side, absent_side, cut, span) for place in places)
        why = EDGE if edge else _why_no_batch(places, present_side, absent_side)
        number = present_side.batches[run, groups]
        yield "batch", f"only in {present_side.name} (run {run})", why, edge, f"batch {number}: {len(groups)} groups"


def _is_open(place: tuple[str, str], present_side: Side, absent_side: Side, cut: set[str], span: CommonTime) -> bool:
    """Say whether the edge has cut a group of a batch: itself, or the window that it would have been in."""
    if place not in present_side.groups:
        return True
    return (
        place not in absent_side.fates
        if place in absent_side.groups
        else _is_cut(present_side.groups[place], cut, span)
    )


def _why_no_batch(places: Sequence[tuple[str, str]], present_side: Side, absent_side: Side) -> str:
    """Say what became of a batch's groups on the side that has not this batch."""
    runs_configured_differently = [
        run for run, group in places if not absent_side.knows(run, present_side.groups[run, group].config_hash)
    ]
    if runs_configured_differently:
        return f"{OTHER_CONFIGURATION} of the run"
    if any(place not in absent_side.groups for place in places):
        return f"{absent_side.name} has other groups"
    if other_fates := sorted({absent_side.fates[place] for place in places} - {"admitted"}):
        return f"of its groups some are {', '.join(other_fates)} in {absent_side.name}"
    if {(run, group) for run, groups in absent_side.batches for group in groups}.issuperset(places):
        return "its groups are in other batches"
    return f"its groups wait for a step in {absent_side.name}"
