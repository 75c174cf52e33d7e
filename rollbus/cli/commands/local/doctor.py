"""`rollbus doctor`: look at this machine, its settings and its broker, and say what to do."""

import sys

import click
from rich.text import Text

from rollbus.cli.groups import Verbs
from rollbus.cli.objects import load_object
from rollbus.cli.root import SettingsFile
from rollbus.schemas.errors import ConfigurationError
from rollbus.terminal.output import Console, OutputTable, echo, show_rows

STYLES = {"ok": "green", "note": "yellow", "problem": "red"}


@click.group(cls=Verbs, invoke_without_command=True)
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Check versions, disk, GPU, ports, topics, permissions and clock, and say what to do.

    Exit with code 1 if there is a problem.
    """
    if ctx.invoked_subcommand is None:
        _examine(ctx.find_object(SettingsFile) or SettingsFile(None))


@doctor.command()
@click.argument("agent", metavar="MODULE:FUNCTION")
def capture(agent: str) -> None:
    """Run an agent once, and show which calls of models were seen, by which hook, and what to add.

    The function takes no argument and may be asynchronous. Nothing is sent. Exits with code 1 if a call was not seen or
    cannot be trained.
    """
    from rollbus.health.capture import examine_capture
    from rollbus.producers.turns.advice import advise

    report = examine_capture(load_object(agent, "agent"))
    table = OutputTable("turn", "agent", "model", "hook", "verdict", "what to add")
    for number, (turn, hook) in enumerate(report.turns):
        verdict = Text("trainable", "green") if turn.trainable else Text(str(turn.untrainable_reason), "yellow")
        table.add_row(str(number), turn.function, turn.model, hook, verdict, advise(turn.untrainable_reason, hook))
    show_rows(table, "no call of a model was seen; does the agent make one through a library below?")
    echo(f"patched: {', '.join(report.patched)}")
    for note in report.notes:
        echo(f"missing: {note}")
    if report.error is not None:
        raise ConfigurationError(f"the agent failed: {type(report.error).__name__}: {report.error}") from report.error
    sys.exit(not report.is_whole)


def _examine(source: SettingsFile) -> None:
    settings = source.load()
    from rollbus.health.checks import examine
    from rollbus.hosted_stages import all_stages

    table = OutputTable("subject", "state", "found", "what to do")
    findings = list(examine(settings, all_stages(settings)))
    for finding in findings:
        table.add_row(finding.subject, Text(finding.state, STYLES[finding.state]), finding.what, finding.remedy)
    Console().print(table)
    sys.exit(any(finding.state == "problem" for finding in findings))
