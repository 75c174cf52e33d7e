"""One look at the log → the picture of health: every process, consumer group and run, and what is wrong.

Pure. Times are the broker's clock, so any machine judges alike. A process that misses `missed_beats` beats is silent.
That is a problem, unless its last beat said that it ends, or a later process of its kind took its place.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rollbus.schemas.records.groups import CurriculumState
from rollbus.schemas.records.health import Heartbeat
from rollbus.schemas.records.steps import StepCompleted, StepFailed, StepSkipped, StepStarted

Alarm = Literal[
    "broker",
    "silence",
    "waiting",
    "trouble",
    "lag",
    "no_step",
    "failed",
    "reward",
    "no_signal",
    "dead_letters",
    "disk",
    "clock",
]
State = Literal["working", "waiting", "silent", "stopped"]
Step = StepStarted | StepCompleted | StepSkipped | StepFailed
LOW_SHARE, LOW_BYTES = 0.1, 2 * 2**30
"""A disk is low below both: Kafka and checkpoints grow by gigabytes in a day."""
RUNBOOK = "docs/runbook.md"
UNREAD_MS = 60_000
"""A process whose beats cannot be read is there for so long; how often it beats is not known."""


class AlarmLimits(BaseModel):
    """When the picture calls something wrong; None switches an alarm off."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    missed_beats: int = Field(default=3, ge=2)
    forget_hours: float = Field(default=24.0, gt=0)
    """A process that is silent for longer is no longer shown."""
    waiting_s: float | None = Field(default=240.0, gt=0)
    """Work that is there and has not moved; a step of the trainer counts, too. A worker that is stuck for its
    `stalled_s` ends itself, so the default is shorter: it is reported while it can still be looked at."""
    lag_s: float | None = Field(default=300.0, gt=0)
    """A consumer group whose lag has grown for so long."""
    lag_records: int = Field(default=1_000, ge=1)
    """Smaller lags are no alarm."""
    no_step_s: float | None = Field(default=3_600.0, gt=0)
    """Since a run's newest closed step."""
    reward_fall: float | None = Field(default=0.2, gt=0)
    """Mean reward of the newest steps below that of those before."""
    no_signal_share: float | None = Field(default=0.9, gt=0, le=1)
    """Share of the groups without a signal in a run's newest curriculum window."""
    window_steps: int = Field(default=5, ge=1)
    """Newest steps. Their mean is compared with that of up to four times as many before them."""
    dead_letters_s: float | None = Field(default=3_600.0, gt=0)
    """A dead letter is an alarm for so long."""
    clock_s: float | None = Field(default=5.0, gt=0)
    """Between the clock of a process and the broker's."""


@dataclass(frozen=True, slots=True)
class Beat:
    """A process's newest heartbeat."""

    heartbeat: Heartbeat
    taken_ms: int
    """When the broker took it."""
    before: Heartbeat | None = None
    """The one before it, for rates."""
    is_frozen: bool | None = None
    """On this machine: whether the process is there and stopped; None if it is elsewhere or gone."""


@dataclass(frozen=True, slots=True)
class Lag:
    """One consumer group in one topic, both without the namespace."""

    group: str
    topic: str
    members: int
    lag: int


@dataclass(frozen=True, slots=True)
class Look:
    """What the log and the broker said at one moment."""

    now_ms: int
    """By the broker's clock."""
    beats: Sequence[Beat] = ()
    lags: Sequence[Lag] = ()
    steps: Sequence[Step] = ()
    """In the order of the log; old ones may be missing."""
    windows: Mapping[str, CurriculumState] = field(default_factory=dict)
    """Run → its curriculum's newest window."""
    dead_letters: int = 0
    """Records that have a dead letter in Kafka, counted once also where several processes refused them."""
    newest_dead_letter_ms: int | None = None
    unread_beats: Mapping[str, int] = field(default_factory=dict)
    """Process → when the broker took its newest beat, where this release cannot read it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong."""

    alarm: Alarm
    subject: str
    """The process, group, run or host."""
    what: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ProcessHealth:
    """One process as its newest heartbeat shows it."""

    process: str
    kind: str
    host: str
    pid: int
    version: str
    state: State
    beat_age_ms: int
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


