"""`rollbus worker run`: the stream stages in one process."""

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
