"""One look at the log → the picture of health: every process, consumer group and run, and what is wrong. Pure.

The rules are in `rollbus.runtime.health.alarms`; here they meet. The picture does not say that all is well where no
process lives: without data that is an empty namespace, and with data a problem.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Any

from rollbus.runtime.health.alarms.archive import find_archive_problems
from rollbus.runtime.health.alarms.lags import GroupHealth, Lag, LagHistory, draw_group, find_lag_problems
from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.health.alarms.problem import RUNBOOK, Problem, say_duration
from rollbus.runtime.health.alarms.processes import (
    TRAINER,
    Beat,
    ProcessHealth,
    draw_process,
    excuse_training,
    find_low_disks,
    find_process_problems,
    find_silent,
    find_trained_runs,
    find_unread_beats,
)
from rollbus.runtime.health.alarms.runs import (
    RunHealth,
    StepRecord,
    draw_run,
    explain_no_step,
    find_no_signal,
    find_run_problems,
    is_step_owed_later,
    measure_no_signal,
    steps_by_run,
)
from rollbus.schemas.records.groups import CurriculumState

WORKER = "worker"
TICKING_STAGE = "assembly"
"""The worker that holds its first partition writes time into the log."""
NO_TICKER_MS = 60_000
"""Without a worker that holds the ticking stage: so long may a restart take, or a rebalance."""
NEW_LETTER_MS = 3_600_000
"""A dead letter is an alarm for an hour: who is called for it has looked by then, and `dead-letters list` keeps it."""
FORGET_MS = 24 * 3_600_000
"""A process that is silent for a day is no longer shown: it was replaced, or is missed by other signs."""


@dataclass(frozen=True, slots=True)
class Look:
    """What the log and the broker said at one moment."""

    now_ms: int
    """By the broker's clock."""
    beats: Sequence[Beat] = ()
    lags: Sequence[Lag] = ()
    steps: Sequence[StepRecord] = ()
    """In the order of the log; old ones may be missing."""
    windows: Mapping[str, CurriculumState] = field(default_factory=dict)
    """Run → its curriculum's newest window."""
    dead_letters: int = 0
    """Records that have a dead letter in Kafka, counted once also where several processes refused them."""
    newest_dead_letter_ms: int | None = None
    unread_beats: Mapping[str, int] = field(default_factory=dict)
    """Process → when the broker took its newest beat, where this release cannot read it."""
    events: int | None = 0
    """Records that `episode-events` has; None if there is no such topic."""


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
    verdict: str = ""
    """One line: what is to be said first."""


def draw_picture(look: Look, history: LagHistory, limits: AlarmLimits) -> Picture:
    """Return the picture of a look that `history` has taken in."""
    no_signal = {run_id: measure_no_signal(window) for run_id, window in look.windows.items()}
    drawn_processes = [draw_process(beat, look.now_ms, limits) for beat in _recent_beats(look)]
    standing = _standing_by_run(drawn_processes)
    runs = [
        draw_run(run_id, steps, look.now_ms, no_signal_share=no_signal.get(run_id), standing=standing.get(run_id))
        for run_id, steps in steps_by_run(look.steps).items()
    ]
    is_step_open = any(run.open_step is not None for run in runs)
    processes = [excuse_training(process, is_step_open=is_step_open) for process in drawn_processes]
    trained_runs = find_trained_runs(processes)
    groups = [draw_group(_count_trainers(lag, processes), history) for lag in look.lags]
    alive = [process for process in processes if process.is_alive]
    problems = (
        *_find_nothing_alive(look, processes),
        *_find_no_ticker(look, processes),
        *find_silent(processes, look.beats),
        *(problem for process in alive for problem in find_process_problems(process)),
        *find_low_disks(processes),
        *(problem for group in groups for problem in find_lag_problems(group, history, limits)),
        *(
            problem
            for run in runs
            for problem in find_run_problems(run, limits, has_trainer=run.run_id in trained_runs)
        ),
        *find_no_signal(no_signal, limits),
        *_find_new_dead_letters(look),
        *find_archive_problems(look.beats, look.now_ms),
        *find_unread_beats(look.unread_beats, look.now_ms),
    )
    return Picture(
        at_ms=look.now_ms,
        processes=tuple(
            sorted(processes, key=lambda process: (process.state == "stopped", process.kind, process.process))
        ),
        groups=tuple(sorted(groups, key=lambda group: (-group.lag, group.group, group.topic))),
        runs=tuple(runs),
        dead_letters=look.dead_letters,
        versions=tuple(sorted({process.version for process in alive})),
        problems=problems,
        verdict=_give_verdict(problems, alive),
    )


