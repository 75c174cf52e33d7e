"""`rollbus up` and `down`: the local stack, printed for people."""

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.text import Text

from rollbus.cli.output import Console
from rollbus.cli.root import Settings, with_settings

if TYPE_CHECKING:
    from rollbus.local.process.service import Service
    from rollbus.local.stack import ServiceStatus

STYLES = {"running": "green", "started": "green", "stopped": "dim", "unhealthy": "yellow"}
"""Every other state is red: it needs attention."""


@click.command()
@click.option("--art/--no-art", default=True, help="Start the ART server too, which takes longest.")
@with_settings
def up(settings: Settings, art: bool) -> None:
    """Start Kafka, ClickHouse and the ART server unless they run, wait until they are healthy, show their addresses.

    Data stays in `stack: data_dir:` (.rollbus) across restarts.
    """
    from rollbus.local import stack

    console, local = Console(), settings.stack_settings()
    stack.require_startable(local, stack.stack_services(local, art_command=["art-server"] if art else None))
    services = _services(settings, art=art)
    try:
        with console.status("starting " + ", ".join(service.name for service in services)):
            stack.up(local, services, report=_printer(console))
    except KeyboardInterrupt:
        raise click.ClickException("interrupted; what was started runs until `rollbus down`") from None


@click.command()
@with_settings
def down(settings: Settings) -> None:
    """Stop what `up` started, and nothing else; data stays."""
    from rollbus.local import stack

    console = Console()
    if not stack.down(settings.stack_settings(), report=_printer(console)):
        console.print("nothing to stop: `rollbus up` started nothing here")


def _services(settings: Settings, *, art: bool) -> "tuple[Service, ...]":
    from rollbus.cli.commands.trainer.art_server import ensure_base_model
    from rollbus.local import stack
    from rollbus.local.kafka.jars import find_jars

    find_jars(report=partial(click.echo, err=True))
    command = None
    if art:
        command = [sys.executable, "-m", "rollbus", *_config_option(), "art-server", "run"]
        command += ["--base-model", str(ensure_base_model(settings))]
    return stack.stack_services(settings.stack_settings(), art_command=command)


def _config_option() -> list[str]:
    path: Any = click.get_current_context().obj.path
    return ["--config", str(path)] if path else []


def _printer(console: Console) -> "Callable[[ServiceStatus], None]":
    def report(row: "ServiceStatus") -> None:
        line = Text.assemble(f"{row.name:12} ", styled(row.state), f"  {row.address}  {row.detail}")
        line.rstrip()
        console.print(line, highlight=False)

    return report


def styled(state: str) -> Text:
    """Return a service's state in its colour."""
    return Text(state, STYLES.get(state, "red"))
