"""Reward reports to the rewards in force: superseded and retracted ones are gone.

The order is that of event time, then id, whatever the order of arrival.
"""

from collections.abc import Iterable

from rollbus.schemas.records.events import RewardReported
from rollbus.schemas.records.trajectories import Reward


def standing(reports: Iterable[RewardReported]) -> tuple[Reward, ...]:
    """Return the rewards in force of an episode's reports.

    A report is gone once another of its name names it in `supersedes`: who may set one reward can undo no other. A
    retraction that names none withdraws the earlier reports of its name, turn and source.
    """
    ordered = sorted(reports, key=_order)
    replaced = {(report.name, report.supersedes) for report in ordered if report.supersedes}
    kept: list[RewardReported] = []
    for report in ordered:
        if (report.name, report.event_id) in replaced:
            continue
        if report.retracted:
            if not report.supersedes:
                kept = [earlier for earlier in kept if _subject(earlier) != _subject(report)]
        else:
            kept.append(report)
    return tuple(_reward(report) for report in kept)


def _order(report: RewardReported) -> tuple[int, str]:
    return report.occurred_at_ms, report.event_id


def _subject(report: RewardReported) -> tuple[str, str | None, str]:
    return report.name, report.turn_event_id, report.source


def _reward(report: RewardReported) -> Reward:
    return Reward(
        event_id=report.event_id,
        name=report.name,
        value=report.value if report.value is not None else 0.0,
        turn_event_id=report.turn_event_id,
        source=report.source,
    )
