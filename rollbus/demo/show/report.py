"""The report at the end of the demo: the comparison, five answers from ClickHouse, where to look next."""

import json
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rollbus.consumers.clickhouse.questions.output import as_table
from rollbus.consumers.clickhouse.questions.saved_questions import load_query, run_query
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.demo.job import DemoJob
from rollbus.demo.show.comparison import FORMULAS, BeforeAndAfter, rate_of

QUESTIONS = (
    "reward_by_policy_version",
    "fate_of_every_trajectory",
    "staleness",
    "groups_without_signal",
    "lineage_of_step",
)
"""From a policy's reward to the episodes behind one step."""
MOST_ROWS = 8
"""Of an answer; of a longer one the first half and the last: what comes first, and the sum or the newest."""


def print_comparison(
    console: Console, job: DemoJob, comparison: BeforeAndAfter, references: Sequence[tuple[str, float]]
) -> None:
    """Print the evaluation before and after."""
    table = Table(title=f"{comparison.before.episodes} {job.words.evaluation_unit}, the same before and after")
    table.add_column("")
    for name, evaluation in (("before", comparison.before), ("after", comparison.after)):
        table.add_column(f"{name}: {evaluation.model}@{evaluation.policy_version}", justify="right")
    for outcome, _ in job.outcomes:
        rates = [rate_of(measurement, outcome).percent() for measurement in (comparison.before, comparison.after)]
        table.add_row(outcome, *rates, style="bold" if outcome == comparison.success else "")
    console.print(table)
    gain = comparison.gain
    verdict = "it learned" if comparison.is_above_zero else "[red]no rise that chance could not explain[/red]"
    console.print(
        f"{job.words.success} {100 * gain.value:+.1f} points, 95 % from {100 * gain.low:+.1f} to "
        f"{100 * gain.high:+.1f}: {verdict}   [dim]({FORMULAS})[/dim]"
    )
    lines = ", ".join(f"{name} {100 * share:.1f} %" for name, share in references)
    console.print(f"[dim]for comparison, {job.words.success} of: {lines}[/dim]\n")


def print_answers(console: Console, settings: ClickHouseSettings, *, namespace: str, run: str) -> None:
    """Print ClickHouse's answers to five saved questions, of long ones the beginning and the end."""
    values = {"namespace": namespace, "run": run}
    for name in QUESTIONS:
        names = {parameter.name for parameter in load_query(name).parameters}
        answer = run_query(settings, name, {key: value for key, value in values.items() if key in names})
        rows = shorten(answer.rows)
        count = f"{min(MOST_ROWS, len(answer.rows))} of {len(answer.rows)} rows"
        title = f"rollbus sql run {name.replace('_', '-')}  ({count})"
        console.print(as_table(answer.columns, rows, title=title, width=console.width))


def shorten(rows: Sequence[Sequence[object]], most: int = MOST_ROWS) -> list[Sequence[object]]:
    """Return the first and the last rows, with a row of dots between them if some are left out."""
    if len(rows) <= most:
        return list(rows)
    return [*rows[: most // 2], ["…"] * len(rows[0]), *rows[-(most // 2) :]]


def print_next_steps(console: Console, folder: Path, *, is_kept: bool) -> None:
    """Print where the results are and how to continue."""
    rollbus = escape(f"{shlex.quote(_command())} --config {shlex.quote(str(folder / 'settings.yaml'))}")
    for what, name in (("plot", "learning.png"), ("numbers", "result.json"), ("logs", "logs")):
        console.print(f"{what:9} {escape(str(folder / name))}")
    if not is_kept:
        console.print(f"again up  {rollbus} up       [dim]# with all its data[/dim]")
    console.print(f"ask       {rollbus} sql list")
    console.print(f"          {rollbus} trainer steps")
    console.print(f"down      {rollbus} down")


def _command() -> str:
    """Return how this program was called, so that the lines can be copied: `make demo` calls it by its path."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "rollbus" and shutil.which("rollbus") is None else "rollbus"


def write_result(
    path: Path,
    comparison: BeforeAndAfter,
    references: Sequence[tuple[str, float]],
    *,
    seed: int,
    seconds: dict[str, float],
    steps: int,
) -> None:
    """Write the numbers, to compare runs."""
    before, after = comparison.rates()
    document = {
        "seed": seed,
        "steps": steps,
        "before": asdict(comparison.before),
        "after": asdict(comparison.after),
        "success": comparison.success,
        "success_before": before._asdict(),
        "success_after": after._asdict(),
        "references": dict(references),
        "gain": comparison.gain._asdict(),
        "intervals": FORMULAS,
        "seconds": seconds,
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
