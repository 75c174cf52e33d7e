"""Batches that are made, groups that wait, and how fast they come → when the next step comes."""

from dataclasses import dataclass, replace

from rollbus.health.funnel.numbers import TRAINABLE, FunnelNumbers, FunnelSettings
from rollbus.runtime.health.alarms.problem import say_duration

HOUR_MS = 3_600_000
LEAST_GROUPS = 8
"""That a pace is taken from: fewer may have come together by chance."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """When the next step comes at this rate."""

    step: int
    """Its number."""
    step_name: str
    """In words."""
    groups_waiting: int
    groups_needed: int
    groups_per_hour: float
    eta_ms: int | None
    """Until it begins: None if it never comes at this rate, or the run is held; 0 if it can begin, or has begun."""
    sentence: str
    unrewarded: int = 0
    """Episodes that can be trained and have no reward yet, where nothing else is on its way."""
    held: str = ""
    """`paused` or `stopped` where the run takes no batches, whatever waits."""
    is_batch_made: bool = False
    """Whether the step needs a trainer and nothing else."""


def forecast_step(numbers: FunnelNumbers, settings: FunnelSettings) -> Forecast:
    """Return when the batch of the next step is full, or is cut in time, at the pace of the newest groups."""
    run, batching = numbers.run, settings.run.batching
    needed, step = batching.groups_per_step, run.step + 1
    name = "the first step" if step == 1 else f"step {step}"
    per_hour = _measure_pace(numbers, max(needed, LEAST_GROUPS))
    count_text = _count_groups(run.waiting_groups, needed)
    waits_ms = []
    if run.open_batches or run.waiting_groups >= needed:
        waits_ms.append(0.0)
    elif per_hour > 0:
        waits_ms.append((needed - run.waiting_groups) / per_hour * HOUR_MS)
    if batching.flush_ms is not None and run.waiting_groups:
        waits_ms.append(max(0, run.oldest_waiting_ms + batching.flush_ms - numbers.now_ms))
    eta_ms = round(min(waits_ms)) if waits_ms else None
    unrewarded = 0 if waits_ms else _count_unrewarded(numbers)
    if run.open_batches:
        sentence = f"the batch of {name} is made, and is trained now or next; {count_text} wait for the one after it"
    elif unrewarded:
        have = "episode has" if unrewarded == 1 else "episodes have"
        sentence = f"{count_text}: {name} waits for rewards; {unrewarded} {have} none yet"
    elif eta_ms is None:
        sentence = f"{count_text}: no group with a signal has come lately, and at this rate {name} never comes"
    elif eta_ms == 0:
        sentence = f"{count_text}: {name} can begin"
    else:
        sentence = f"{count_text}: at this rate {name} comes in {say_wait(eta_ms)}"
    forecast = Forecast(
        step,
        name,
        run.waiting_groups,
        needed,
        per_hour,
        eta_ms,
        sentence,
        unrewarded,
        is_batch_made=run.open_batches > 0,
    )
    return replace(hold_step(forecast, f"the run is {run.held}"), held=run.held) if run.held else forecast


def hold_step(forecast: Forecast, why: str) -> Forecast:
    """Return the forecast of a step that does not come before something changes."""
    counted = _count_groups(forecast.groups_waiting, forecast.groups_needed)
    return replace(forecast, eta_ms=None, sentence=f"{counted}: {forecast.step_name} waits, since {why}")


def _count_groups(waiting: int, needed: int) -> str:
    return f"{waiting} of {needed} groups" if waiting <= needed else f"{waiting} groups, {needed} a step"


def _count_unrewarded(numbers: FunnelNumbers) -> int:
    return sum(count.episodes for count in numbers.episodes if count.reached == TRAINABLE and not count.dropped_by)


def _measure_pace(numbers: FunnelNumbers, most: int) -> float:
    """Return groups with a signal per hour, since the newest `most` of them began to come: a silence slows it.

    Where fewer came: over the recent time or, if it is shorter, since the first of them.
    """
    times_ms = numbers.run.recent_groups_ms
    begin_ms = max(numbers.recent_ms, numbers.run.first_group_ms, *times_ms[most - 1 : most])
    begin_ms = min(begin_ms, numbers.now_ms - 60_000)  # a minute at least: two groups in a second are not a pace
    return sum(time_ms >= begin_ms for time_ms in times_ms) * HOUR_MS / (numbers.now_ms - begin_ms)


def say_wait(ms: float) -> str:
    """Return a time that is only estimated, in words."""
    minutes = ms / 60_000
    if minutes < 0.75:
        return "less than a minute"
    if minutes < 1.5:
        return "about a minute"
    return f"{minutes:.0f} minutes" if minutes < 120 else say_duration(ms)
