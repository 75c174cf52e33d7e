"""The curriculum of the NeMo Agent Toolkit's harness, with windows in place of its epochs.

In its order: groups whose rewards differ by less than `min_reward_diff` leave; the rest is ranked by mean reward; the
share that is admitted grows by `increment_percentile` once `expansion_interval` windows have passed since it last
grew (windows count from 0, the last growth starts at −1); `random_subsample` keeps a part of what was admitted. A
window with exactly one group is only subsampled, inside that group. Groups of equal means rank by their keys, as the
harness ranks them by their place in the dataset: the order in which groups arrive differs from run to run.
Differences: the sample is seeded by ids; 28 % of 25 groups are 7, and 0.9 less 0.8 is 0.1, where the harness takes what
floats make of them.
"""

import math
from dataclasses import replace

from rollbus.schemas.ids import natural_order
from rollbus.schemas.records.config import CurriculumConfig
from rollbus.schemas.shares import share_of
from rollbus.streams.stages.curriculum.modes import Decision, Memory, Window, is_flat, sample_ids


def harness(window: Window, memory: Memory, config: CurriculumConfig) -> Decision:
    """Decide on one window."""
    if len(window.groups) == 1:
        return _decide_single_group(window, memory, config)
    groups = sorted(window.groups, key=lambda group: natural_order(group.group_key))
    spread_groups = [group for group in groups if not is_flat(group, config)]
    flat = tuple(group.group_id for group in groups if is_flat(group, config))
    if not spread_groups:
        return Decision(memory, no_signal=flat)
    sign = 1 if config.sort_ascending else -1
    ranked = [group.group_id for group in sorted(spread_groups, key=lambda group: sign * group.reward_mean)]
    memory = _expand_share(memory, window.index, len(ranked), config)
    admitted = ranked[: max(1, math.ceil(share_of(memory.percentile, len(ranked))))]
    if config.random_subsample is not None:
        count = math.ceil(share_of(config.random_subsample, len(admitted)))
        admitted = sample_ids(admitted, count, config.seed, window.run_id, window.index)
    admitted_ids = set(admitted)
    rejected = tuple(group_id for group_id in ranked if group_id not in admitted_ids)
    return Decision(memory, admitted=tuple(admitted), rejected=rejected, no_signal=flat)


def _expand_share(memory: Memory, window_index: int, group_count: int, config: CurriculumConfig) -> Memory:
    """Return the memory with the share that this window is decided with."""
    if memory.total_groups is None:
        memory = replace(memory, total_groups=group_count)
    if window_index - memory.last_expansion >= config.expansion_interval and memory.percentile < 1:
        percentile = min(1.0, memory.percentile + config.increment_percentile)
        memory = replace(memory, percentile=percentile, last_expansion=window_index)
    return memory


def _decide_single_group(window: Window, memory: Memory, config: CurriculumConfig) -> Decision:
    (group,) = window.groups
    if config.random_subsample is None:
        return Decision(memory, admitted=(group.group_id,))
    ids = [member.trajectory_id for member in group.members]
    count = math.ceil(share_of(config.random_subsample, len(ids)))
    chosen_ids = sample_ids(ids, count, config.seed, window.run_id, window.index)
    ids_left_out = tuple(trajectory_id for trajectory_id in ids if trajectory_id not in chosen_ids)
    return Decision(memory, admitted=(group.group_id,), members_left_out={group.group_id: ids_left_out})
