"""What a long-running process says of itself every few seconds, in a topic of its own.

A beat is written by the event loop that does the work. So a beat proves that this loop ran when the broker took it, and
no more: whether work moved is in `work` and `waiting_since_ms`. A process that is killed, stopped or blocked is silent.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """One beat. Its record's timestamp is the broker's clock, by which silence is judged from any machine."""

    process: str
    """The Kafka key: kind, host, process id and start; the topic keeps the newest beat of each."""
    kind: str
    """worker, trainer, art-server, sink, resample, proxy, ingest, log-to, alarms or archive."""
    host: str
    pid: int
    version: str
    """Of rollbus."""
    number: int
    """Counts from 1 since the start."""
    interval_ms: int
    """When the next one is to come."""
    started_at_ms: int
    beat_at_ms: int
    """The process's own clock: its difference from the broker's is the error of the clock, and the way."""
    is_last: bool = False
    """True if the process ends as it was asked to; silence after it is not a death."""
    holds: tuple[str, ...] = ()
    """Partitions of stages, a run, a model: what no other process works on meanwhile."""
    positions: Mapping[str, int] = field(default_factory=dict)
    """By what it holds: the next offset, the step or the version."""
    work: int = 0
    """Records, steps, requests since the start; grows while work moves."""
    last_work_ms: int | None = None
    """By the process's clock; None before the first."""
    waiting_since_ms: int | None = None
    """Since when there has been work that does not move; None while there is none, or it moves."""
    waiting_at: str | None = None
    """The part that has waited longest and its place, such as `stage scoring[0] at 7`; None where all work is one."""
    trouble: str | None = None
    """What it cannot do now, in words; None if nothing is wrong."""
    standing: str | None = None
    """Why it takes no work although it could, such as an operator's pause; None while it takes what comes."""
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None
    """Where it writes; None for one that writes nothing."""
    metrics_url: str | None = None
