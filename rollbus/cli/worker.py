"""`rollbus worker run`: the stream stages in one process."""

import asyncio
from typing import TYPE_CHECKING

import click

from rollbus import __version__
from rollbus.cli.root import log_to_stderr, with_settings
from rollbus.cli.stages import chosen_stages, configurations

if TYPE_CHECKING:
    from rollbus.settings import Settings


@click.group()
def worker() -> None:
    """Stream stages: from episode events to training batches."""


@worker.command()
@click.option(
    "--stage", "stages", multiple=True, help="Host only this stage (`assembly`, `grouping.main`); repeatable."
)
@with_settings
def run(settings: "Settings", stages: tuple[str, ...]) -> None:
    """Run the stages until SIGTERM or Ctrl-C. Start several workers to share the partitions.

    It refuses to start on topics with other partition counts, limits or retention than it needs.
    """
    from rollbus.streams.worker import run_worker

    log_to_stderr()
    hosted = chosen_stages(settings, stages)
    run_worker(settings.stream_settings(), hosted, configurations(settings), app_version=__version__)


@worker.command("accept-loss")
@click.argument("stages", nargs=-1, required=True, metavar="STAGE...")
@with_settings
def accept_loss_(settings: "Settings", stages: tuple[str, ...]) -> None:
    """Let STAGEs go on after records that retention deleted before they were read. Stop their workers first.

    Each range of lost records is kept as a dead letter of class DataLossError; see `rollbus dead-letters list`.
    """
    from rollbus.streams.repair_kafka import accept_loss
    from rollbus.streams.ticker_kafka import wall_clock_ms

    for stage in chosen_stages(settings, stages):
        lost = asyncio.run(accept_loss(settings.stream_settings(), stage, now_ms=wall_clock_ms()))
        for partition, (first, last) in lost.items():
            click.echo(f"{stage.name}: {stage.input.name}[{partition}] goes on without records {first} … {last}")
        if not lost:
            click.echo(f"{stage.name}: nothing is lost, and nothing was changed")
