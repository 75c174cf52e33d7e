"""A curriculum by difficulty: of hard, normal and easy problems a share each is admitted.

How hard a problem is was learnt from its last group before this window, so a group's own luck does not decide; one
never seen, or not for 100,000 others, is judged by its own mean. What a window taught stands in its CurriculumState,
null for a problem that it made forget. Groups below `min_reward_diff` leave first. Which groups of a pool are taken is
decided by a hash of seed and id.
"""

import math

from rollbus.schemas.config import CurriculumConfig
from rollbus.schemas.groups import Group
from rollbus.streams.curriculum_modes import Decision, Memory, Window, sampled, spread


def pools(window: Window, memory: Memory, config: CurriculumConfig) -> Decision:
    """Decide on one window; admitted groups keep their order of arrival."""
    members: dict[str, list[str]] = {"hard": [], "normal": [], "easy": []}
    flat = tuple(group.group_id for group in window.groups if spread(group) < config.min_reward_diff)
    for group in window.groups:
        if group.group_id not in flat:
            members[_pool(group, memory, config)].append(group.group_id)
    shares = {"hard": config.hard_share, "normal": config.normal_share, "easy": config.easy_share}
    taken = {
        group_id
        for pool, ids in members.items()
        for group_id in sampled(ids, math.ceil(len(ids) * shares[pool]), config.seed, window.run_id, window.index)
    }
    kept = [group.group_id for group in window.groups if group.group_id not in flat]
    return Decision(
        memory,
        admitted=tuple(group_id for group_id in kept if group_id in taken),
        rejected=tuple(group_id for group_id in kept if group_id not in taken),
        no_signal=flat,
        learned={group.group_key: group.reward_mean for group in window.groups},
    )


def _pool(group: Group, memory: Memory, config: CurriculumConfig) -> str:
    mean = memory.difficulty.get(group.group_key, group.reward_mean)
    if mean < config.hard_below:
        return "hard"
    return "easy" if mean > config.easy_above else "normal"
