"""`rollbus policy`: which weights there are, which are served, and the way back."""

from typing import TYPE_CHECKING

import click

from rollbus.cli.output import Console, Table
from rollbus.cli.root import with_settings
from rollbus.cli.trainer import run_option

if TYPE_CHECKING:
    from rollbus.settings import Settings

reason_option = click.option("--reason", required=True, help="Why; it stands in the log beside the change.")


@click.group()
def policy() -> None:
    """Which weights there are, which are served, and the way back."""


@policy.command("list")
@run_option
@with_settings
def list_(settings: "Settings", run_id: str | None) -> None:
    """List the versions of a run's model: parent, state, which one is served and which one trains on."""
    from rollbus.trainer.policy_kafka import list_policy_versions

    table = Table("version", "parent", "state", "", "checkpoint")
    for row in list_policy_versions(settings.trainer_settings(run_id)):
        marks = ", ".join(mark for mark, holds in (("serving", row.is_serving), ("head", row.is_head)) if holds)
        parent = "–" if row.parent is None else str(row.parent)
        table.add_row(str(row.version), parent, row.state.replace("_", " "), marks, row.checkpoint)
    Console().print(table)


@policy.command()
@run_option
@click.argument("version", type=int)
@with_settings
def show(settings: "Settings", run_id: str | None, version: int) -> None:
    """Show the step that made a version, with every record of it."""
    from rich.pretty import pprint

    from rollbus.schemas.errors import ConfigurationError
    from rollbus.schemas.steps import StepCompleted
    from rollbus.trainer.report_kafka import list_steps, show_step

    trainer = settings.trainer_settings(run_id)
    made = [step for step in list_steps(trainer) if isinstance(step, StepCompleted) and step.policy_version == version]
    if not made:
        raise ConfigurationError(f"no step of run {trainer.run_id!r} made version {version}; see `rollbus policy list`")
    for record in show_step(trainer, made[-1].step):
        pprint(record, max_length=12)


@policy.command()
@run_option
@click.argument("version", type=int)
@reason_option
@with_settings
def promote(settings: "Settings", run_id: str | None, version: int, reason: str) -> None:
    """Serve a version to requests for the bare model name; training goes on undisturbed."""
    from rollbus.trainer.policy_kafka import promote_policy

    promote_policy(settings.trainer_settings(run_id), version, reason=reason)
    click.echo(f"version {version} is served")


@policy.command()
@run_option
@click.argument("version", type=int)
@reason_option
@with_settings
def rollback(settings: "Settings", run_id: str | None, version: int, reason: str) -> None:
    """Serve an earlier version and train on from it. A running trainer ends, and must be started again."""
    from rollbus.trainer.policy_kafka import roll_back_policy

    undone = roll_back_policy(settings.trainer_settings(run_id), version, reason=reason)
    click.echo(f"version {version} is served and trained on; rolled back: {', '.join(map(str, undone)) or 'none'}")
