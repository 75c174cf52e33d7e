"""A curriculum by difficulty: it admits all normal problems, and a share each of the hard and the easy ones.

The difficulty of a problem is the mean of its last group before this window, so a group's own luck does not decide. A
problem that is new, or forgotten after 100,000 others, is judged by its own mean. The CurriculumState of a window holds
what it learned, with null for a problem that it forgot. Groups below `min_reward_diff` leave first. A hash of seed and
id decides which groups of a pool are admitted.
"""

import math

from rollbus.schemas.records.config import CurriculumConfig
from rollbus.schemas.records.groups import Group
from rollbus.schemas.shares import share_of
from rollbus.streams.stages.curriculum.modes import Decision, Memory, Window, is_flat, sample_ids


def pools(window: Window, memory: Memory, config: CurriculumConfig) -> Decision:
    """Decide on one window; admitted groups keep their order of arrival."""
    members: dict[str, list[str]] = {"hard": [], "normal": [], "easy": []}
    flat = tuple(group.group_id for group in window.groups if is_flat(group, config))
    for group in window.groups:
        if group.group_id not in flat:
            members[_pool(group, memory, config)].append(group.group_id)
    shares = {"hard": config.hard_share, "normal": 1.0, "easy": config.easy_share}
    counts = {pool: math.ceil(share_of(shares[pool], len(ids))) for pool, ids in members.items()}
    admitted_ids = {
        group_id
        for pool, ids in members.items()
        for group_id in sample_ids(ids, counts[pool], config.seed, window.run_id, window.index)
    }
    group_ids = [group.group_id for group in window.groups if group.group_id not in flat]
    return Decision(
        memory,
        admitted=tuple(group_id for group_id in group_ids if group_id in admitted_ids),
        rejected=tuple(group_id for group_id in group_ids if group_id not in admitted_ids),
        no_signal=flat,
        difficulty={group.group_key: group.reward_mean for group in window.groups},
    )


def _pool(group: Group, memory: Memory, config: CurriculumConfig) -> str:
    mean = memory.difficulty.get(group.group_key, group.reward_mean)
    if mean < config.hard_below:
        return "hard"
    return "easy" if mean > config.easy_above else "normal"