@dataclass(frozen=True, slots=True)
class GroupHealth:
    """One consumer group in one topic."""

    group: str
    topic: str
    members: int
    lag: int
    growth_per_s: float | None
    """By how much the lag grew since the earliest look that is remembered; None at the first."""


@dataclass(frozen=True, slots=True)
class RunHealth:
    """One run's training."""

    run_id: str
    model: str
    step: int
    """Newest closed one; 0 before the first."""
    version: int | None
    step_age_ms: int | None
    open_step: int | None
    open_age_ms: int | None
    steps_per_hour: float | None
    reward: float | None
    """Mean over the newest steps."""
    reward_before: float | None
    failure: str | None
    """What the newest attempt failed by, if no step was closed since."""
    no_signal_share: float | None
    """Of the groups of the newest curriculum window; the trainer never sees a group without a signal."""


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it, as JSON too."""

    at_ms: int
    processes: tuple[ProcessHealth, ...]
    groups: tuple[GroupHealth, ...]
    runs: tuple[RunHealth, ...]
    dead_letters: int
    versions: tuple[str, ...]
    """Releases that run now."""
    problems: tuple[Problem, ...]


@dataclass(slots=True)
class LagHistory:
    """Earlier lags, to see which grow."""

    keep_s: float
    looks: list[tuple[int, dict[tuple[str, str], int]]] = field(default_factory=list)

    def add(self, look: Look) -> None:
        """Remember a look's lags, and forget what is older than the window, but for the last before it."""
        self.looks.append((look.now_ms, {(lag.group, lag.topic): lag.lag for lag in look.lags}))
        first_ms = look.now_ms - self.keep_s * 1000
        while len(self.looks) > 2 and self.looks[1][0] <= first_ms:
            del self.looks[0]

    def growth(self, group: str, topic: str) -> tuple[float, int] | None:
        """Return by how many records a lag grew, and over how many milliseconds; None with fewer than two looks."""
        seen = [(at_ms, lags[group, topic]) for at_ms, lags in self.looks if (group, topic) in lags]
        if len(seen) < 2 or seen[-1][0] == seen[0][0]:
            return None
        return seen[-1][1] - seen[0][1], seen[-1][0] - seen[0][0]

    def is_growing(self, group: str, topic: str) -> bool:
        """Say whether every lag in the last third of the time is above every lag in the first third.

        Idle stages commit their ticks every ten seconds, so the lag of many partitions goes up and down by thousands.
        """
        seen = [(at_ms, lags[group, topic]) for at_ms, lags in self.looks if (group, topic) in lags]
        third_ms = (seen[-1][0] - seen[0][0]) / 3
        first = [lag for at_ms, lag in seen if at_ms <= seen[0][0] + third_ms]
        return max(first) < min(lag for at_ms, lag in seen if at_ms >= seen[-1][0] - third_ms)


def draw_picture(look: Look, history: LagHistory, limits: AlarmLimits) -> Picture:
    """Return the picture of a look that `history` has taken in."""
    processes = [_draw_process(beat, look.now_ms, limits) for beat in _recent_beats(look, limits)]
    groups = [_draw_group(lag, history) for lag in look.lags]
    no_signal = {run_id: _measure_no_signal(window) for run_id, window in look.windows.items()}
    runs = [
        _draw_run(run_id, steps, no_signal.get(run_id), look.now_ms, limits)
        for run_id, steps in _steps_by_run(look.steps).items()
    ]
    frozen = {beat.heartbeat.process for beat in look.beats if beat.is_frozen}
    alive = [one for one in processes if one.state in ("working", "waiting")]
    problems = [
        *_find_silent(processes, look.beats, frozen),
        *(problem for one in alive for problem in _find_process_problems(one, limits)),
        *_find_low_disks(processes),
        *(problem for group in groups for problem in _find_lag_problems(group, history, limits)),
        *(problem for run in runs for problem in _find_run_problems(run, limits)),
        *_find_no_signal(no_signal, limits),
        *_find_new_dead_letters(look, limits),
        *_find_unread_beats(look),
    ]
    return Picture(
        at_ms=look.now_ms,
        processes=tuple(sorted(processes, key=lambda one: (one.state == "stopped", one.kind, one.process))),
        groups=tuple(sorted(groups, key=lambda group: (-group.lag, group.group, group.topic))),
        runs=tuple(runs),
        dead_letters=look.dead_letters,
        versions=tuple(sorted({one.version for one in alive})),
        problems=tuple(problems),
    )


