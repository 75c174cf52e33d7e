"""What the demo ends with: the comparison in words and numbers, five answers from ClickHouse, where to look next."""

import json
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rollbus.demo.evaluation import Comparison
from rollbus.demo.game import Result
from rollbus.demo.plot import reference_lines
from rollbus.demo.questions import QUESTIONS
from rollbus.demo.sql import Ask, Rows
from rollbus.demo.statistics import FORMULAS


def print_comparison(console: Console, comparison: Comparison) -> None:
    """The evaluation before and after."""
    games = comparison.before.tally.games
    table = Table(title=f"{games} held-out games against a random opponent, the same before and after")
    table.add_column("")
    for name, evaluation in (("before", comparison.before), ("after", comparison.after)):
        table.add_column(f"{name}: {evaluation.model}@{evaluation.version}", justify="right")
    for result in Result:
        rates = [one.tally.rate(result).percent() for one in (comparison.before, comparison.after)]
        table.add_row(result.value, *rates, style="bold" if result is Result.WIN else "")
    console.print(table)
    gain = comparison.gain
    verdict = "it learned" if comparison.is_real else "[red]no rise that chance could not explain[/red]"
    console.print(
        f"wins {100 * gain.value:+.1f} points, 95 % from {100 * gain.low:+.1f} to {100 * gain.high:+.1f}: {verdict}"
        f"   [dim]({FORMULAS})[/dim]"
    )
    lines = ", ".join(f"{name} {100 * share:.1f} %" for name, share in reference_lines())
    console.print(f"[dim]for comparison, wins of: {lines}[/dim]\n")


def print_answers(console: Console, ask: Ask, *, namespace: str, run: str) -> None:
    """Five questions and what ClickHouse says."""
    for number, question in enumerate(QUESTIONS, start=1):
        console.print(_table(f"{number}. {question.title}", ask(question.sql, namespace=namespace, run=run)))


def print_next_steps(console: Console, folder: Path, *, kept: bool) -> None:
    """Where everything lies and how to go on."""
    rollbus = f"{_command()} --config {folder / 'settings.yaml'}"
    console.print(
        f"plot      {folder / 'learning.png'}\nnumbers   {folder / 'result.json'}\nlogs      {folder / 'logs'}"
    )
    if not kept:
        console.print(f"again up  {rollbus} up       [dim]# everything is still there[/dim]")
    console.print(f"ask       {rollbus} sql list")
    console.print(f"          {rollbus} trainer steps")
    console.print(f"down      {rollbus} down")


def _command() -> str:
    """How this program was called, so that the lines can be copied: `make demo` calls it by its path."""
    called = Path(sys.argv[0])
    return str(called) if called.name == "rollbus" and shutil.which("rollbus") is None else "rollbus"


def write_result(path: Path, comparison: Comparison, *, seed: int, seconds: dict[str, float], steps: int) -> None:
    """The numbers, for whoever compares runs."""
    document = {
        "seed": seed,
        "steps": steps,
        "before": asdict(comparison.before),
        "after": asdict(comparison.after),
        "wins_before": asdict(comparison.before.wins),
        "wins_after": asdict(comparison.after.wins),
        "gain": asdict(comparison.gain),
        "intervals": FORMULAS,
        "seconds": seconds,
    }
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _table(title: str, answer: Rows) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for column in answer.columns:
        table.add_column(column.replace("_", " "))
    for row in answer.rows:
        table.add_row(*("" if value is None else str(value) for value in row))
    return table
