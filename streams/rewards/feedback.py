"""Reported rewards of one name to a number.

Reports on the episode outweigh reports on its turns. `combine` is `last`, `sum`, `mean`, `min` or `max`; without it
the last report on the episode counts, or else the sum over the turns, which is the return.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.rewards.contract import RewardContext

_COMBINE: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda values: values[-1],
    "sum": sum,
    "mean": fmean,
    "min": min,
    "max": max,
}


def feedback(trajectory: Trajectory, context: RewardContext) -> float | None:
    """Return what was reported under the component's name, or the option `report`; None without a report."""
    name = context.options.get("report") or context.name
    reports = [reward for reward in trajectory.rewards if reward.name == name]
    if source := context.options.get("source"):
        reports = [reward for reward in reports if reward.source == source]
    on_episode = [reward.value for reward in reports if reward.turn_event_id is None]
    values = on_episode or [reward.value for reward in reports]
    if not values:
        return None
    combine = str(context.options.get("combine") or ("last" if on_episode else "sum"))
    if combine not in _COMBINE:
        raise ValueError(f"feedback: combine {combine!r} is none of {', '.join(_COMBINE)}")
    return float(_COMBINE[combine](values))