def is_disk_low(free: int, total: int) -> bool:
    """Say whether so little room is left that writers will stop."""
    return free < min(LOW_BYTES, LOW_SHARE * total)


def _recent_beats(look: Look, limits: AlarmLimits) -> Iterable[Beat]:
    for beat in look.beats:
        if look.now_ms - beat.taken_ms <= limits.forget_hours * 3_600_000:
            yield beat


def _draw_process(beat: Beat, now_ms: int, limits: AlarmLimits) -> ProcessHealth:
    said, age_ms = beat.heartbeat, max(0, now_ms - beat.taken_ms)
    waiting_ms = 0 if said.waiting_since_ms is None else said.beat_at_ms - said.waiting_since_ms
    state: State = "working"
    if said.is_last:
        state = "stopped"
    elif age_ms > limits.missed_beats * said.interval_ms + 1_000:
        state = "silent"
    elif limits.waiting_s is not None and waiting_ms > limits.waiting_s * 1000:
        state = "waiting"
    return ProcessHealth(
        process=said.process,
        kind=said.kind,
        host=said.host,
        pid=said.pid,
        version=said.version,
        state=state,
        beat_age_ms=age_ms,
        waiting_ms=waiting_ms,
        waiting_at=said.waiting_at,
        holds=said.holds,
        positions=said.positions,
        work=said.work,
        work_per_s=_rate(beat),
        work_age_ms=None if said.last_work_ms is None else max(0, said.beat_at_ms - said.last_work_ms) + age_ms,
        trouble=said.trouble,
        disk_free_bytes=said.disk_free_bytes,
        disk_total_bytes=said.disk_total_bytes,
        clock_ms=said.beat_at_ms - beat.taken_ms,
        metrics_url=said.metrics_url,
    )


def _rate(beat: Beat) -> float | None:
    if beat.before is None or beat.heartbeat.beat_at_ms <= beat.before.beat_at_ms:
        return None
    spent_ms, done = beat.heartbeat.beat_at_ms - beat.before.beat_at_ms, beat.heartbeat.work - beat.before.work
    return None if done < 0 else done / spent_ms * 1000  # a worker's part that begins again counts from 0


def _find_silent(processes: Sequence[ProcessHealth], beats: Sequence[Beat], frozen: set[str]) -> Iterable[Problem]:
    """Yield each silent process, unless a later process of its kind has replaced it; each replaces only one.

    The later one is reported instead if it is silent too. If it has ended, none is.
    """
    by_name = {beat.heartbeat.process: beat for beat in beats}
    replacements = sorted(
        ((by_name[one.process].heartbeat.started_at_ms - one.clock_ms, one) for one in processes),
        key=lambda pair: pair[0],
    )
    for one in sorted(processes, key=lambda one: -one.beat_age_ms):
        if one.state != "silent":
            continue
        taken_ms = by_name[one.process].taken_ms
        later = next((pair for pair in replacements if pair[1].kind == one.kind and pair[0] > taken_ms), None)
        if later is not None:
            replacements.remove(later)
            continue
        what = f"{_name(one)} has been silent for {_seconds(one.beat_age_ms)}"
        held = f"; it held {_name_first(one.holds)}" if one.holds else ""
        held += f"; {one.trouble}" if one.trouble else ""
        if one.process in frozen:
            remedy = f"process {one.pid} is stopped by a signal: `kill -CONT {one.pid}` lets it go on"
        else:
            remedy = f"it is dead, frozen, or cut off from Kafka: look at its log on {one.host}, and start it again"
        yield Problem("silence", one.process, what + held, f"{remedy}; {RUNBOOK}#silence")


