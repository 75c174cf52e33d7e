"""Follows the delays of both versions' rewards, and says how long the next episode waits for its own.

A sample of the episodes is followed for `wait_ms`, also after it was counted; of each version so many at once, whatever
their rewards do. Only the reward and the components that a metric asks for are waited for.
"""

from collections import Counter
from dataclasses import replace

from rollbus.schemas.ids import SEPARATOR
from rollbus.schemas.records.config import DeliveryConfig
from rollbus.schemas.records.delivery import EpisodeObserved
from rollbus.streams.stages.delivery.evidence.waiting import Delays, choose_wait
from rollbus.streams.stages.delivery.metric_verdicts import is_waited_for, known_values, metrics_of
from rollbus.streams.stages.delivery.state import DeliveryState, FollowedEpisode

MOST_FOLLOWED = 500
"""Of each version at once."""


def follow(state: DeliveryState, config: DeliveryConfig, record: EpisodeObserved) -> None:
    """Note what has come of an episode; a new one is followed if there is room."""
    key, now_ms = record.trajectory_id, state.clock.now_ms
    row = state.followed.get(key)
    if row is None:
        is_canary, is_serving = (
            record.served_versions == (version,) for version in (state.head.canary, state.head.serving)
        )
        has_room = state.followed_by_arm[is_canary] < MOST_FOLLOWED
        if not (is_canary or is_serving) or not config.wait_ms or not has_room:
            return
        row = FollowedEpisode(now_ms, is_canary, -1, {})
    if record.excluded:
        state.unfollow(key)
    elif record.revision > row.revision:
        names = [metric.name for metric, _ in known_values(config, record) if is_waited_for(metric.name)]
        age_ms = now_ms - row.arrived_ms + bool(record.revision)  # what comes later is in time for the next tick alone
        came = {name: row.came.get(name, age_ms) for name in names}
        state.follow(key, replace(row, revision=record.revision, came=came))


def update_wait(state: DeliveryState, config: DeliveryConfig) -> None:
    """Add what was followed long enough to the delays; then say how long an episode that comes now waits."""
    names = [metric.name for metric in metrics_of(config) if is_waited_for(metric.name)]
    for key, row in list(state.followed.rows.items()):
        if state.clock.now_ms - row.arrived_ms >= config.wait_ms:
            for name in names:
                place = _key(name, is_canary=row.is_canary)
                state.delays.put(place, (state.delays.get(place) or Delays()).add(row.came.get(name)))
            state.unfollow(key)
    waits = [_wait_of(state, config, name, is_canary=is_canary) for name in names for is_canary in (True, False)]
    known_waits = [wait_ms for wait_ms in waits if wait_ms is not None]
    if len(known_waits) == len(waits):
        state.head = replace(state.head, wait_ms=max(known_waits))


def _wait_of(state: DeliveryState, config: DeliveryConfig, name: str, *, is_canary: bool) -> int | None:
    """Return the wait that a version's rewards need."""
    delays = state.delays.get(_key(name, is_canary=is_canary))
    if delays is None:
        return None
    now_ms, came, outstanding = state.clock.now_ms, Counter[int](), Counter[int]()
    for row in state.followed.rows.values():
        if row.is_canary is is_canary:
            age_ms = row.came.get(name)
            if age_ms is None:
                outstanding[now_ms - row.arrived_ms] += 1
            else:
                came[age_ms] += 1
    return choose_wait(delays, came=came, outstanding=outstanding, longest_ms=config.wait_ms)


def _key(metric: str, *, is_canary: bool) -> str:
    return f"{'canary' if is_canary else 'serving'}{SEPARATOR}{metric}"
