"""What a curriculum mode is: from the groups of a window and a memory, it chooses the groups to admit."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rollbus.schemas.ids import content_hash
from rollbus.schemas.records.config import CurriculumConfig
from rollbus.schemas.records.groups import Group

SAME = 1e-9
"""How far two differences of rewards may be apart, relative to them, and be the same."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What a curriculum remembers from window to window."""

    percentile: float = 1.0
    """Share of the ranked groups that is admitted, 0 to 1; the harness's word for it."""
    last_expansion: int = -1
    """Index of the window in which the share last grew; −1 before it has grown."""
    total_groups: int | None = None
    """Groups with signal in the first window that had some; None before. Only reported, as the harness does."""
    difficulty: Mapping[str, float] = field(default_factory=dict)
    """Mean reward of the last group, by group key."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a window's groups."""

    memory: Memory
    admitted: tuple[str, ...] = ()
    """Group ids in rank order."""
    rejected: tuple[str, ...] = ()
    """Ids of groups that the mode ranked and did not admit."""
    no_signal: tuple[str, ...] = ()
    """Ids of groups whose rewards differ by too little."""
    difficulty: Mapping[str, float] = field(default_factory=dict)
    """Mean reward to remember, by group key."""
    members_left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Trajectory ids that are left out of an admitted group, by its id."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window that has just closed."""

    run_id: str
    index: int
    groups: Sequence[Group]
    """In order of arrival."""


Mode = Callable[[Window, Memory, CurriculumConfig], Decision]


def spread(group: Group) -> float:
    """Return max − min of the rewards; of a single attempt, its distance to what was expected."""
    if group.is_single:
        return max(abs(advantage) for member in group.members for advantage in member.advantages)
    return group.reward_max - group.reward_min


def is_flat(group: Group, config: CurriculumConfig) -> bool:
    """Say whether the rewards of a group differ by less than `min_reward_diff`."""
    return is_less(spread(group), config.min_reward_diff)


def is_less(distance: float, least: float) -> bool:
    """Say whether rewards are less apart than that; 0.9 and 0.8 are 0.1 apart, whatever floats make of it."""
    return distance < least and not math.isclose(distance, least, rel_tol=SAME)


def sample_ids(ids: Sequence[str], count: int, *seed: object) -> list[str]:
    """Return `count` of the ids in their order, chosen by a hash of seed and id: the same in every replay."""
    chosen_ids = set(sorted(ids, key=lambda candidate_id: content_hash([*seed, candidate_id]))[:count])
    return [candidate_id for candidate_id in ids if candidate_id in chosen_ids]
