"""A curriculum by surprise: it admits the share of a window's groups that are furthest from what was expected.

A group's distance is its largest advantage, up or down: of a single attempt, how far its reward was from what is known
of its example, of openings alike and of its task. The furthest come first in the next step. What went as expected
teaches least; it is rejected, and was learnt from by the expectation all the same.
"""

import math

from rollbus.schemas.records.config import CurriculumConfig
from rollbus.schemas.records.groups import Group
from rollbus.schemas.shares import share_of
from rollbus.streams.stages.curriculum.modes import Decision, Memory, Window


def surprise(window: Window, memory: Memory, config: CurriculumConfig) -> Decision:
    """Decide on one window; equally far groups keep their order of arrival."""
    with_signal = sorted((group for group in window.groups if group.has_signal), key=_distance, reverse=True)
    count = math.ceil(share_of(config.surprise_share, len(with_signal)))
    return Decision(
        memory,
        admitted=tuple(group.group_id for group in with_signal[:count]),
        rejected=tuple(group.group_id for group in with_signal[count:]),
        no_signal=tuple(group.group_id for group in window.groups if not group.has_signal),
    )


def _distance(group: Group) -> float:
    return max(abs(advantage) for member in group.members for advantage in member.advantages)
