"""Newest heartbeats → processes, and what is wrong with each.

Times are the broker's clock, so any machine judges alike. A process that misses three beats is silent. That is
a problem, unless its last beat said that it ends, or a later process of its kind took its place. A beat that the broker
took after now is of before its clock was set back: it proves nothing, and its process is silent until it beats again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.health.alarms.problem import RUNBOOK, Problem, say_duration
from rollbus.schemas.records.health import Heartbeat

ProcessState = Literal["working", "waiting", "silent", "stopped"]
LOW_SHARE, LOW_BYTES = 0.1, 2 * 2**30
"""A disk is low below both: Kafka and checkpoints grow by gigabytes in a day."""
UNREAD_MS = 60_000
"""A process counts as alive for so long after a beat that cannot be read, as it does not say how often it beats."""
TRAINER = "trainer"
"""Kind of a process, and the first part of its consumer group."""
TRAINING_KINDS = (TRAINER, "art-server")
"""Kinds of processes whose work does not move while a step is open."""
CLOCK_MS = 5_000
"""Between the clocks of a process and the broker: NTP keeps milliseconds, an estimate is off by less than a second."""
MISSED_BEATS = 3
"""So many and a process is silent: one or two are missed by a garbage collection or a rebalance of the broker."""
SLACK_MS = 1_000
"""A beat that is so late, or so far ahead of a clock that is only estimated, is still in time."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A process's newest heartbeat."""

    heartbeat: Heartbeat
    taken_ms: int
    """When the broker took it."""
    previous: Heartbeat | None = None
    """The heartbeat before it, for rates."""
    is_frozen: bool | None = None
    """On this machine: whether the process is there and stopped; None if it is elsewhere or gone."""


@dataclass(frozen=True, slots=True)
class ProcessHealth:
    """One process as its newest heartbeat shows it."""

    process: str
    kind: str
    host: str
    pid: int
    version: str
    state: ProcessState
    beat_age_ms: int
    """0 for a beat of before the broker's clock was set back."""
    waiting_ms: int
    """How long its work has not moved."""
    waiting_at: str | None
    holds: tuple[str, ...]
    positions: Mapping[str, int]
    work: int
    work_per_s: float | None
    """Between its two newest beats."""
    work_age_ms: int | None
    """Since work last moved; None before the first."""
    trouble: str | None
    disk_free_bytes: int | None
    disk_total_bytes: int | None
    clock_ms: int
    """How far the process's clock is ahead of the broker's."""
    metrics_url: str | None
    standing: str | None = None
    """Why it takes no work although it could, such as a pause."""
    ahead_ms: int = 0
    """How far its beat is ahead of now: the broker's clock was set back since."""

    @property
    def is_alive(self) -> bool:
        """Whether it beats."""
        return self.state in ("working", "waiting")

    @property
    def name(self) -> str:
        """Return what a person calls it."""
        return f"{self.kind} {self.pid} on {self.host}"


def draw_process(beat: Beat, now_ms: int, limits: AlarmLimits) -> ProcessHealth:
    """Return a process as its newest beat shows it now."""
    heartbeat, age_ms = beat.heartbeat, now_ms - beat.taken_ms
    waiting_ms = 0 if heartbeat.waiting_since_ms is None else heartbeat.beat_at_ms - heartbeat.waiting_since_ms
    patience_ms = MISSED_BEATS * heartbeat.interval_ms + SLACK_MS
    state: ProcessState = "working"
    if heartbeat.is_last:
        state = "stopped"
    elif abs(age_ms) > patience_ms:
        state = "silent"
    elif limits.waiting_s is not None and waiting_ms > limits.waiting_s * 1000:
        state = "waiting"
    last_work_ms = heartbeat.last_work_ms
    return ProcessHealth(
        process=heartbeat.process,
        kind=heartbeat.kind,
        host=heartbeat.host,
        pid=heartbeat.pid,
        version=heartbeat.version,
        state=state,
        beat_age_ms=max(0, age_ms),
        waiting_ms=waiting_ms,
        waiting_at=heartbeat.waiting_at,
        holds=heartbeat.holds,
        positions=heartbeat.positions,
        work=heartbeat.work,
        work_per_s=_measure_rate(beat),
        work_age_ms=None if last_work_ms is None else max(0, heartbeat.beat_at_ms - last_work_ms) + max(0, age_ms),
        trouble=heartbeat.trouble,
        disk_free_bytes=heartbeat.disk_free_bytes,
        disk_total_bytes=heartbeat.disk_total_bytes,
        clock_ms=heartbeat.beat_at_ms - beat.taken_ms,
        metrics_url=heartbeat.metrics_url,
        standing=heartbeat.standing,
        ahead_ms=-age_ms if -age_ms > patience_ms else 0,
    )


def excuse_training(process: ProcessHealth, *, is_step_open: bool) -> ProcessHealth:
    """Return the process; one whose work is an open step works: how long that may take is its run's matter."""
    is_training = is_step_open and process.kind in TRAINING_KINDS and process.state == "waiting"
    return replace(process, state="working") if is_training else process


