"""`rollbus log-to`: log completed steps and evaluations to a tracker, and decisions to a webhook."""

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.losses import show_losses, yes_option
from rollbus.cli.required_topics import require_topics
from rollbus.cli.root import Settings, with_settings
from rollbus.cli.signals import stop_on_signals
from rollbus.runtime.log_mark import AcceptedLoss
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.topics import topic_of
from rollbus.terminal.log_lines import log_to_stderr

if TYPE_CHECKING:
    from rollbus.consumers.loggers.protocol import RunLogger


@click.group(cls=Verbs)
def log_to() -> None:
    """Log steps and evaluations to a tracker, or decisions to a webhook, apart from training; see docs/export.md."""


@log_to.command()
@click.option("--project", default="rollbus", help="Log to this project.")
@click.option("--entity", help="Log as this user or team; by default W&B's own.")
@click.option(
    "--mode", type=click.Choice(["online", "offline"]), default="online", help="Send to the server, or keep on disk."
)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Write `wandb/` here.")
@with_settings
def wandb(settings: Settings, project: str, entity: str | None, mode: str, folder: Path) -> None:
    """Log to Weights & Biases, with the key of WANDB_API_KEY or `wandb login`."""
    from rollbus.consumers.loggers.wandb_logger import WandbLogger

    wandb_logger = WandbLogger(
        project,
        namespace=settings.namespace,
        entity=entity,
        mode="offline" if mode == "offline" else "online",
        folder=folder,
    )
    _follow(settings, wandb_logger, "wandb")


@log_to.command()
@click.option(
    "--tracking-uri",
    envvar="MLFLOW_TRACKING_URI",
    required=True,
    help="Log to this server, such as http://127.0.0.1:5000.",
)
@click.option("--experiment", default="rollbus", help="Log to this experiment.")
@with_settings
def mlflow(settings: Settings, tracking_uri: str, experiment: str) -> None:
    """Log to MLflow."""
    from rollbus.consumers.loggers.mlflow_logger import MlflowLogger

    _follow(settings, MlflowLogger(tracking_uri, namespace=settings.namespace, experiment=experiment), "mlflow")


@log_to.command()
@with_settings
def langfuse(settings: Settings) -> None:
    """Log to Langfuse as scores, with LANGFUSE_BASE_URL, LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY."""
    from rollbus.consumers.loggers.langfuse_logger import LangfuseLogger

    _follow(settings, LangfuseLogger(namespace=settings.namespace), "langfuse")


@log_to.command()
@click.option("--base-url", envvar="OPENPIPE_BASE_URL", help="Log to your own OpenPipe; by default to the hosted one.")
@with_settings
def openpipe(settings: Settings, base_url: str | None) -> None:
    """Log to OpenPipe, one reported call for each, with the key of OPENPIPE_API_KEY."""
    from rollbus.consumers.loggers.openpipe_logger import BASE_URL, OpenPipeLogger

    key = os.environ.get("OPENPIPE_API_KEY")
    if not key:
        raise ConfigurationError("there is no key for OpenPipe: set OPENPIPE_API_KEY")
    openpipe_logger = OpenPipeLogger(namespace=settings.namespace, api_key=key, base_url=base_url or BASE_URL)
    _follow(settings, openpipe_logger, "openpipe")


@log_to.command()
@click.option("--url", envvar="ROLLBUS_WEBHOOK_URL", required=True, help="Post each decision here, as JSON.")
@with_settings
def webhook(settings: Settings, url: str) -> None:
    """Tell a webhook, such as a chat's, of every decision on who serves a model; see docs/delivery.md."""
    from rollbus.consumers.loggers.follow_kafka import Takes, feed
    from rollbus.consumers.loggers.webhook import Webhook
    from rollbus.schemas.records.delivery import PolicyDecision

    require_topics(settings, "policy-decisions")
    hook = Webhook(url)

    async def until_signalled() -> None:
        takes: Takes = {PolicyDecision: hook.notify}
        heart = settings.heart("log-to")
        await feed(settings.kafka, settings.namespace, takes, name="webhook", stop=stop_on_signals(), heart=heart)

    log_to_stderr()
    asyncio.run(until_signalled())


LOGGERS = {
    **dict.fromkeys(("wandb", "mlflow", "langfuse", "openpipe"), ("training-steps", "evaluations")),
    "webhook": ("policy-decisions",),
}
"""The topics that each reads."""


@log_to.command("accept-loss")
@click.argument("logger", type=click.Choice(list(LOGGERS)))
@yes_option
@with_settings
def accept_loss_(settings: Settings, logger: str, yes: bool) -> None:
    """Continue LOGGER after its topics were made again, restored or moved, or a tool has set offsets. Stop it first.

    Without --yes nothing is changed. Each loss is kept as a dead letter of class DataLossError.
    """
    from rollbus.consumers.loggers.follow_kafka import STAGE, logger_positions
    from rollbus.runtime.kafka.partitions import places_of
    from rollbus.schemas.wall_clock import wall_clock_ms

    require_topics(settings, *LOGGERS[logger], "dead-letters")
    names = [topic_of(topic).full_name(settings.namespace) for topic in LOGGERS[logger]]

    async def main() -> Mapping[tuple[str, int], AcceptedLoss]:
        places = await places_of(settings.kafka, names)
        return await logger_positions(settings.kafka, settings.namespace, logger).accept(
            places, namespace=settings.namespace, stage=STAGE, now_ms=wall_clock_ms(), dry_run=not yes
        )

    meaning = "Records that were logged already may be logged again. To continue, stop the logger and add --yes."
    show_losses(f"log-to {logger}", asyncio.run(main()), accepted=yes, meaning=meaning)


def _follow(settings: Settings, run_logger: "RunLogger", name: str) -> None:
    from rollbus.consumers.loggers.follow_kafka import follow

    require_topics(settings, "training-steps", "evaluations")

    async def until_signalled() -> None:
        heart = settings.heart("log-to")
        await follow(settings.kafka, settings.namespace, run_logger, name=name, stop=stop_on_signals(), heart=heart)

    log_to_stderr()
    asyncio.run(until_signalled())
