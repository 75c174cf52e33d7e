"""A reward over groups that needs the payload of all members, and fails on some groups; and one that fails on some
trajectories.
"""

from collections.abc import Sequence

from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.rewards.contract import RewardContext, RewardFunction
from rollbus.streams.rewards.registry import BUILT_IN


def places(group: Sequence[Trajectory], context: RewardContext) -> list[float | None]:
    """Grade by the place among the ids, which can be worked out from them alone; groups of three fail."""
    if len(group) > 2:
        raise RuntimeError("three are a crowd")
    names = sorted(member.trajectory_id for member in group)
    assert all(member.turns for member in group)
    return [float(names.index(member.trajectory_id)) for member in group]


def moody(trajectory: Trajectory, context: RewardContext) -> float:
    """Fail on a quarter of the trajectories, by their ids."""
    if trajectory.trajectory_id[-1] in "0123":
        raise RuntimeError("not in the mood")
    return 1.0


REGISTRY = {
    **BUILT_IN,
    "moody": RewardFunction(moody, quick=True),
    "places": RewardFunction(places, per="group", quick=True),
}
