"""What is known of a namespace → tables for a terminal; the same for one look and for a live view."""

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from rollbus.health.funnel.show import render_funnel
from rollbus.health.funnel.verdict import ALL_IS_WELL
from rollbus.health.status import NamespaceStatus
from rollbus.runtime.health.alarms.lags import GroupHealth
from rollbus.runtime.health.alarms.problem import Problem
from rollbus.runtime.health.alarms.processes import ProcessHealth
from rollbus.runtime.health.alarms.runs import RunHealth
from rollbus.terminal.output import OutputTable, format_time

STYLES = {"working": "green", "waiting": "yellow", "silent": "red", "stopped": "dim"}
WIDE_COLUMNS = 110
LEFT_OUT_IF_NARROW, NEVER_WRAPPED = ("host", "per s", "disk free"), ("process", "pid", "state", "beat")
"""Columns of the table of processes: on a narrow terminal some are left out, so that the others are not cut."""
MOST_GROUPS = 12
"""Consumer groups of a live view: those furthest behind."""


def render(answer: NamespaceStatus, *, all_groups: bool = True) -> RenderableType:
    """Return everything, what is wrong first."""
    picture, parts = answer.picture, list[RenderableType]()
    parts.append(_summary(answer))
    if picture is not None and picture.problems:
        parts.append(_problems(picture.problems))
    parts += [render_funnel(funnel) for funnel in answer.funnels]
    if picture is None:
        return Group(*parts)
    parts.append(_Processes(picture.processes) if picture.processes else Text("no process has written a heartbeat\n"))
    if picture.runs:
        parts.append(_runs(picture.runs))
    groups = picture.groups if all_groups else picture.groups[:MOST_GROUPS]
    if groups:
        parts.append(_groups(groups))
    if left_out := len(picture.groups) - len(groups):
        parts.append(Text(f"and {left_out} consumer groups that are less behind", "dim"))
    return Group(*parts)


def _summary(answer: NamespaceStatus) -> Text:
    picture, verdict = answer.picture, answer.verdict
    words = (verdict.text, "red" if verdict.is_wrong else "green" if verdict.text == ALL_IS_WELL else "yellow")
    if picture is None:
        return Text.assemble(words, (f": {answer.error}\n", "red"))
    versions = ", ".join(picture.versions) or "none"
    return Text.assemble(
        f"{format_time(picture.at_ms)} UTC  ",
        words,
        f"  releases: {versions}  records with dead letters: {picture.dead_letters}\n",
    )


def _problems(problems: tuple[Problem, ...]) -> OutputTable:
    table = OutputTable("alarm", "what", "what to do")
    for problem in problems:
        table.add_row(Text(problem.alarm, "red"), problem.what, problem.remedy)
    return table


@dataclass(frozen=True, slots=True)
class _Processes:
    """The table of processes, with fewer columns where there is no room for all."""

    processes: tuple[ProcessHealth, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        rows = [_row_of(process) for process in self.processes]
        names = [name for name in rows[0] if options.max_width >= WIDE_COLUMNS or name not in LEFT_OUT_IF_NARROW]
        table = OutputTable()
        for name in names:
            table.add_column(name, no_wrap=name in NEVER_WRAPPED)
        for row in rows:
            table.add_row(*(row[name] for name in names))
        yield table


def _row_of(process: ProcessHealth) -> dict[str, str | Text]:
    return {
        "process": process.kind,
        "pid": str(process.pid),
        "host": process.host,
        "state": Text(process.state, STYLES[process.state]),
        "beat": age(process.beat_age_ms),
        "last work": age(process.work_age_ms),
        "work": str(process.work),
        "per s": _number(process.work_per_s, ".1f"),
        "holds": f"{len(process.holds)} partitions" if len(process.holds) > 2 else ", ".join(process.holds),
        "disk free": "" if process.disk_free_bytes is None else f"{process.disk_free_bytes / 2**30:.1f} GiB",
        "trouble": process.trouble or process.standing or "",
    }


def _runs(runs: tuple[RunHealth, ...]) -> OutputTable:
    table = OutputTable("run", "step", "version", "age", "steps/h", "open step", "reward", "before", "no signal")
    for run in runs:
        open_step = "" if run.open_step is None else f"{run.open_step}, for {age(run.open_age_ms)}"
        table.add_row(
            run.run_id, str(run.step), _number(run.version), age(run.step_age_ms), _number(run.steps_per_hour, ".0f"),
            open_step, _number(run.reward, ".3f"), _number(run.reward_before, ".3f"),
            _number(run.no_signal_share, ".0%"),
        )  # fmt: skip
    return table


def _groups(groups: tuple[GroupHealth, ...]) -> OutputTable:
    table = OutputTable("consumer group", "topic", "members", "lag", "growth/s")
    for group in groups:
        members = Text(str(group.members), "" if group.members else "yellow")
        table.add_row(group.group, group.topic, members, str(group.lag), _number(group.growth_per_s, "+.1f"))
    return table


def age(ms: int | None) -> str:
    """Return an age in its largest unit."""
    if ms is None:
        return "–"
    seconds = ms / 1000
    for limit, size, unit in ((120, 1, "s"), (7_200, 60, "min"), (172_800, 3_600, "h")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} days"


def _number(value: float | None, how: str = "") -> str:
    return "–" if value is None else format(value, how)
