"""Reported rewards of one name, or of all, to a number.

Reports on the episode outweigh reports on its turns. `combine` is `last`, `sum`, `mean`, `min` or `max`; without it
the last report on the episode counts, or else the sum over the turns, which is the return.

With the option `report: "*"` each name gives a value in this way, and the component is their mean: every reward that is
reported counts before anything is configured, and a name that only some episodes have does not change the scale.
"""

from collections.abc import Callable, Sequence
from statistics import fmean

from rollbus.schemas.records.config import EVERY_NAME
from rollbus.schemas.records.trajectories import Reward, Trajectory, TurnReward
from rollbus.streams.rewards.contract import RewardContext, TurnValues

STEP = "step"
"""`NAME.step` reported on a turn is the part of the report NAME that the turn earned, as in shaped rewards."""
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
    names = len(reports_by_name)
    total = fmean(_value_of(reports, context) for reports in reports_by_name.values())
    turns = [turn for reports in reports_by_name.values() for turn in _turns_of(reports, context, names)]
    steps = [report for report in trajectory.rewards if report.name == f"{name}.{STEP}" and report.turn_event_id]
    turns += [_turn_reward(report, context, 1.0, 1) for report in steps if name in reports_by_name]
    return TurnValues(tuple(turns), total) if turns else total


def _turns_of(reports: Sequence[Reward], context: RewardContext, names: int) -> list[TurnReward]:
    """Return what the turns were reported under one name, with its share in the value; none if the episode's counts."""
    if any(report.turn_event_id is None for report in reports):
        return []
    values = [report.value for report in reports]
    combine = str(context.options.get("combine") or "sum")
    if combine in ("sum", "mean"):
        share = 1.0 if combine == "sum" else 1 / len(values)
        return [_turn_reward(report, context, share, names) for report in reports]
    chosen = len(values) - 1 if combine == "last" else values.index(_COMBINE[combine](values))
    return [_turn_reward(report, context, float(place == chosen), names) for place, report in enumerate(reports)]


def _turn_reward(report: Reward, context: RewardContext, share: float, names: int) -> TurnReward:
    return TurnReward(
        turn_event_id=report.turn_event_id or "",
        component=context.name,
        value=report.value / names,
        share=share,
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
