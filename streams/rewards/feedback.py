"""Reported rewards of one name, or of all, to a number.

Reports on the episode outweigh reports on its turns. `combine` is `last`, `sum`, `mean`, `min` or `max`; without it
the last report on the episode counts, or else the sum over the turns, which is the return.

With the option `report: "*"` each name gives a value in this way, and the component is their mean: every reward that is
reported counts before anything is configured, and a name that only some episodes have does not change the scale.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from rollbus.schemas.records.config import EVERY_NAME
from rollbus.schemas.records.trajectories import Reward, Trajectory, TurnReward
from rollbus.streams.rewards.contract import RewardContext, TurnValues

_COMBINE: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda values: values[-1],
    "sum": sum,
    "mean": fmean,
    "min": min,
    "max": max,
}


def feedback(trajectory: Trajectory, context: RewardContext) -> float | TurnValues | None:
    """Return what was reported under the component's name, or the option `report`; None without a report.

    Reports of what a user did next have no value, and `next_turn` reads them.
    """
    name, source = context.options.get("report") or context.name, context.options.get("source")
    reports_by_name: dict[str, list[Reward]] = {}
    for report in trajectory.rewards:
        if not report.signal and name in (report.name, EVERY_NAME) and source in (report.source, None, ""):
            reports_by_name.setdefault(report.name, []).append(report)
    if not reports_by_name:
        return None
    total = fmean(_value_of(reports, context) for reports in reports_by_name.values())
    turns = tuple(_turns_of(reports_by_name, context))
    return TurnValues(turns, total) if turns else total


def _turns_of(reports_by_name: Mapping[str, Sequence[Reward]], context: RewardContext) -> Iterator[TurnReward]:
    """Yield what each turn was reported, as it counts in the mean of the names; nothing where the episode's counts."""
    for reports in reports_by_name.values():
        if any(report.turn_event_id is None for report in reports):
            continue
        for report in reports:
            yield TurnReward(
                turn_event_id=report.turn_event_id or "",
                component=context.name,
                value=report.value / len(reports_by_name),
                event_id=report.event_id,
            )


def _value_of(reports: Sequence[Reward], context: RewardContext) -> float:
    """Return the value that the reports of one name give."""
    on_episode = [report.value for report in reports if report.turn_event_id is None]
    values = on_episode or [report.value for report in reports]
    combine = str(context.options.get("combine") or ("last" if on_episode else "sum"))
    if combine not in _COMBINE:
        raise ValueError(f"feedback: combine {combine!r} is none of {', '.join(_COMBINE)}")
    return float(_COMBINE[combine](values))
