"""Records that a stage's input carries besides its data: time, configuration and commands.

All that a stage must know is in its one input topic, so the log holds the order in which it decided.
"""

from dataclasses import dataclass
from typing import Any, Literal

from rollbus.schemas.records.events import Excluded

OPERATOR = "operator"
"""The writer of what an operator says of episodes."""
RunCommandName = Literal["pause", "resume", "stop", "end_window", "removed"]
"""`removed` is not an operator's: the ticker writes it once a run is no longer in the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """The clock, written into the log: only ticks advance stream time."""

    number: int
    """Counts up by one; a repeated tick changes nothing."""
    stream_time_ms: int
    """Advances by at most twice the interval per tick, so nothing times out by an outage."""
    wall_clock_ms: int
    """The ticker's clock, for reports only."""
    interval_ms: int
    """Until the next tick; longer while nothing moves."""
    nonce: str = ""
    """Drawn by the ticker: chance comes in with the ticks, as time does, so a replay meets the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigApplied:
    """From here on the stage uses this configuration."""

    stage: str
    run_id: str | None = None
    """None for the stages of the namespace (assembly, scoring)."""
    config_hash: str
    content: str
    """Canonical JSON of the stage's configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCommand:
    """A command to a run, in the run's log: of an operator, of an alarm, or `removed`."""

    run_id: str
    command: RunCommandName
    command_id: str
    """The same command again is one."""
    comment: str | None = None
    """Why, in words."""


def is_control(record: Any) -> bool:
    """Say whether only the owner may write this record: time, a configuration, an operator's exclusion."""
    kind = type(record)
    return kind is Tick or kind is ConfigApplied or (kind is Excluded and record.writer_id == OPERATOR)
