"""`rollbus status` and `rollbus top`: whether all is well, from the log and this machine's stack."""

import asyncio
import json
import sys
from contextlib import nullcontext, suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING

import click

from rollbus.cli.output import Console, OutputTable, echo
from rollbus.cli.root import Settings, with_settings
from rollbus.schemas.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollbus.health.picture import Picture
    from rollbus.local.stack import ServiceStatus


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@with_settings
def status(settings: Settings, as_json: bool) -> None:
    """Show what runs and whether all is well: services, processes, consumer groups, runs, and each problem.

    Exit with code 1 if something is wrong. Processes anywhere are judged by their heartbeats in the log.
    """
    from rollbus.health.picture import to_json
    from rollbus.health.show import render
    from rollbus.local import stack

    local = settings.stack_settings()
    services = stack.status(local, stack.stack_services(local, art_command=["art-server"]))
    unwell = [row for row in services if row.state not in ("running", "stopped")]
    picture, error = _look(settings, services)
    if as_json:
        health = None if picture is None else to_json(picture)
        echo(json.dumps({"services": [asdict(row) for row in services], "health": health, "error": error}))
    else:
        Console().print(_services(services))
        if picture is not None:
            Console().print(render(picture))
        elif error is not None:
            echo(error, err=True)
    if unwell and not as_json:
        names = ", ".join(row.name for row in unwell)
        echo(f"not well of the local stack on this machine: {names}; see the first table", err=True)
    sys.exit(bool(unwell) or error is not None or (picture is not None and bool(picture.problems)))


@click.command()
@click.option(
    "--interval", "interval_s", type=click.FloatRange(0.2, 60), default=2.0, help="Look every so many seconds."
)
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

    from rollbus.health.reading import open_health
    from rollbus.health.show import render

    console = Console()
    live = Live(Text("looking at Kafka"), console=console, screen=True, auto_refresh=False)
    with live if console.is_terminal else nullcontext():
        show = partial(live.update, refresh=True) if console.is_terminal else console.print
        while True:
            try:
                async with open_health(settings.kafka, settings.namespace, settings.health.alarms) as health:
                    while True:
                        show(render(await health.picture(), all_groups=False))
                        await asyncio.sleep(interval_s)
            except UnavailableError as error:
                show(Text(str(error), "red"))
            await asyncio.sleep(interval_s)


def _look(settings: Settings, services: "Sequence[ServiceStatus]") -> "tuple[Picture | None, str | None]":
    """Return the picture, or why there is none; neither for a local stack that `rollbus down` has stopped."""
    from rollbus.health.reading import read_health

    own = {row.address: row.state for row in services}
    if own.get(settings.kafka.bootstrap_servers) == "stopped":
        return None, None
    try:
        return asyncio.run(read_health(settings.kafka, settings.namespace, settings.health.alarms)), None
    except UnavailableError as error:
        return None, str(error)


def _services(services: "Sequence[ServiceStatus]") -> OutputTable:
    from rollbus.cli.commands.local.stack import styled

    table = OutputTable("service", "state", "address", "pid", "")
    for row in services:
        table.add_row(row.name, styled(row.state), row.address, str(row.pid or ""), row.detail)
    return table