def add_traffic(
    picture: Picture,
    newest_episode_ms: int,
    limits: AlarmLimits,
    owed_since_ms: Mapping[str, int] = MappingProxyType({}),
) -> Picture:
    """Return the picture with what the times of episodes explain; 0 where none is known.

    `owed_since_ms` has for each run when its first episode since its newest step began.
    """
    age_ms = picture.at_ms - newest_episode_ms if newest_episode_ms else None
    owed_ms = {f"run {run_id}": picture.at_ms - since_ms for run_id, since_ms in owed_since_ms.items() if since_ms}
    problems = tuple(
        explain_no_step(problem, age_ms, limits)
        for problem in picture.problems
        if not is_step_owed_later(problem, owed_ms.get(problem.subject), limits)
    )
    alive = [process for process in picture.processes if process.is_alive]
    return replace(picture, problems=problems, verdict=_give_verdict(problems, alive))


def _recent_beats(look: Look) -> Iterable[Beat]:
    for beat in look.beats:
        if look.now_ms - beat.taken_ms <= FORGET_MS:
            yield beat


def _standing_by_run(processes: Sequence[ProcessHealth]) -> dict[str, str]:
    """Return why a run takes no batches, as the newest beat of a trainer that says so has it."""
    reasons: dict[str, str] = {}
    for process in sorted(processes, key=lambda process: -process.beat_age_ms):
        for name in process.holds:
            if process.kind == TRAINER and name.startswith("run "):
                run_id = name.split()[1]
                reasons.pop(run_id, None)
                if process.standing:
                    reasons[run_id] = process.standing
    return reasons


def _count_trainers(lag: Lag, processes: Sequence[ProcessHealth]) -> Lag:
    """Return a lag with those that read: a trainer takes its partitions itself, and the broker counts it nowhere."""
    kind, _, run_id = lag.group.partition(".")
    if kind != TRAINER:
        return lag
    readers = [process for process in processes if process.is_alive and process.kind == TRAINER]
    return replace(
        lag, members=sum(any(name.startswith(f"run {run_id} of ") for name in reader.holds) for reader in readers)
    )


def _find_nothing_alive(look: Look, processes: Sequence[ProcessHealth]) -> Iterable[Problem]:
    """Yield a namespace that has no topics, or data that no process works on."""
    if look.events is None:
        remedy = "`rollbus start` makes them and all that reads them; is `namespace:` the one that the agent writes to?"
        yield Problem("no_topics", "namespace", "the namespace has no topics on this broker", remedy)
    elif look.events and not any(process.is_alive for process in processes) and not look.unread_beats:
        what = "no process lives, and episode-events has data: nothing assembles, scores or trains it"
        remedy = "`rollbus start` starts all of this machine; else `rollbus worker run`, `rollbus trainer run`"
        yield Problem("no_process", "namespace", what, f"{remedy}; {RUNBOOK}#no-process")


def _find_no_ticker(look: Look, processes: Sequence[ProcessHealth]) -> Iterable[Problem]:
    """Yield that processes live and none runs the stage whose worker writes time into the log."""
    living = {process.process for process in processes if process.is_alive}
    if not look.events or look.unread_beats or not living:
        return
    for beat in look.beats:
        is_there = beat.heartbeat.process in living or look.now_ms - beat.taken_ms <= NO_TICKER_MS
        may_hold = beat.heartbeat.kind == WORKER and is_there
        is_new = look.now_ms - beat.heartbeat.started_at_ms <= NO_TICKER_MS or beat.heartbeat.is_last
        if may_hold and (is_new or _runs(TICKING_STAGE, beat.heartbeat.holds)):
            return
    workers = [process for process in processes if process.is_alive and process.kind == WORKER]
    stages = sorted({name.partition("[")[0] for process in workers for name in process.holds})
    running = f"the workers run {', '.join(stages) or 'nothing yet'}" if workers else "no worker lives"
    what = (
        f"no worker runs `{TICKING_STAGE}` ({running}), and episode-events has data: no episode is assembled, and no "
        "time passes in the log, so no other stage closes anything"
    )
    remedy = f"`rollbus worker run` runs every stage; with `--stage`, let one worker have `{TICKING_STAGE}`"
    yield Problem("no_process", TICKING_STAGE, what, f"{remedy}; {RUNBOOK}#no-process")


def _runs(stage: str, holds: Iterable[str]) -> bool:
    return any(name.startswith(f"{stage}[") for name in holds)


def _find_new_dead_letters(look: Look) -> Iterable[Problem]:
    newest_ms = look.newest_dead_letter_ms
    if newest_ms is None or look.now_ms - newest_ms > NEW_LETTER_MS:
        return
    age = say_duration(max(0, look.now_ms - newest_ms))
    what = f"records with dead letters: {look.dead_letters}, the newest {age} ago"
    remedy = "`rollbus dead-letters list`; `rollbus dead-letters dismiss` sets aside what stays as it is"
    yield Problem("dead_letters", "dead-letters", what, f"{remedy}; {RUNBOOK}#dead-letters")


def _give_verdict(problems: Sequence[Problem], alive: Sequence[ProcessHealth]) -> str:
    if problems:
        return f"{len(problems)} problem{'s' * (len(problems) > 1)}"
    return "every process works" if alive else "nothing is recorded yet, and no process runs"


def to_json(picture: Picture) -> dict[str, Any]:
    """Return the picture as plain values, for `rollbus status --json` and the page."""
    return asdict(picture)