def _find_process_problems(one: ProcessHealth, limits: AlarmLimits) -> Iterable[Problem]:
    if one.state == "waiting":
        what = f"{_name(one)} beats, but its work has not moved for {_seconds(one.waiting_ms)}"
        what += f": {one.waiting_at}" if one.waiting_at else ""
        remedy = "look at `rollbus status`, then at its log; end it, and another takes over from what is committed"
        yield Problem("waiting", one.process, what, f"{remedy}; {RUNBOOK}#waiting")
    if one.trouble is not None:
        yield Problem("trouble", one.process, f"{_name(one)}: {one.trouble}", f"{RUNBOOK}#trouble")
    if limits.clock_s is not None and abs(one.clock_ms) > limits.clock_s * 1000:
        side = "ahead of" if one.clock_ms > 0 else "behind"
        what = f"the clock of {one.host} is {_seconds(abs(one.clock_ms))} {side} the broker's"
        yield Problem("clock", one.host, what, f"set the clocks by NTP; {RUNBOOK}#clock")


def _find_low_disks(processes: Sequence[ProcessHealth]) -> Iterable[Problem]:
    """Yield each host whose disk is low, once."""
    low = {}
    for one in processes:
        free, total = one.disk_free_bytes, one.disk_total_bytes
        if one.state in ("working", "waiting") and free is not None and total and is_disk_low(free, total):
            low[one.host] = (free, total)
    for host, (free, total) in low.items():
        what = f"{free / 2**30:.2f} of {total / 2**30:.0f} GiB are free on {host}"
        yield Problem("disk", host, what, f"free some, before writers stop; {RUNBOOK}#disk")


def _draw_group(lag: Lag, history: LagHistory) -> GroupHealth:
    grown = history.growth(lag.group, lag.topic)
    rate = None if grown is None else grown[0] / grown[1] * 1000
    return GroupHealth(lag.group, lag.topic, lag.members, lag.lag, rate)


def _find_lag_problems(group: GroupHealth, history: LagHistory, limits: AlarmLimits) -> Iterable[Problem]:
    if limits.lag_s is None or group.lag < limits.lag_records:
        return
    name = f"{group.group} in {group.topic}"
    if group.members == 0:
        what = f"no process reads {group.topic} for {group.group}, and {group.lag} records wait"
        yield Problem("lag", name, what, f"start the process that reads it; {RUNBOOK}#lag")
        return
    grown = history.growth(group.group, group.topic)
    is_long = grown is not None and grown[1] >= limits.lag_s * 1000
    if grown is not None and is_long and history.is_growing(group.group, group.topic):
        what = f"{group.group} is {group.lag} records behind in {group.topic}, {grown[0]:.0f} more than "
        what += f"{_seconds(grown[1])} ago"
        yield Problem("lag", name, what, f"start more processes, or find what slows it; {RUNBOOK}#lag")


def _steps_by_run(steps: Iterable[Step]) -> dict[str, list[Step]]:
    by_run: dict[str, list[Step]] = {}
    for step in steps:
        by_run.setdefault(step.run_id, []).append(step)
    return by_run


