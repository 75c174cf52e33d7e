"""`rollbus up` and `down`: the local stack, printed for people."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from rollbus.cli.groups import Verb
from rollbus.cli.root import Settings, with_settings
from rollbus.start.served_model import served_base_model
from rollbus.terminal.output import Console
from rollbus.terminal.progress import show_progress

if TYPE_CHECKING:
    from rollbus.local.process.service import Service
    from rollbus.local.stack import ServiceStatus

STYLES = {"running": "green", "started": "green", "stopped": "dim", "starting": "yellow", "unhealthy": "yellow"}
"""Every other state is red: it needs attention."""


@click.command(cls=Verb)
@click.option("--art/--no-art", default=True, help="Start the ART server too, which takes longest.")
@with_settings
def up(settings: Settings, art: bool) -> None:
    """Start Kafka, ClickHouse and the ART server unless they run, wait until they are healthy, show their addresses.

    Kafka and ClickHouse come first. The ART server serves SmolLM2 where `art_server: base_model:` names no model, and
    fetches it, once. Data stays in `stack: data_dir:` (.rollbus) across restarts.
    """
    from rollbus.local import stack
    from rollbus.local.kafka.jars import find_jars

    local = settings.stack_settings()
    stack.require_startable(local, stack.stack_services(local, art_command=["art-server"] if art else None))
    try:
        with show_progress("looking for Kafka's jars") as progress:
            find_jars(report=progress.begin)
        _start(settings, stack.stack_services(local), "Kafka and ClickHouse are starting")
        if art:
            model = served_base_model(settings)
            command = [sys.executable, "-m", "rollbus", *_config_option(), "art-server", "run"]
            service = stack.art_service(local, [*command, "--base-model", str(model)])
            _start(settings, [service], "the ART server is starting: it imports torch and loads the model")
    except KeyboardInterrupt:
        raise click.ClickException("interrupted; what was started runs until `rollbus down`") from None


def _start(settings: Settings, services: "Sequence[Service]", what: str) -> None:
    """Start services and wait; then print each that answers, also if another does not."""
    from rollbus.local import stack

    statuses: list[ServiceStatus] = []
    try:
        with show_progress(what):
            stack.up(settings.stack_settings(), services, report=statuses.append)
    finally:
        for status in statuses:
            _print_status(Console(), status)


@click.command(cls=Verb)
@with_settings
def down(settings: Settings) -> None:
    """Stop what `up` started, and nothing else; data stays."""
    from rollbus.local import stack

    console = Console()
    if not stack.down(settings.stack_settings(), report=partial(_print_status, console)):
        console.print("nothing to stop: `rollbus up` started nothing here")


def _config_option() -> list[str]:
    path: Any = click.get_current_context().obj.path
    return ["--config", str(path)] if path else []


def _print_status(console: Console, status: "ServiceStatus") -> None:
    line = Text.assemble(f"{status.name:12} ", style_state(status.state), f"  {status.address}  {status.detail}")
    line.rstrip()
    console.print(line, highlight=False)


def style_state(state: str) -> Text:
    """Return a service's state in its colour."""
    return Text(state, STYLES.get(state, "red"))
