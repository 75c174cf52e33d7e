"""`rollbus policy`: which weights there are, which are served, and the way back."""

from typing import TYPE_CHECKING

import click

from rollbus.cli.groups import Verbs
from rollbus.cli.needs import needs_topic
from rollbus.cli.output import Console, Table, show_record, show_rows
from rollbus.cli.root import with_settings
from rollbus.cli.trainer import run_option

if TYPE_CHECKING:
    from rollbus.schemas.steps import Evaluation
    from rollbus.settings import Settings

reason_option = click.option("--reason", required=True, help="Why; it stands in the log beside the change.")


@click.group(cls=Verbs)
def policy() -> None:
    """Which weights there are, which are served, and the way back."""


@policy.command("list")
@run_option
@with_settings
def list_(settings: "Settings", run_id: str | None) -> None:
    """List the versions of a run's model: parent, state, which is served, which trains on, how they were measured."""
    from rollbus.trainer.policy_kafka import list_policy_versions

    trainer = settings.trainer_settings(run_id)
    needs_topic(settings, "policy-versions")
    table = Table("version", "parent", "state", "", "evaluations", "checkpoint")
    for row in list_policy_versions(trainer):
        marks = ", ".join(mark for mark, holds in (("serving", row.is_serving), ("head", row.is_head)) if holds)
        parent = "–" if row.parent is None else str(row.parent)
        measured = "; ".join(map(_in_short, row.evaluations))
        table.add_row(str(row.version), parent, row.state.replace("_", " "), marks, measured, row.checkpoint)
    show_rows(
        table,
        f"model {trainer.model!r} has no version yet: `rollbus trainer run` records those that it finds when it starts "
        "first, and one for each step that it completes",
    )


@policy.command()
@run_option
@click.argument("version", type=int)
@with_settings
def show(settings: "Settings", run_id: str | None, version: int) -> None:
    """Show a version: the step that made it, each change of its state and why, how it was measured."""
    from rollbus.trainer.policy_kafka import show_policy_version

    trainer = settings.trainer_settings(run_id)
    needs_topic(settings, "policy-versions")
    for record in show_policy_version(trainer, version):
        show_record(record)


@policy.command()
@run_option
@click.argument("version", type=int)
@reason_option
@with_settings
def promote(settings: "Settings", run_id: str | None, version: int, reason: str) -> None:
    """Serve a version to requests for the bare model name; training goes on undisturbed."""
    from rollbus.trainer.policy_kafka import promote_policy

    chosen = settings.trainer_settings(run_id)
    needs_topic(settings, "policy-versions")
    promote_policy(chosen, version, reason=reason)
    click.echo(f"version {version} is served")


@policy.command()
@run_option
@click.argument("version", type=int)
@reason_option
@with_settings
def rollback(settings: "Settings", run_id: str | None, version: int, reason: str) -> None:
    """Serve an earlier version and train on from it. A running trainer ends, and must be started again."""
    from rollbus.trainer.policy_kafka import roll_back_policy

    chosen = settings.trainer_settings(run_id)
    needs_topic(settings, "policy-versions")
    undone = roll_back_policy(chosen, version, reason=reason)
    click.echo(f"version {version} is served and trained on; rolled back: {', '.join(map(str, undone)) or 'none'}")


@policy.command()
@run_option
@click.argument("version", type=int)
@with_settings
def evaluate(settings: "Settings", run_id: str | None, version: int) -> None:
    """Measure a version on the validation set of the settings; the record counts for `promote_if`."""
    from rich.progress import Progress

    from rollbus.trainer.policy_kafka import evaluate_policy

    chosen = settings.trainer_settings(run_id)
    needs_topic(settings, "evaluations", "policy-versions", "training-steps")
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(f"version {version} plays", total=None)
        found = evaluate_policy(
            chosen,
            version,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    click.echo(f"version {version}, {found.episodes} episodes of {_in_short(found)}")


@policy.command()
@run_option
@click.argument("before", type=int)
@click.argument("after", type=int)
@with_settings
def compare(settings: "Settings", run_id: str | None, before: int, after: int) -> None:
    """Tell two versions apart by their evaluations: each metric's difference, with its 95 % interval."""
    from rollbus.trainer.policy_kafka import compare_policies

    chosen = settings.trainer_settings(run_id)
    needs_topic(settings, "evaluations")
    table = Table("metric", f"{after} − {before}", "from", "to", "")
    for name, (low, value, high) in compare_policies(chosen, before, after).items():
        verdict = "more" if low > 0 else "less" if high < 0 else "within chance"
        table.add_row(name, f"{value:+.4f}", f"{low:+.4f}", f"{high:+.4f}", verdict)
    Console().print(table)


def _in_short(evaluation: "Evaluation") -> str:
    """Return its name, and each metric with its interval if it has one."""
    metrics, shown = evaluation.metrics, []
    for name in (name for name in metrics if not name.endswith(("_low", "_high"))):
        bounds = [metrics.get(f"{name}_{side}") for side in ("low", "high")]
        interval = "" if None in bounds else f" [{bounds[0]:.3f}, {bounds[1]:.3f}]"
        shown.append(f"{name} {metrics[name]:.3f}{interval}")
    return f"{evaluation.name}: {', '.join(shown)}"