def find_trained_runs(processes: Iterable[ProcessHealth]) -> set[str]:
    """Return the runs of which a trainer lives."""
    return {
        name.split()[1]
        for process in processes
        if process.is_alive and process.kind == TRAINER
        for name in process.holds
        if name.startswith("run ")
    }


def _measure_rate(beat: Beat) -> float | None:
    if beat.previous is None or beat.heartbeat.beat_at_ms <= beat.previous.beat_at_ms:
        return None
    spent_ms, work = beat.heartbeat.beat_at_ms - beat.previous.beat_at_ms, beat.heartbeat.work - beat.previous.work
    return None if work < 0 else work / spent_ms * 1000  # a worker's part that begins again counts from 0


def find_silent(processes: Sequence[ProcessHealth], beats: Sequence[Beat]) -> Iterable[Problem]:
    """Yield each silent process, unless a later process of its kind has replaced it; each replaces only one.

    The later one is reported instead if it is silent too. If it has ended, none is.
    """
    beat_by_process = {beat.heartbeat.process: beat for beat in beats}
    replacements = sorted(
        (
            (beat_by_process[process.process].heartbeat.started_at_ms - process.clock_ms, process)
            for process in processes
        ),
        key=lambda pair: pair[0],
    )
    for process in sorted(processes, key=lambda process: -process.beat_age_ms):
        if process.state != "silent":
            continue
        beat = beat_by_process[process.process]
        later = next((pair for pair in replacements if _replaces(pair, process, beat.taken_ms)), None)
        if later is not None:
            replacements.remove(later)
            continue
        yield Problem("silence", process.process, *_describe_silence(process, is_frozen=bool(beat.is_frozen)))


def _replaces(candidate: tuple[int, ProcessHealth], process: ProcessHealth, taken_ms: int) -> bool:
    """Say whether a candidate began after the last beat of a process, which was taken at `taken_ms`."""
    started_ms, later = candidate
    return later.kind == process.kind and started_ms > taken_ms


def _describe_silence(process: ProcessHealth, *, is_frozen: bool) -> tuple[str, str]:
    what = f"{process.name} has been silent for {say_duration(process.beat_age_ms)}"
    if process.ahead_ms:
        what = (
            f"{process.name} has not beaten since the broker's clock was set back by {say_duration(process.ahead_ms)}"
        )
    what += f"; it held {_name_first(process.holds)}" if process.holds else ""
    what += f"; {process.trouble}" if process.trouble else ""
    if is_frozen:
        remedy = f"process {process.pid} is stopped by a signal: `kill -CONT {process.pid}` lets it go on"
    else:
        remedy = f"it is dead, frozen, or cut off from Kafka: look at its log on {process.host}, and start it again"
    return what, f"{remedy}; {RUNBOOK}#silence"


def find_process_problems(process: ProcessHealth) -> Iterable[Problem]:
    """Yield what a living process says, or shows, that is wrong."""
    if process.state == "waiting":
        what = f"{process.name} beats, but its work has not moved for {say_duration(process.waiting_ms)}"
        what += f": {process.waiting_at}" if process.waiting_at else ""
        remedy = "look at `rollbus status`, then at its log; end it, and another takes over from what is committed"
        yield Problem("waiting", process.process, what, f"{remedy}; {RUNBOOK}#waiting")
    if process.trouble is not None:
        yield Problem("trouble", process.process, f"{process.name}: {process.trouble}", f"{RUNBOOK}#trouble")
    if abs(process.clock_ms) > CLOCK_MS:
        side = "ahead of" if process.clock_ms > 0 else "behind"
        what = f"the clock of {process.host} is {say_duration(abs(process.clock_ms))} {side} the broker's"
        yield Problem("clock", process.host, what, f"set the clocks by NTP; {RUNBOOK}#clock")


def find_low_disks(processes: Sequence[ProcessHealth]) -> Iterable[Problem]:
    """Yield each host whose disk is low, once."""
    low_disk_by_host = {}
    for process in processes:
        free, total = process.disk_free_bytes, process.disk_total_bytes
        if process.is_alive and free is not None and total and is_disk_low(free, total):
            low_disk_by_host[process.host] = (free, total)
    for host, (free, total) in low_disk_by_host.items():
        what = f"{free / 2**30:.2f} of {total / 2**30:.0f} GiB are free on {host}"
        yield Problem("disk", host, what, f"free some, before writers stop; {RUNBOOK}#disk")


def is_disk_low(free_bytes: int, total_bytes: int) -> bool:
    """Say whether so little room is left that writers will stop."""
    return free_bytes < min(LOW_BYTES, LOW_SHARE * total_bytes)


def find_unread_beats(unread_beats: Mapping[str, int], now_ms: int) -> Iterable[Problem]:
    """Yield each process whose beats only a newer release can read."""
    for process, taken_ms in unread_beats.items():
        if now_ms - taken_ms <= UNREAD_MS:
            what = f"{process} beats, and this release cannot read what it says: it is newer"
            yield Problem("trouble", process, what, "look with that release: upgrade rollbus on this machine")


def _name_first(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more
