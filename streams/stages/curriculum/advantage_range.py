"""A curriculum by advantage: it admits groups with an advantage further from 0 than `least_advantage`.

At 0, the default, it admits every group with signal.
"""

from rollbus.schemas.records.config import CurriculumConfig
from rollbus.schemas.records.groups import Group
from rollbus.streams.stages.curriculum.modes import Decision, Memory, Window


def advantage_range(window: Window, memory: Memory, config: CurriculumConfig) -> Decision:
    """Decide on one window; admitted groups keep their order of arrival."""
    with_signal = [group for group in window.groups if group.has_signal]
    return Decision(
        memory,
        admitted=tuple(group.group_id for group in with_signal if _reaches(group, config)),
        rejected=tuple(group.group_id for group in with_signal if not _reaches(group, config)),
        no_signal=tuple(group.group_id for group in window.groups if not group.has_signal),
    )


def _reaches(group: Group, config: CurriculumConfig) -> bool:
    advantages = (advantage for member in group.members for advantage in member.advantages)
    return any(abs(advantage) > config.least_advantage for advantage in advantages)
