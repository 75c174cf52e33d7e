"""Admitted groups become training batches: stale members leave, and a batch takes the groups that waited longest.

A single attempt takes the place of one member: where more wait than a batch asks for, a batch takes as many attempts as
full groups would have. Their advantages are centred over the batch, since what was expected lags behind the policy.

Where groups of several principals wait, they take turns: the next group is of the principal with the fewest members in
the batch so far. What is more of one principal waits. One principal alone has all, in the order of waiting.

Lag is measured at each member's oldest version: the completed steps between the weights that sampled and the newest
ones. The newest version is the one last made a candidate or put into service; after a rollback, its parent. A member
that leaves does not change the others' advantages. A group with fewer than two members left (one, if it is held against
an expectation) leaves whole.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heapreplace
from itertools import accumulate, takewhile
from statistics import median_low

from rollbus.schemas.ids import content_hash
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.groups import Group, GroupMember
from rollbus.schemas.records.steps import lags_from
from rollbus.streams.stages.grouping.advantages import advantages

FEWEST_CENTRED = 8
"""Single attempts whose mean says more than what was expected of each."""
NO_PARENT = -1
MOST_UNANNOUNCED = 1_000
"""How far above all known ones a version may be that no record has announced yet: numbers have gaps."""


class VersionPath:
    """The path from the newest version back along parents."""

    def __init__(self, parents: Mapping[int, int], newest: int | None) -> None:
        """`parents` gives the parent of each known version, NO_PARENT for a base model."""
        self.newest = newest
        self._parents = parents
        known_parents = {version: None if parent == NO_PARENT else parent for version, parent in parents.items()}
        self._lags = lags_from(None if newest == NO_PARENT else newest, known_parents)

    def lag(self, version: int) -> int | None:
        """Return the completed steps since `version`; None if it is not an ancestor of the newest.

        A version a little above all known ones is new and not announced yet: lag 0. A version below the oldest known
        one is older than the log: it lags by more than all of these.
        """
        if self.newest is None:
            return 0
        if version in self._lags:
            return self._lags[version]
        versions = self._parents.keys() | self._lags.keys()
        if version > max(versions):
            return 0 if version <= max(versions) + MOST_UNANNOUNCED else None
        return len(self._lags) if version < min(versions) else None


@dataclass(frozen=True, slots=True)
class Swept:
    """A group after the sweep."""

    group: Group | None
    """None if too few members are left."""
    dropped: tuple[tuple[DropReason, tuple[str, ...], str], ...] = ()
    """Reason, trajectory ids and detail."""


def sweep(group: Group, lineage: VersionPath, max_off_policy_steps: int) -> Swept:
    """Return the group without members that lag too far or are not on the lineage."""
    reasons = {member.trajectory_id: _refusal(member, lineage, max_off_policy_steps) for member in group.members}
    members = tuple(member for member in group.members if reasons[member.trajectory_id] is None)
    if len(members) == len(group.members):
        return Swept(group)
    least = 1 if group.is_single else 2
    gone = (
        [member for member in group.members if member not in members] if len(members) >= least else list(group.members)
    )
    stale = any(reason is DropReason.STALE for reason in reasons.values())
    default = DropReason.STALE if stale else DropReason.OFF_LINEAGE
    by_reason: dict[DropReason, list[str]] = {}
    for member in gone:
        by_reason.setdefault(reasons[member.trajectory_id] or default, []).append(member.trajectory_id)
    detail = f"newest version {lineage.newest}, at most {max_off_policy_steps} steps behind are allowed"
    dropped = tuple((reason, tuple(ids), detail) for reason, ids in sorted(by_reason.items()))
    return Swept(replace(group, members=members) if len(members) >= least else None, dropped)


def take_turns(groups: Sequence[Group]) -> Iterator[int]:
    """Yield the places of groups in the order in which batches take them: principals in turn, of each its first ones.

    A group is its main principal's, who recorded most of its members; each of its members counts for who recorded it.
    """
    if len({member.principal for group in groups for member in group.members}) <= 1:
        yield from range(len(groups))
        return
    lines: dict[str, deque[int]] = {}
    members_by_place = [Counter(member.principal for member in group.members) for group in groups]
    for place, members in enumerate(members_by_place):
        lines.setdefault(_main_principal(members), deque()).append(place)
    taken: Counter[str] = Counter()
    turns = [(0, line[0], principal) for principal, line in lines.items()]
    heapify(turns)
    while turns:
        count, _, principal = turns[0]
        line = lines[principal]
        if count == taken[principal]:  # else its members in other principals' groups were taken since
            place = line.popleft()
            taken.update(members_by_place[place])
            yield place
        if line:
            heapreplace(turns, (taken[principal], line[0], principal))
        else:
            heappop(turns)


def _main_principal(members: Counter[str]) -> str:
    return min(members, key=lambda principal: (-members[principal], principal), default="")


def count_that_fit(groups: Iterable[Group], places: int, group_size: int) -> int:
    """Return how many groups, from the first, fit into so many places for groups of such a size; at least one."""
    members = accumulate(1 if group.is_single else group_size for group in groups)
    return max(1, sum(1 for _ in takewhile(lambda total: total <= places * group_size, members)))


def centre_single_attempts(groups: Sequence[Group], kind: str) -> list[Group]:
    """Return the groups with the advantages of single attempts centred over all of them."""
    singles = [group for group in groups if group.is_single]
    if len(singles) < FEWEST_CENTRED:
        return list(groups)
    values = advantages([group.members[0].advantage for group in singles], kind)
    scale = _scale([group.members[0].advantage for group in singles], values)
    value_by_group = dict(zip((group.group_id for group in singles), values, strict=True))
    return [
        replace(group, members=(_move_advantage(group.members[0], value_by_group[group.group_id], scale),))
        if group.is_single
        else group
        for group in groups
    ]


def _scale(before: Sequence[float], after: Sequence[float]) -> float:
    """Return by what centring multiplied the distances between advantages."""
    distance = max(before) - min(before)
    return (max(after) - min(after)) / distance if distance else 1.0


def _move_advantage(member: GroupMember, advantage: float, scale: float) -> GroupMember:
    """Return a member with another advantage, and its turns as far from it as before, by the scale."""
    by_turn = {
        turn_id: advantage + scale * (value - member.advantage) for turn_id, value in member.turn_advantages.items()
    }
    return replace(member, advantage=advantage, turn_advantages=by_turn)


def usual_age_ms(groups_and_admission: Iterable[tuple[Group, int]]) -> int:
    """Return how old an attempt usually is when its group is admitted; 0 if no start is known."""
    ages = [
        at_ms - member.first_seen_ms
        for group, at_ms in groups_and_admission
        for member in group.members
        if member.first_seen_ms
    ]
    return median_low(ages) if ages else 0


def batch_hash(run_id: str, number: int, groups: Sequence[Group]) -> str:
    """Return the hash of everything that a step trains on."""
    members = [[group.group_id, [_trained_of(member) for member in group.members]] for group in groups]
    return content_hash([run_id, number, members])


def _trained_of(member: GroupMember) -> list[object]:
    further = [dict(by_turn) for by_turn in (member.turn_advantages, member.hints) if by_turn]
    return [member.trajectory_id, member.reward, member.advantage, *further]


def _refusal(member: GroupMember, lineage: VersionPath, max_off_policy_steps: int) -> DropReason | None:
    lags = (lineage.lag(member.min_policy_version), lineage.lag(member.max_policy_version))
    oldest = lags[0]
    if oldest is None or lags[1] is None:
        return DropReason.OFF_LINEAGE
    return DropReason.STALE if oldest > max_off_policy_steps else None


def newest_of(groups: Sequence[Group]) -> int:
    """Return the newest policy version that sampled any member."""
    return max((member.max_policy_version for group in groups for member in group.members), default=0)
