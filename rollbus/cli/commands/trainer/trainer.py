"""`rollbus trainer`: run the trainer, and read its ledger."""

import dataclasses
import uuid
from typing import TYPE_CHECKING

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.losses import show_losses, yes_option
from rollbus.cli.required_topics import require_topics
from rollbus.cli.root import Settings, with_settings
from rollbus.terminal.log_lines import log_to_stderr
from rollbus.terminal.output import Console, OutputTable, echo, format_count, show_record, show_rows

if TYPE_CHECKING:
    from rollbus.schemas.records.control import RunCommandName
    from rollbus.trainer.settings import TrainerSettings

run_option = click.option("--run", "run_id", help="Use this run; needed if the settings have several.")


@click.group(cls=Verbs)
def trainer() -> None:
    """Run the trainer, from batches to GRPO updates, and look at its steps."""


@trainer.command()
@run_option
@click.option(
    "--from-namespace",
    metavar="NAMESPACE",
    help="Train the batches of a replay, by its name or namespace, and end after the last.",
)
@click.option(
    "--from",
    "from_version",
    type=int,
    metavar="VERSION",
    help="Train on from this version, which has served, if one above it is quarantined; otherwise from the newest.",
)
@with_settings
def run(settings: Settings, run_id: str | None, from_namespace: str | None, from_version: int | None) -> None:
    """Train a run's batches in order until SIGTERM or Ctrl-C; a second trainer of the same model fences the first.

    With --from-namespace it trains the batches of a complete replay; steps and versions are recorded with the others.
    """
    from rollbus.trainer.operate.policy_on_log import leave_quarantined
    from rollbus.trainer.process import run_trainer

    run_settings = settings.trainer_settings(run_id)
    if from_namespace is not None:
        run_settings = run_settings.model_copy(update={"from_namespace": _complete_replay(settings, from_namespace)})
    log_to_stderr()
    if from_version is not None and (undone := leave_quarantined(run_settings, from_version)):
        echo(f"trained from version {from_version}; rolled back: {', '.join(map(str, undone))}")
    run_trainer(run_settings, heart=settings.heart("trainer", run_settings.run_id))


@trainer.command("accept-loss")
@run_option
@yes_option
@with_settings
def accept_loss_(settings: Settings, run_id: str | None, yes: bool) -> None:
    """Continue after `batches` was made again, restored or moved, lost records, or a tool has set the offset.

    Stop the trainer first. Without --yes nothing is changed. The loss is kept as a dead letter of class DataLossError.
    No batch that is in the ledger is trained again.
    """
    import asyncio

    from rollbus.schemas.wall_clock import wall_clock_ms
    from rollbus.trainer.ledger.batch_positions_kafka import STAGE, batch_positions, place_of_batches

    run_settings = trainer_settings(settings, run_id, "batches", "training-steps", "dead-letters")
    positions = batch_positions(run_settings.kafka, run_settings.namespace, run_settings.run_id)
    losses = asyncio.run(
        positions.accept(
            [place_of_batches(run_settings.namespace)],
            namespace=run_settings.namespace,
            stage=STAGE,
            now_ms=wall_clock_ms(),
            dry_run=not yes,
        )
    )
    meaning = "Batches that are gone are never trained. To continue, stop the trainer and add --yes."
    show_losses(f"trainer of run {run_settings.run_id}", losses, accepted=yes, meaning=meaning)


def _complete_replay(settings: Settings, namespace: str) -> str:
    """Return a replay's namespace, given that or its name; raises ConfigurationError unless it is complete."""
    import asyncio

    from rollbus.schemas.errors import ConfigurationError
    from rollbus.streams.replay.kafka.manifest import find_manifest

    name = namespace.removeprefix("replay-").partition(".")[0]
    manifest = asyncio.run(find_manifest(settings.stream_settings(), name))
    if manifest.state != "complete":
        raise ConfigurationError(
            f"replay {name!r} is a shadow, which follows live without an end; a trainer takes the batches of a replay "
            "that has ended"
        )
    return manifest.namespace


def trainer_settings(settings: Settings, run_id: str | None, *topics: str) -> "TrainerSettings":
    """Return the settings of a run's trainer; raises ConfigurationError if a topic that is read does not exist."""
    run_settings = settings.trainer_settings(run_id)
    require_topics(settings, *topics)
    return run_settings


@trainer.command()
@run_option
@with_settings
def status(settings: Settings, run_id: str | None) -> None:
    """Show the state of a run: its steps, the open one, the served version, whether the backend takes batches."""
    from rollbus.trainer.operate.report import trainer_status

    report = trainer_status(trainer_settings(settings, run_id, "training-steps"))
    table = OutputTable(show_header=False)
    for field in dataclasses.fields(report):
        table.add_row(field.name.replace("_", " "), _summarize(getattr(report, field.name)))
    Console().print(table)


