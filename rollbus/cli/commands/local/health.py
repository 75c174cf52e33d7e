"""`rollbus status` and `rollbus top`: whether all is well, from the log, ClickHouse and this machine's stack."""

import asyncio
import json
import sys
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from rollbus.cli.groups import Verb
from rollbus.cli.number_option import Number
from rollbus.cli.root import Settings, with_settings
from rollbus.terminal.output import Console, OutputTable, echo
from rollbus.terminal.progress import show_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollbus.health.status import NamespaceStatus
    from rollbus.local.stack import ServiceStatus


WELL = ("running", "starting", "stopped")
"""States of a service that ask nothing of anybody."""


@click.command(cls=Verb)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@with_settings
def status(settings: Settings, as_json: bool) -> None:
    """Show whether all is well: what becomes of the episodes and when the next step comes, what runs, each problem.

    Exit with code 1 if something is wrong, or if nothing can train. Processes anywhere are judged by their heartbeats
    in the log; episodes are counted in ClickHouse.
    """
    from rollbus.local import stack

    local = settings.stack_settings()
    with show_progress("looking at the services, the log and the counts"):
        services = stack.status(local, stack.stack_services(local, art_command=["art-server"]))
        answer = _look(settings, services)
    unwell = [row for row in services if row.state not in WELL]
    if as_json:
        nothing: dict[str, Any] = {"verdict": None, "funnels": [], "health": None, "error": None}
        content = nothing if answer is None else answer.as_json()
        echo(json.dumps({"services": [asdict(row) for row in services], **content}))
    else:
        Console().print(_services(services))
        if answer is not None:
            from rollbus.health.show import render

            Console().print(render(answer))
        else:
            echo("nothing runs here: `rollbus start` starts what a project needs, and says what to do next")
    if unwell and not as_json:
        names = ", ".join(row.name for row in unwell)
        echo(f"not well of the local stack on this machine: {names}; see the first table", err=True)
    sys.exit(bool(unwell) or (answer is not None and answer.verdict.is_wrong))


@click.command(cls=Verb)
@click.option("--interval", "interval_s", type=Number(0.2, 60), default=2.0, help="Look every so many seconds.")
@with_settings
def top(settings: Settings, interval_s: float) -> None:
    """Show the same live, until Ctrl-C: lags and their growth, the age of the newest step, reward, problems.

    Into a file or a pipe, each look is printed after the one before.
    """
    with suppress(KeyboardInterrupt):
        asyncio.run(_follow(settings, interval_s))


async def _follow(settings: Settings, interval_s: float) -> None:
    from rich.live import Live
    from rich.text import Text

    from rollbus.health.show import render
    from rollbus.health.status import StatusWatch

    console, watch = Console(), StatusWatch(settings)
    live = Live(Text("looking at Kafka"), console=console, screen=True, auto_refresh=False)
    try:
        with live if console.is_terminal else nullcontext():
            show = partial(live.update, refresh=True) if console.is_terminal else console.print
            while True:
                show(render(await watch.ask(), all_groups=False))
                await asyncio.sleep(interval_s)
    finally:
        await watch.close()


def _look(settings: Settings, services: "Sequence[ServiceStatus]") -> "NamespaceStatus | None":
    """Return what is known; None for a local stack that `rollbus down` has stopped."""
    state_by_address = {row.address: row.state for row in services}
    if state_by_address.get(settings.kafka.bootstrap_servers) == "stopped":
        return None
    from rollbus.health.status import read_status

    return asyncio.run(read_status(settings))


def _services(services: "Sequence[ServiceStatus]") -> OutputTable:
    from rollbus.cli.commands.local.stack import style_state

    table = OutputTable("service", "state", "address", "pid", "")
    for row in services:
        table.add_row(row.name, style_state(row.state), row.address, str(row.pid or ""), row.detail)
    return table
