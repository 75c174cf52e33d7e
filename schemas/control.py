"""Records that a stage's input carries besides its data: time, configuration and commands.

Whatever a stage must know stands in its one input topic, so the order it decided on is in the log.
"""

from dataclasses import dataclass
from typing import Literal

RunCommandName = Literal["pause", "resume", "stop", "end_window"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The clock, written into the log: alone in advancing stream time."""

    number: int
    """Counts up by one; a tick seen before changes nothing."""
    stream_time_ms: int
    """Advances by at most twice the interval per tick, so an outage times nobody out."""
    wall_clock_ms: int
    """What the ticker's clock said; for reports only."""
    interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigApplied:
    """From here on the stage works with this configuration."""

    stage: str
    run_id: str | None = None
    """None for the stages of the namespace (assembly, scoring)."""
    config_hash: str
    content: str
    """Canonical JSON of the stage's configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """An operator's word to a run, in its own log."""

    run_id: str
    command: RunCommandName
    command_id: str
    comment: str | None = None
