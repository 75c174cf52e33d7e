"""`rollbus policy`: list, serve, measure and roll back the versions of the weights."""

from typing import TYPE_CHECKING

import click

from rollbus.cli.commands.trainer import run_option, trainer_settings
from rollbus.cli.groups import Verbs
from rollbus.cli.output import Console, Table, echo, show_progress, show_record, show_rows
from rollbus.cli.root import Settings, with_settings

if TYPE_CHECKING:
    from rollbus.schemas.records.steps import Evaluation

reason_option = click.option("--reason", required=True, help="Say why; it is kept in the log with the change.")


@click.group(cls=Verbs)
def policy() -> None:
    """List, serve, measure and roll back the versions of the weights."""


@policy.command("list")
@run_option
@with_settings
def list_(settings: Settings, run_id: str | None) -> None:
    """List the versions of a run's model: parent, state, which is served and trained on, and their evaluations."""
    from rollbus.trainer.operate.policy_on_log import list_policy_versions

    trainer = trainer_settings(settings, run_id, "policy-versions")
    table = Table("version", "parent", "state", "", "evaluations", "checkpoint")
    for row in list_policy_versions(trainer):
        marks = ", ".join(mark for mark, holds in (("serving", row.is_serving), ("head", row.is_head)) if holds)
        parent = "–" if row.parent is None else str(row.parent)
        measured = "; ".join(map(_summarize, row.evaluations))
        table.add_row(str(row.version), parent, row.state.replace("_", " "), marks, measured, row.checkpoint)
    show_rows(
        table,
        f"model {trainer.model!r} has no version yet: `rollbus trainer run` records those that exist when it first "
        "starts, and one for each step that it completes",
    )


@policy.command()
@run_option
@click.argument("version", type=int)
@with_settings
def show(settings: Settings, run_id: str | None, version: int) -> None:
    """Show a version: the step that made it, each change of its state with the reason, and its evaluations."""
    from rollbus.trainer.operate.policy_on_log import show_policy_version

    for record in show_policy_version(trainer_settings(settings, run_id, "policy-versions"), version):
        show_record(record)


@policy.command()
@run_option
@click.argument("version", type=int)
@reason_option
@with_settings
def promote(settings: Settings, run_id: str | None, version: int, reason: str) -> None:
    """Serve a version to requests for the bare model name; training continues unchanged."""
    from rollbus.trainer.operate.policy_on_log import promote_policy

    promote_policy(trainer_settings(settings, run_id, "policy-versions"), version, reason=reason)
    echo(f"version {version} is served")


@policy.command()
@run_option
@click.argument("version", type=int)
@reason_option
@with_settings
def rollback(settings: Settings, run_id: str | None, version: int, reason: str) -> None:
    """Serve an earlier version and train on from it. A running trainer ends and must be restarted."""
    from rollbus.trainer.operate.policy_on_log import roll_back_policy

    undone = roll_back_policy(trainer_settings(settings, run_id, "policy-versions"), version, reason=reason)
    echo(f"version {version} is served and trained on; rolled back: {', '.join(map(str, undone)) or 'none'}")


@policy.command()
@run_option
@click.argument("version", type=int)
@with_settings
def evaluate(settings: Settings, run_id: str | None, version: int) -> None:
    """Measure a version on the validation set of the settings; the record counts for `promote_if`."""
    from rollbus.trainer.operate.policy_on_log import evaluate_policy

    chosen = trainer_settings(settings, run_id, "evaluations", "policy-versions", "training-steps")
    with show_progress(f"version {version} plays") as progress:
        evaluation = evaluate_policy(chosen, version, progress=progress)
    echo(f"version {version}, {evaluation.episodes} episodes of {_summarize(evaluation)}")


@policy.command()
@run_option
@click.argument("before", type=int)
@click.argument("after", type=int)
@with_settings
def compare(settings: Settings, run_id: str | None, before: int, after: int) -> None:
    """Compare two versions by their evaluations: each metric's difference with its 95 % interval."""
    from rollbus.trainer.operate.policy_on_log import compare_policies

    chosen = trainer_settings(settings, run_id, "evaluations")
    table = Table("metric", f"{after} − {before}", "from", "to", "")
    for name, (low, value, high) in compare_policies(chosen, before, after).items():
        verdict = "more" if low > 0 else "less" if high < 0 else "within chance"
        table.add_row(name, f"{value:+.4f}", f"{low:+.4f}", f"{high:+.4f}", verdict)
    Console().print(table)


def _summarize(evaluation: "Evaluation") -> str:
    """Return its name, and each metric with its interval if it has one."""
    metrics, shown = evaluation.metrics, []
    for name in (name for name in metrics if not name.endswith(("_low", "_high"))):
        bounds = [metrics.get(f"{name}_{side}") for side in ("low", "high")]
        interval = "" if None in bounds else f" [{bounds[0]:.3f}, {bounds[1]:.3f}]"
        shown.append(f"{name} {metrics[name]:.3f}{interval}")
    return f"{evaluation.name}: {', '.join(shown)}"
