"""`rollbus export`: trajectories, SFT sets and preference pairs for other trainers."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.output import counting
from rollbus.cli.root import with_settings

if TYPE_CHECKING:
    from rollbus.settings import Settings

OPTIONS = (
    click.argument("folder", type=click.Path(path_type=Path, file_okay=False)),
    click.option(
        "--where", default="", metavar="SQL", help="Condition, for example: \"task = 'play' AND reward > 0.5\"."
    ),
    click.option("--run", default="main", show_default=True, help="Run whose fates (fate, step, reason) can be named."),
    click.option("--limit", type=click.IntRange(min=1), help="Most trajectories."),
    click.option(
        "--format",
        "file_format",
        type=click.Choice(["jsonl", "parquet"]),
        default="jsonl",
        show_default=True,
    ),
    click.option(
        "--validation",
        type=click.FloatRange(0, 1, max_open=True),
        default=0.0,
        help="Share of the problems held back in a file of their own.",
    ),
)


def export_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add what every export is told."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@click.group(cls=Verbs)
def export() -> None:
    """Write data sets from what was recorded, without what was excluded; see docs/export.md."""


@export.command()
@export_options
@click.option("--tokens", is_flag=True, help="Token ids and log-probs as sampled, too.")
@with_settings
def trajectories(settings: "Settings", **asked: Any) -> None:
    """Write whole trajectories into FOLDER: conversation, reward, fate, and tokens if asked for."""
    _export(settings, kind="trajectories", **asked)


@export.command()
@export_options
@click.option(
    "--layout",
    "sft_layout",
    type=click.Choice(["messages", "prompt-completion"]),
    default="messages",
    show_default=True,
    help="Whole conversations, or one row per answer.",
)
@with_settings
def sft(settings: "Settings", **asked: Any) -> None:
    """Write a set for supervised fine-tuning into FOLDER; say with --where what was good enough."""
    _export(settings, kind="sft", **asked)


@export.command()
@export_options
@click.option(
    "--layout",
    "dpo_layout",
    type=click.Choice(["preference", "nemo-dpo"]),
    default="preference",
    show_default=True,
    help="TRL's columns (prompt, chosen, rejected), or NeMo Customizer's files.",
)
@click.option("--min-margin", type=float, default=0.0, help="Least difference of the rewards.")
@click.option("--exhaustive", is_flag=True, help="Every pair of answers to a prompt, not the best and the worst alone.")
@click.option("--max-pairs", type=click.IntRange(min=1), help="Most pairs per prompt, the clearest first.")
@with_settings
def dpo(settings: "Settings", **asked: Any) -> None:
    """Write preference pairs into FOLDER: two answers to one prompt, the one with the higher reward first."""
    _export(settings, kind="dpo", **asked)


def _export(settings: "Settings", *, folder: Path, **asked: Any) -> None:
    from rollbus.consumers.clickhouse.client_clickhouse import ClickHouse
    from rollbus.consumers.export.run import ExportRequest
    from rollbus.consumers.export.run import export as write_export

    client = ClickHouse(settings.clickhouse)
    try:
        with counting("trajectories") as progress:
            request = ExportRequest(namespace=settings.namespace, **asked)
            manifest = write_export(client, request, folder, progress=progress)
    finally:
        client.close()
    for file in manifest["files"]:
        click.echo(f"{file['rows']} rows in {folder / file['path']}")
    for reason, count in manifest["left_out"].items():
        click.echo(f"left out: {count} {reason}")
    click.echo(f"{manifest['exclusions']['episodes']} excluded episodes were left out; see {folder / 'manifest.json'}")
