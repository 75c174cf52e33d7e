"""How fast a demo's traffic comes: more slowly while the machine trains on too little of it, then faster again.

    what was trained and passed over since the last look ─▶ the rate of the traffic, in a file that it reads

Other work on the machine slows training down, and not the customers: groups would be passed over that a machine to
itself trains on, and the demo would show how busy the machine was. So what slows down is the traffic.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

WINDOW_S = 60.0
"""Between two changes: a few steps."""
MOST_PASSED_OVER = 0.25
"""Of the trajectories of groups with signal. A machine to itself passes about a tenth over, since customers come in
bursts."""
SLOWER, FASTER = 0.7, 1.15
"""Factors of the rate. A machine that is twice as slow is followed in two minutes."""
SLOWEST = 0.4
"""Share of the first rate below which the traffic does not slow down: the demo shall end."""


@dataclass(frozen=True, slots=True)
class TrafficPace:
    """The rate, and what had become of the traffic when it was set."""

    first_per_s: float
    """What the machine could learn from when the traffic began; it never comes faster."""
    per_s: float
    at_s: float
    trained: int = 0
    """Trajectories until then."""
    passed_over: int = 0
    """Trajectories that had signal and gave way to newer ones, or became stale, until then."""


def next_pace(pace: TrafficPace, *, now_s: float, trained: int, passed_over: int) -> TrafficPace:
    """Return the pace from now on; the same until `WINDOW_S` has passed."""
    if now_s - pace.at_s < WINDOW_S:
        return pace
    newly_trained, newly_passed_over = trained - pace.trained, passed_over - pace.passed_over
    is_too_fast = newly_passed_over > MOST_PASSED_OVER * (newly_trained + newly_passed_over)
    rate = pace.per_s * (SLOWER if is_too_fast else FASTER)
    rate = max(SLOWEST * pace.first_per_s, min(rate, pace.first_per_s))
    return replace(pace, per_s=rate, at_s=now_s, trained=trained, passed_over=passed_over)


def write_rate(file: Path, per_s: float) -> None:
    """Tell the traffic its rate; a reader sees the old or the new one."""
    new = file.with_suffix(".new")
    new.write_text(f"{per_s}\n")
    os.replace(new, file)


def read_rate(file: Path) -> float:
    """Return the rate, per second."""
    return float(file.read_text())
