"""`rollbus worker run`: the stream stages in one process."""

import asyncio
import logging

import click

from rollbus import __version__
from rollbus.cli.groups import Verbs
from rollbus.cli.losses import show_losses, yes_option
from rollbus.cli.root import Settings, with_settings
from rollbus.hosted_stages import (
    describe_trust,
    require_judge_model,
    require_keys,
    rewards_of,
    select_stages,
    stage_configurations,
)
from rollbus.terminal.log_lines import log_to_stderr

logger = logging.getLogger(__name__)


@click.group(cls=Verbs)
def worker() -> None:
    """Run the stream stages: from episode events to training batches."""


@worker.command()
@click.option("--stage", "stages", multiple=True, help="Run only this stage (`assembly`, `grouping.main`); repeatable.")
@with_settings
def run(settings: Settings, stages: tuple[str, ...]) -> None:
    """Run the stages until SIGTERM or Ctrl-C. Start several workers to share the partitions.

    It refuses to start if the topics have other partition counts, limits or retention than it needs.
    """
    from rollbus.streams.worker.worker import run_worker

    log_to_stderr()
    hosted = select_stages(settings, stages)
    require_judge_model(settings, rewards_of(settings, hosted))
    require_keys(settings)
    for line in describe_trust(settings):
        logger.warning(line)
    configs, heart = stage_configurations(settings), settings.heart("worker")
    run_worker(settings.stream_settings(), hosted, configs, app_version=__version__, heart=heart)


@worker.command("accept-loss")
@click.argument("stages", nargs=-1, required=True, metavar="STAGE...")
@yes_option
@with_settings
def accept_loss_(settings: Settings, stages: tuple[str, ...], yes: bool) -> None:
    """Continue STAGEs after a loss of records or positions. Stop their workers first.

    Records are lost if retention deleted them before they were read, or if the topic is another one by now: made again,
    restored from a backup, on another cluster. Without --yes nothing is changed. Each loss is kept as a dead letter of
    class DataLossError; see `rollbus dead-letters list`. The state that the stage made from earlier records stays.
    """
    from rollbus.schemas.wall_clock import wall_clock_ms
    from rollbus.streams.operate.repair import accept_loss

    meaning = (
        "No worker will ever see records that are gone: their episodes end as drops with reason `missing_events`, or "
        "leave no trace if all their records are lost. A sink or a replay that read them in time still has them. To "
        "continue, stop the workers and add --yes."
    )
    for stage in select_stages(settings, stages):
        losses = asyncio.run(accept_loss(settings.stream_settings(), stage, now_ms=wall_clock_ms(), dry_run=not yes))
        by_place = {(stage.input.name, partition): loss for partition, loss in losses.items()}
        show_losses(stage.name, by_place, accepted=yes, meaning=meaning)