def _summarize(value: object) -> str:
    """Return a line for a value; for a step's record, its outcome and counts."""
    from rollbus.schemas.records.steps import StepCompleted, StepFailed, StepSkipped
    from rollbus.trainer.ledger.ledger import StepOnRecord

    if isinstance(value, StepCompleted):
        trained_count = format_count(len(value.trained), "trajectory", "trajectories")
        count = f"{trained_count} trained, {len(value.dropped)} dropped"
        return f"step {value.step}: version {value.base_version} → {value.policy_version}, {count}"
    if isinstance(value, StepSkipped):
        return f"step {value.step} skipped: {value.reason}"
    if isinstance(value, StepFailed):
        return f"step {value.step}, attempt {value.attempt}: {value.error_class}: {value.message}"
    if isinstance(value, StepOnRecord):
        return (
            f"step {value.step}, attempt {value.attempt}: from version {value.base_version}, batch {value.batch_hash}"
        )
    return "–" if value is None else str(value)


@trainer.command()
@run_option
@click.option("--last", type=click.IntRange(min=1), default=20, help="List this many.")
@with_settings
def steps(settings: Settings, run_id: str | None, last: int) -> None:
    """List the newest closed steps of a run."""
    from rollbus.schemas.records.steps import StepCompleted
    from rollbus.trainer.operate.report import list_steps

    run_settings = trainer_settings(settings, run_id, "training-steps")
    table = OutputTable("step", "state", "base", "version", "trained", "dropped", "reward", "lag", "seconds")
    for step in list_steps(run_settings, last=last):
        seconds = f"{(step.completed_at_ms - step.started_at_ms) / 1000:.1f}"
        if isinstance(step, StepCompleted):
            measured = [step.metrics.get(name) for name in ("reward_mean", "lag_mean")]
            means = ["–" if value is None else f"{value:.3f}" for value in measured]
            counts = [str(len(step.trained)), str(len(step.dropped))]
            table.add_row(str(step.step), "completed", str(step.base_version), str(step.policy_version),
                          *counts, *means, seconds)  # fmt: skip
        else:
            table.add_row(str(step.step), f"skipped: {step.reason}", str(step.base_version), "–", "0",
                          str(len(step.dropped)), "–", "–", seconds)  # fmt: skip
    show_rows(
        table,
        f"run {run_settings.run_id!r} has closed no step yet: `rollbus trainer run` closes one for each batch; "
        "`rollbus trainer status` says whether one is open",
    )


@trainer.command()
@run_option
@click.argument("step", type=int)
@with_settings
def show(settings: Settings, run_id: str | None, step: int) -> None:
    """Show every record of one step."""
    from rollbus.trainer.operate.report import show_step

    for record in show_step(trainer_settings(settings, run_id, "training-steps"), step):
        show_record(record)


@trainer.command()
@run_option
@click.argument("step", type=click.IntRange(min=1), required=False)
@with_settings
def rewards(settings: Settings, run_id: str | None, step: int | None) -> None:
    """Show which rewards trained STEP, or the newest: each member's reward, and the reports behind it, from ClickHouse.

    A report is in force, or earlier than another of its name, superseded, or too late for the step.
    """
    from rollbus.consumers.clickhouse.questions.output import as_table
    from rollbus.consumers.clickhouse.questions.saved_questions import run_query

    chosen_run = settings.run(run_id).run_id
    values = {"namespace": settings.namespace, "run": chosen_run, "step": step or 0}
    configured = [run.run_id for run in settings.runs]
    answer = run_query(settings.clickhouse, "rewards_of_step", values, configured=configured)
    if not answer.rows:
        missing_step = "no step" if step is None else f"no step {step}"
        remedy = "`rollbus sink run` writes what is trained"
        echo(f"run {chosen_run!r} has trained {missing_step} in ClickHouse yet: {remedy}")
        return
    title = f"step {step}" if step else "the newest step"
    Console().print(as_table(answer.columns, answer.rows, title=title, width=Console().width))


@trainer.command()
@run_option
@click.option("--reason", required=True, help="Say why; it is kept in the log with the command.")
@with_settings
def pause(settings: Settings, run_id: str | None, reason: str) -> None:
    """Pause a run: it takes no further batches. An open step is closed; the other data waits in the log."""
    _send_command(settings.trainer_settings(run_id), "pause", reason)
    echo("the run is paused; `rollbus trainer resume` continues it")


@trainer.command()
@run_option
@click.option("--reason", help="Say why; it is kept in the log with the command.")
@with_settings
def resume(settings: Settings, run_id: str | None, reason: str | None) -> None:
    """Resume a paused run: its trainer, and the curriculum that cuts its batches."""
    _send_command(settings.trainer_settings(run_id), "resume", reason)
    echo("the run continues")


def _send_command(settings: "TrainerSettings", command: "RunCommandName", reason: str | None) -> None:
    from rollbus.trainer.operate.publishing import command_run

    command_run(settings, command, command_id=uuid.uuid4().hex, comment=reason)
