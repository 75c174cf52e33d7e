"""Reported rewards of one name, or of all, to a number.

Reports on the episode outweigh reports on its turns. `combine` is `last`, `sum`, `mean`, `min` or `max`; without it
the last report on the episode counts, or else the sum over the turns, which is the return.

With the option `report: "*"` each name gives a value in this way, and the component is their mean: every reward that is
reported counts before anything is configured, and a name that only some episodes have does not change the scale.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

from rollbus.schemas.records.config import EVERY_NAME
from rollbus.schemas.records.trajectories import Reward, Trajectory
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
    name, source = context.options.get("report") or context.name, context.options.get("source")
    reports_by_name: dict[str, list[Reward]] = {}
    for report in trajectory.rewards:
        if name in (report.name, EVERY_NAME) and source in (report.source, None, ""):
            reports_by_name.setdefault(report.name, []).append(report)
    if not reports_by_name:
        return None
    return fmean(_value_of(reports, context) for reports in reports_by_name.values())


def _value_of(reports: Sequence[Reward], context: RewardContext) -> float:
    """Return the value that the reports of one name give."""
    on_episode = [report.value for report in reports if report.turn_event_id is None]
    values = on_episode or [report.value for report in reports]
    combine = str(context.options.get("combine") or ("last" if on_episode else "sum"))
    if combine not in _COMBINE:
        raise ValueError(f"feedback: combine {combine!r} is none of {', '.join(_COMBINE)}")
    return float(_COMBINE[combine](values))
