"""`rollbus doctor`: look at this machine, its settings and its broker, and say what to do."""

import sys

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.output import Console, Table
from rollbus.cli.root import SettingsFile

STYLES = {"ok": "green", "note": "yellow", "problem": "red"}


@click.group(cls=Verbs, invoke_without_command=True)
@click.pass_context
def doctor(ctx: click.Context) -> None:
    """Check versions, disk, GPU and topics, and say what to do; exit with code 1 if there is a problem."""
    if ctx.invoked_subcommand is None:
        _examine(ctx.find_object(SettingsFile) or SettingsFile(None))


def _examine(source: SettingsFile) -> None:
    from rich.text import Text

    from rollbus.cli.stages import all_stages
    from rollbus.health.checks import examine

    settings = source.load()
    table = Table("subject", "state", "found", "what to do")
    findings = list(examine(settings, all_stages(settings)))
    for found in findings:
        table.add_row(found.subject, Text(found.state, STYLES[found.state]), found.what, found.remedy)
    Console().print(table)
    sys.exit(any(found.state == "problem" for found in findings))