def _draw_run(
    run_id: str, steps: Sequence[Step], no_signal_share: float | None, now_ms: int, limits: AlarmLimits
) -> RunHealth:
    closed = [step for step in steps if isinstance(step, StepCompleted | StepSkipped)]
    completed = [step for step in closed if isinstance(step, StepCompleted)]
    newest, last = (closed[-1] if closed else None), steps[-1]
    opened = last if isinstance(last, StepStarted) else None
    rewards = [reward for step in completed if (reward := step.metrics.get("reward_mean")) is not None]
    window = limits.window_steps
    before = rewards[-5 * window : -window]
    hour = [step for step in closed if now_ms - step.completed_at_ms <= 3_600_000]
    return RunHealth(
        run_id=run_id,
        model=last.model,
        step=newest.step if newest else 0,
        version=completed[-1].policy_version if completed else None,
        step_age_ms=None if newest is None else max(0, now_ms - newest.completed_at_ms),
        open_step=opened.step if opened else None,
        open_age_ms=max(0, now_ms - opened.started_at_ms) if opened else None,
        steps_per_hour=float(len(hour)) if closed else None,
        reward=fmean(rewards[-window:]) if rewards else None,
        reward_before=fmean(before) if len(before) >= window else None,
        failure=f"{last.error_class}: {last.message}" if isinstance(last, StepFailed) else None,
        no_signal_share=no_signal_share,
    )


def _measure_no_signal(window: CurriculumState) -> float | None:
    seen, used = len(window.seen_group_ids), len(window.admitted_group_ids) + len(window.rejected_group_ids)
    return (seen - used) / seen if seen else None


def _find_no_signal(shares: Mapping[str, float | None], limits: AlarmLimits) -> Iterable[Problem]:
    """Yield each run that gets hardly a group that it can learn from, with or without steps so far."""
    for run_id, share in shares.items():
        if limits.no_signal_share is not None and share is not None and share > limits.no_signal_share:
            what = f"{share:.0%} of the groups in the newest window of run {run_id} are without a signal"
            remedy = "all answers to a task get one reward: look at the reward, or choose other tasks"
            yield Problem("no_signal", f"run {run_id}", what, f"{remedy}; {RUNBOOK}#no-signal")


def _find_run_problems(run: RunHealth, limits: AlarmLimits) -> Iterable[Problem]:
    name = f"run {run.run_id}"
    if run.failure is not None:
        yield Problem("failed", name, f"step {run.step + 1} of {name} failed: {run.failure}", f"{RUNBOOK}#failed")
    if limits.no_step_s is not None and run.step_age_ms is not None and run.step_age_ms > limits.no_step_s * 1000:
        what = f"{name} has closed no step for {_seconds(run.step_age_ms)}"
        remedy = "is it paused (`rollbus trainer status`), or do no batches come (`rollbus sql run drops-by-reason`)?"
        yield Problem("no_step", name, what, f"{remedy} {RUNBOOK}#no-step")
    if limits.reward_fall is not None and run.reward is not None and run.reward_before is not None:
        fall = run.reward_before - run.reward
        if fall > limits.reward_fall:
            what = f"the mean reward of {name} fell by {fall:.3f} to {run.reward:.3f}"
            yield Problem("reward", name, what, f"`rollbus policy rollback` goes back; {RUNBOOK}#reward")


def _find_new_dead_letters(look: Look, limits: AlarmLimits) -> Iterable[Problem]:
    newest_ms, limit_s = look.newest_dead_letter_ms, limits.dead_letters_s
    if limit_s is None or newest_ms is None or look.now_ms - newest_ms > limit_s * 1000:
        return
    what = f"records with dead letters: {look.dead_letters}, the newest {_seconds(max(0, look.now_ms - newest_ms))} ago"
    yield Problem("dead_letters", "dead-letters", what, f"`rollbus dead-letters list`; {RUNBOOK}#dead-letters")


def _find_unread_beats(look: Look) -> Iterable[Problem]:
    for process, taken_ms in look.unread_beats.items():
        if look.now_ms - taken_ms <= UNREAD_MS:
            what = f"{process} beats, and this release cannot read what it says: it is newer"
            yield Problem("trouble", process, what, "look with that release: upgrade rollbus on this machine")


def _name(one: ProcessHealth) -> str:
    return f"{one.kind} {one.pid} on {one.host}"


def _name_first(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _seconds(ms: float) -> str:
    seconds = ms / 1000
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def to_json(picture: Picture) -> dict[str, Any]:
    """Return the picture as plain values, for `rollbus status --json` and the page."""
    return asdict(picture)
