"""`rollbus worker run`: the stream stages in one process."""

import asyncio
from typing import TYPE_CHECKING

import click

from rollbus import __version__
from rollbus.cli.groups import Verbs
from rollbus.cli.root import log_to_stderr, with_settings
from rollbus.cli.stages import chosen_stages, configurations, refuse_unaskable, rewards_of

if TYPE_CHECKING:
    from rollbus.settings import Settings


@click.group(cls=Verbs)
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
    refuse_unaskable(settings, rewards_of(settings, hosted))
    run_worker(settings.stream_settings(), hosted, configurations(settings), app_version=__version__)


@worker.command("accept-loss")
@click.argument("stages", nargs=-1, required=True, metavar="STAGE...")
@click.option("--yes", is_flag=True, help="Do it; without this, only say what would be lost.")
@with_settings
def accept_loss_(settings: "Settings", stages: tuple[str, ...], yes: bool) -> None:
    """Let STAGEs go on after records that retention deleted before they were read. Stop their workers first.

    Without --yes it only looks. Each range of lost records is kept as a dead letter of class DataLossError; see
    `rollbus dead-letters list`. What the stage had made of earlier records stays.
    """
    from rollbus.streams.repair_kafka import accept_loss
    from rollbus.streams.ticker_kafka import wall_clock_ms

    verb, found = ("goes on" if yes else "would go on"), False
    for stage in chosen_stages(settings, stages):
        lost = asyncio.run(accept_loss(settings.stream_settings(), stage, now_ms=wall_clock_ms(), dry_run=not yes))
        for partition, (first, last) in lost.items():
            place = f"{stage.input.name}[{partition}]"
            click.echo(f"{stage.name}: {place} {verb} without records {first} … {last} ({last - first + 1} at most)")
        if not lost:
            click.echo(f"{stage.name}: nothing is lost, and nothing was changed")
        found = found or bool(lost)
    if found and not yes:
        click.echo(
            "Nothing was changed. No worker will ever see these records: what they told of episodes ends as drops "
            "(`missing_events`, `missing_chunk`), or not at all where they were the only ones of their episode. A sink "
            "or a replay that read them in time still has them. To go on, stop the workers and add --yes."
        )
