"""Reported rewards of one name, or of all, to a number.

Reports on the episode outweigh reports on its turns. `combine` is `last`, `sum`, `mean`, `min` or `max`; without it
the last report on the episode counts, or else the sum over the turns, which is the return.

With the option `report: "*"` each name gives a value in this way, and the component is their mean: every reward that is
reported counts before anything is configured, and a name that only some episodes have does not change the scale.

Without `combine` each principal has one voice, however many reports and names it has, and the component is the mean of
the voices: a later report does not replace that of another principal. Verdicts of `operator` on the page outweigh all
others.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from rollbus.schemas.principals import OPERATOR
from rollbus.schemas.records.config import EVERY_NAME
from rollbus.schemas.records.trajectories import Reward, Trajectory, TurnReward
from rollbus.streams.rewards.contract import RewardContext, TurnValues

STEP = "step"
"""`NAME.step` reported on a turn is the part of the report NAME that the turn earned, as in shaped rewards."""
COMBINE: dict[str, Callable[[Sequence[float]], float]] = {
    "last": lambda values: values[-1],
    "sum": sum,
    "mean": fmean,
    "min": min,
    "max": max,
}
Voice = Mapping[str, Sequence[Reward]]
"""Reports that count together, by name."""


def feedback(trajectory: Trajectory, context: RewardContext) -> float | TurnValues | None:
    """Return what was reported under the component's name, or the option `report`; None without a report.

    Reports of what a user did next have no value, and `next_turn` reads them.
    """
    name, source = context.options.get("report") or context.name, context.options.get("source")
    reports = [
        report
        for report in trajectory.rewards
        if not report.signal and name in (report.name, EVERY_NAME) and source in (report.source, None, "")
    ]
    if not reports:
        return None
    voices = _group_into_voices(reports, is_one_voice=bool(context.options.get("combine")))
    total = fmean(
        fmean(_combine_reports(same_name_reports, context) for same_name_reports in voice.values())
        for voice in voices.values()
    )
    turns: list[TurnReward] = []
    for voice in voices.values():
        for same_name_reports in voice.values():
            turns += _split_among_turns(same_name_reports, context, len(voice) * len(voices))
    steps = [
        report
        for report in trajectory.rewards
        if report.name == f"{name}.{STEP}" and report.turn_event_id and source in (report.source, None, "")
    ]
    for principal, voice in voices.items():
        if name in voice:
            voice_steps = [step for step in steps if principal in (step.principal, None)]
            turns += [_make_turn_reward(step, context, 1.0, len(voices)) for step in voice_steps]
    return TurnValues(tuple(turns), total) if turns else total


def _group_into_voices(reports: Iterable[Reward], *, is_one_voice: bool) -> Mapping[str | None, Voice]:
    """Return the reports by principal, or all under None; where an operator has reported, only the operator's."""
    voices: dict[str | None, dict[str, list[Reward]]] = {}
    for report in reports:
        voices.setdefault(None if is_one_voice else report.principal, {}).setdefault(report.name, []).append(report)
    return {OPERATOR: voices[OPERATOR]} if OPERATOR in voices else voices


def _split_among_turns(reports: Sequence[Reward], context: RewardContext, parts: int) -> list[TurnReward]:
    """Return the turns' rewards of one name, with their shares in its value; none if a report on the episode counts."""
    if any(report.turn_event_id is None for report in reports):
        return []
    values = [report.value for report in reports]
    combine = str(context.options.get("combine") or "sum")
    if combine in ("sum", "mean"):
        share = 1.0 if combine == "sum" else 1 / len(values)
        return [_make_turn_reward(report, context, share, parts) for report in reports]
    chosen_index = len(values) - 1 if combine == "last" else values.index(COMBINE[combine](values))
    return [
        _make_turn_reward(report, context, float(index == chosen_index), parts) for index, report in enumerate(reports)
    ]


def _make_turn_reward(report: Reward, context: RewardContext, share: float, parts: int) -> TurnReward:
    """Return a turn's reward in a component whose value is the mean of so many parts."""
    return TurnReward(
        turn_event_id=report.turn_event_id or "",
        component=context.name,
        value=report.value / parts,
        share=share,
        event_id=report.event_id,
    )


def _combine_reports(reports: Sequence[Reward], context: RewardContext) -> float:
    """Return the value that the reports of one name give."""
    on_episode = [report.value for report in reports if report.turn_event_id is None]
    values = on_episode or [report.value for report in reports]
    combine = str(context.options.get("combine") or ("last" if on_episode else "sum"))
    if combine not in COMBINE:
        raise ValueError(f"feedback: `combine` is {combine!r}; choose one of {', '.join(COMBINE)}")
    return float(COMBINE[combine](values))
