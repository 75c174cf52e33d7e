"""One thing that is wrong: what, which, and what to do; and how times are written in it."""

from dataclasses import dataclass
from typing import Literal

AlarmName = Literal[
    "broker",
    "no_topics",
    "no_process",
    "silence",
    "waiting",
    "trouble",
    "lag",
    "no_traffic",
    "no_step",
    "long_step",
    "paused",
    "failed",
    "reward",
    "no_signal",
    "dead_letters",
    "disk",
    "archive_behind",
    "archive_missing",
    "clock",
]
RUNBOOK = "docs/runbook.md"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    alarm: AlarmName
    subject: str
    """The process, group, run or host."""
    what: str
    remedy: str


def say_duration(ms: float) -> str:
    """Return a time in seconds, minutes, hours or, from two of them on, days, in words."""
    seconds = ms / 1000
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} days"
