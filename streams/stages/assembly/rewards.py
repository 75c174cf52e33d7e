"""Reward reports to the rewards in force: superseded and retracted ones are gone.

The order is the broker's: what it took last is the last word, whatever time a report states.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from rollbus.schemas.records.events import RewardReported, Signal
from rollbus.schemas.records.trajectories import Reward


@dataclass(frozen=True, slots=True)
class TakenReport:
    """A reward report as the broker took it."""

    record: RewardReported
    order: int
    """Grows with arrival."""
    principal: str = ""
    """Whose valid signature it carries."""

    @property
    def speaker(self) -> tuple[str, str, str]:
        """What a later report must share to replace this one: reward, source and principal."""
        return self.record.name, self.record.source, self.principal


def standing(reports: Iterable[TakenReport]) -> tuple[Reward, ...]:
    """Return the rewards in force of an episode's reports.

    A report is gone once another one of its reward, source and principal names it in `supersedes`: nobody undoes what
    somebody else said. A retraction that names none withdraws the earlier ones, of the same turn, by the same speaker.
    """
    ordered = sorted(reports, key=lambda report: report.order)
    replaced = {(report.speaker, report.record.supersedes) for report in ordered if report.record.supersedes}
    in_force: dict[int, TakenReport] = {}
    orders_by_subject: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for report in ordered:
        record = report.record
        if (report.speaker, record.event_id) in replaced:
            continue
        orders = orders_by_subject[report.speaker, record.turn_event_id]
        if not record.retracted:
            in_force[report.order] = report
            orders.append(report.order)
        elif not record.supersedes:
            for order in orders:
                del in_force[order]
            orders.clear()
    return tuple(map(reward_of, in_force.values()))


def changes(
    before: Iterable[tuple[str, float]], now: Iterable[Reward], reports: Iterable[TakenReport]
) -> tuple[tuple[str, ...], tuple[Reward, ...]]:
    """Return the ids of the rewards that are new or have another value, and the rewards that are no longer in force.

    `before` are ids and values as they were last written, `reports` all that may have been among them.
    """
    values: Mapping[str, float] = dict(before)
    now_by_id = {reward.event_id: reward for reward in now}
    new = tuple(name for name, reward in now_by_id.items() if values.get(name) != reward.value)
    gone_ids = [name for name in values if name not in now_by_id]
    report_by_id = {report.record.event_id: report for report in reports} if gone_ids else {}
    return new, tuple(reward_of(report_by_id[name]) for name in gone_ids if name in report_by_id)


def without_words(rewards: Iterable[Reward]) -> tuple[Reward, ...]:
    """Return rewards without what a user said."""
    return tuple(replace(reward, comment=None) for reward in rewards)


def reward_of(report: TakenReport) -> Reward:
    """Return a report as a trajectory names it."""
    record = report.record
    signal: Signal = record.signal if record.value is None else ""
    return Reward(
        event_id=record.event_id,
        name=record.name,
        value=record.value if record.value is not None else 0.0,
        turn_event_id=record.turn_event_id,
        source=record.source,
        principal=report.principal,
        signal=signal,
        comment=record.comment if signal else None,
    )
