"""`rollbus capture`, also `rollbus run PROGRAM`: start a program and record it, with no change of its code."""

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollbus.cli.groups import Verb
from rollbus.cli.number_option import Number
from rollbus.cli.root import Settings, with_settings
from rollbus.cli.withhold_option import withhold_option
from rollbus.runtime.machine import name_signal
from rollbus.schemas.records.events import StopReason
from rollbus.terminal.output import echo, format_count
from rollbus.terminal.silence import SILENCE

if TYPE_CHECKING:
    from rollbus.producers.startup.plan import ProcessReport
    from rollbus.producers.turns.redaction import Field

FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""Signals that are the program's; Ctrl-C in a terminal reaches it without us."""


@click.command(cls=Verb, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--task", help="Name the task of the episodes so.  [default: the program's name]")
@click.option(
    "--per",
    type=click.Choice(["program", "run"]),
    default="program",
    help="Make one episode of the whole program, or of each run of a framework (else of each call).",
)
@click.option("--producer", help="Name the program so in every event.  [default: its name]")
@withhold_option("Never let the texts of this field leave the program; repeatable.")
@click.option("--sample-rate", default=1.0, type=Number(0, 1), help="Record this share of episodes.")
@click.option(
    "--spool-folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep here what no broker takes, also after the program ends.",
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
@with_settings
def capture(
    settings: Settings,
    program: tuple[str, ...],
    task: str | None,
    per: str,
    producer: str | None,
    withhold: "frozenset[Field]",
    sample_rate: float,
    spool_folder: Path | None,
) -> None:
    """Start a program and record its calls of models, with no change of its code.

    Every Python process that it starts is recorded as with `rollbus.instrument`, and ends with the program's own exit
    code. `rollbus run PROGRAM` is the same, unless the first word is a verb of runs.
    """
    from rollbus.producers.sending.process_hooks import EXIT_DEADLINE_S
    from rollbus.producers.startup.plan import FOLDER_VARIABLE, CapturePlan, read_ended, write_plan

    if shutil.which(program[0]) is None:
        raise click.UsageError(f"there is no program {program[0]!r}; write it as you would without rollbus")
    name = _name_of(program)
    plan = CapturePlan(
        connection=settings.kafka,
        namespace=settings.namespace,
        producer=producer or name,
        task=task or name,
        withhold=withhold,
        sample_rate=sample_rate,
        spool_folder=spool_folder.resolve() if spool_folder else None,
        route=tuple(run.model for run in settings.runs if run.delivery is not None),
    )
    with tempfile.TemporaryDirectory(prefix="rollbus-capture-", ignore_cleanup_errors=True) as folder_name:
        folder, recorder = Path(folder_name), plan.make_recorder()
        episode = recorder.start(task=plan.task) if per == "program" else None
        headers = None if episode is None else recorder.headers(episode)
        write_plan(folder, plan.model_copy(update={"headers": headers}))
        SILENCE.command = ""  # what the program is at, it says itself
        try:
            code = _run(program, {FOLDER_VARIABLE: folder_name, "PYTHONPATH": _python_path()})
        except click.UsageError as error:
            if episode is not None:
                episode.end("error", error.message)
            recorder.close(EXIT_DEADLINE_S)
            raise
        reports = list(read_ended(folder))
        if episode is not None:
            for writer_id in (writer_id for report in reports for writer_id in report.writer_ids):
                episode.add_writer(writer_id)
            episode.end(*_stop_reason(code))
        recorder.close(time_left(reports, EXIT_DEADLINE_S, is_healthy=recorder.healthy))
        echo(_describe(folder, reports, recorder.counters), err=True)
    sys.exit(code if code >= 0 else 128 - code)


def time_left(reports: Sequence["ProcessReport"], deadline_s: float, *, is_healthy: bool | None) -> float:
    """Return how long the last events may take; where no broker takes any, the program has waited for it already."""
    waited_s = 0.0 if is_healthy else max((report.waited_s for report in reports), default=0.0)
    return max(0.0, deadline_s - waited_s)


def _name_of(program: Sequence[str]) -> str:
    """Return a name for what is started; of `python -W ignore shop.py` and `python -m shop` it is `shop`."""
    if Path(program[0]).name.startswith("python"):
        for before, word in itertools.pairwise(program):
            if before == "-m" or word.endswith(".py"):
                return Path(word).stem
    return Path(program[0]).stem


def _python_path() -> str:
    from rollbus.producers import startup

    startup_folder = str(Path(startup.__file__).parent)
    return os.pathsep.join(filter(None, (startup_folder, os.environ.get("PYTHONPATH"))))


def _run(program: Sequence[str], variables: dict[str, str]) -> int:
    """Run it to its end, with the signals that we get; return its exit code, negative for a signal's number."""
    try:
        child = subprocess.Popen(program, env={**os.environ, **variables})
    except OSError as error:
        raise click.UsageError(f"{program[0]!r} cannot be started: {error.strerror}") from error
    with _forwarding(child):
        return child.wait()


@contextlib.contextmanager
def _forwarding(child: "subprocess.Popen[bytes]") -> Iterator[None]:
    def forward(number: int, _: object) -> None:
        if number != signal.SIGINT or not _is_in_foreground():
            child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_in_foreground() -> bool:
    """Say whether a terminal sends Ctrl-C to the program too."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):  # no terminal
        return False


def _stop_reason(code: int) -> tuple[StopReason, str | None]:
    if code == 0:
        return "completed", None
    return "error", f"exit code {code}" if code > 0 else f"ended by {name_signal(-code)}"


def _describe(folder: Path, reports: Sequence["ProcessReport"], own_counts: Mapping[str, int]) -> str:
    """Return the line that says what was recorded, of the processes that have reported and of this one."""
    notes = [path.read_text() for path in sorted(folder.glob("failed-*"))]
    notes += [f"{library}: {error}" for report in reports for library, error in report.failed.items()]
    if not reports:
        notes.insert(0, "nothing was recorded: no Python process has reported")
        return f"rollbus: {'; '.join(notes)}"
    counts = Counter(own_counts)
    for report in reports:
        counts.update(report.counters)
    trainable = counts["turns_trainable"]
    reasons = {name.partition(".")[2]: count for name, count in counts.items() if name.startswith("turns_untrainable.")}
    processes = format_count(len(reports), "process", "processes")
    text = f"rollbus: recorded {format_count(trainable + sum(reasons.values()), 'turn')} of {processes}"
    text += f", {trainable} of them trainable"
    text += "".join(f"; {count} not: {reason}" for reason, count in sorted(reasons.items()))
    lost_events = sum(count for name, count in counts.items() if name.startswith("events_dropped"))
    notes += [f"lost: {format_count(lost_events, 'event')}"] if lost_events else []
    if cut := sum(not report.whole for report in reports):
        unfinished = format_count(cut, "process", "processes")
        notes.append(f"{unfinished} did not come to an end: what was neither sent nor spooled is lost")
    notes += [f"{counts[name]} {name}" for name in ("calls_outside_episode", "calls_unobserved") if counts[name]]
    if calls := counts["calls_of_own_recorder"]:
        notes.append(f"the program's own recorder recorded {format_count(calls, 'call')}")
    notes += ["the program records by itself (`rollbus.instrument`)"] if counts["instrumented_by_program"] else []
    return "; ".join([text, *notes])
