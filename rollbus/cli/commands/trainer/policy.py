"""`rollbus policy`: list, serve, measure and roll back the versions of the weights."""

from typing import TYPE_CHECKING

import click

from rollbus.cli.commands.trainer.estimate import estimate
from rollbus.cli.commands.trainer.trainer import run_option, trainer_settings
from rollbus.cli.groups import Verbs
from rollbus.cli.root import Settings, with_settings
from rollbus.terminal.output import Console, OutputTable, echo, format_count, format_time, show_record, show_rows
from rollbus.terminal.progress import show_progress

if TYPE_CHECKING:
    from rollbus.schemas.records.delivery import DeliveryCommandName, PolicyDecision
    from rollbus.schemas.records.steps import Evaluation

reason_option = click.option("--reason", required=True, help="Say why; it is kept in the log with the change.")


@click.group(cls=Verbs)
def policy() -> None:
    """List, serve, measure and roll back the versions of the weights."""


policy.add_command(estimate)


@policy.command("list")
@run_option
@with_settings
def list_(settings: Settings, run_id: str | None) -> None:
    """List the versions of a run's model: parent, state, which is served and trained on, and their evaluations."""
    from rollbus.trainer.operate.policy_on_log import list_policy_versions

    trainer = trainer_settings(settings, run_id, "policy-versions")
    table = OutputTable("version", "parent", "state", "", "evaluations", "checkpoint")
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
    from rollbus.trainer.operate.delivery import policy_history
    from rollbus.trainer.operate.policy_on_log import promote_policy

    run_settings = trainer_settings(settings, run_id, "policy-versions", "policy-decisions")
    if settings.run(run_id).delivery is not None and policy_history(run_settings):
        _command(settings, run_id, "promote", version, reason)
        return
    promote_policy(run_settings, version, reason=reason)
    echo(f"version {version} is served")


@policy.command()
@run_option
@click.argument("version", type=int)
@reason_option
@with_settings
def canary(settings: Settings, run_id: str | None, version: int, reason: str) -> None:
    """Give a version the first share of the episodes, in the place of the present canary."""
    _command(settings, run_id, "canary", version, reason)


@policy.command()
@run_option
@click.argument("version", type=int)
@reason_option
@with_settings
def reject(settings: Settings, run_id: str | None, version: int, reason: str) -> None:
    """Give a version no traffic: its episodes go back to the version that serves."""
    _command(settings, run_id, "reject", version, reason)


@policy.command()
@run_option
@click.option("--off", is_flag=True, help="Let new versions become canaries again.")
@reason_option
@with_settings
def freeze(settings: Settings, run_id: str | None, off: bool, reason: str) -> None:
    """Serve nothing new: the canary ends, and no version becomes one. Training goes on."""
    _command(settings, run_id, "unfreeze" if off else "freeze", None, reason)


@policy.command()
@run_option
@click.argument("version", type=int, required=False)
@with_settings
def history(settings: Settings, run_id: str | None, version: int | None) -> None:
    """Show who served since when and why, with the reward's numbers that each decision was made on."""
    from rollbus.trainer.operate.delivery import policy_history

    run_settings = trainer_settings(settings, run_id, "policy-decisions")
    table = OutputTable(
        "", "decided (UTC)", "action", "version", "serving", "canary", "why", "canary − serving", "episodes"
    )
    for decision in policy_history(run_settings):
        if version not in (None, decision.version):
            continue
        versions = ["–" if number is None else str(number) for number in (decision.version, decision.serving)]
        share = "–" if decision.canary is None else f"{decision.canary} at {format_share(decision.share)}"
        why = f"{decision.reason}: {decision.detail}" if decision.detail else decision.reason
        table.add_row(str(decision.number), format_time(decision.decided_at_ms), decision.action, *versions, share, why,
                      *_describe_reward(decision))  # fmt: skip
    subject = f"model {run_settings.model!r}" if version is None else f"version {version} of {run_settings.model!r}"
    show_rows(table, f"nothing was decided on {subject}; see `delivery:` in docs/delivery.md")


def format_share(share: float) -> str:
    """Return a share as per cent: a canary may begin with less than one in a hundred."""
    return f"{share * 100:.4g}%"


def _describe_reward(decision: "PolicyDecision") -> tuple[str, str]:
    """Return the reward's effect with its interval, and the episodes of both arms."""
    numbers = decision.numbers
    if "reward.effect" not in numbers:
        return "–", "–"
    effect, low, high, canary, serving = (
        numbers[f"reward.{name}"] for name in ("effect", "low", "high", "canary_episodes", "serving_episodes")
    )
    return f"{effect:+.3f} [{low:+.3f}, {high:+.3f}]", f"{canary:.0f} / {serving:.0f}"


def _command(
    settings: Settings, run_id: str | None, command: "DeliveryCommandName", version: int | None, reason: str
) -> None:
    from rollbus.schemas.errors import ConfigurationError
    from rollbus.trainer.operate.delivery import command_delivery

    if (run := settings.run(run_id)).delivery is None:
        raise ConfigurationError(f"run {run.run_id!r} has no `delivery:` in the settings, so no version has a share")
    run_settings = trainer_settings(settings, run_id, "policy-decisions", "delivery-log")
    decision = command_delivery(run_settings, command, version, reason=reason)
    share = format_share(decision.share)
    canary = "" if decision.canary is None else f", version {decision.canary} has {share} of the episodes"
    echo(f"decision {decision.number}, {decision.action}: version {decision.serving} is served{canary}")


@policy.command()
@run_option
@click.argument("version", type=int)
@reason_option
@with_settings
def rollback(settings: Settings, run_id: str | None, version: int, reason: str) -> None:
    """Serve an earlier version and train on from it. A running trainer ends and must be restarted."""
    from rollbus.trainer.operate.policy_on_log import roll_back_policy

    undone = roll_back_policy(trainer_settings(settings, run_id, "policy-versions"), version, reason=reason)
    given_up = ", ".join(map(str, undone)) or "none"
    echo(
        f"version {version} is served and trained on; rolled back: {given_up}; start the trainer again: `rollbus start`"
    )


@policy.command()
@run_option
@click.argument("version", type=int)
@with_settings
def evaluate(settings: Settings, run_id: str | None, version: int) -> None:
    """Measure a version on the validation set of the settings; the record counts for `promote_if`."""
    from rollbus.trainer.operate.policy_on_log import evaluate_policy

    run_settings = trainer_settings(settings, run_id, "evaluations", "policy-versions", "training-steps")
    with show_progress(f"version {version} plays") as progress:
        evaluation = evaluate_policy(run_settings, version, progress=progress)
    echo(f"version {version}, {format_count(evaluation.episodes, 'episode')} of {_summarize(evaluation)}")


@policy.command()
@run_option
@click.argument("before", type=int)
@click.argument("after", type=int)
@with_settings
def compare(settings: Settings, run_id: str | None, before: int, after: int) -> None:
    """Compare two versions by their evaluations: each metric's difference with its 95 % interval."""
    from rollbus.trainer.operate.policy_on_log import compare_policies

    run_settings = trainer_settings(settings, run_id, "evaluations")
    table = OutputTable("metric", f"{after} − {before}", "from", "to", "")
    for name, (low, value, high) in compare_policies(run_settings, before, after).items():
        verdict = "more" if low > 0 else "less" if high < 0 else "within chance"
        table.add_row(name, f"{value:+.4f}", f"{low:+.4f}", f"{high:+.4f}", verdict)
    Console().print(table)


def _summarize(evaluation: "Evaluation") -> str:
    """Return its name, and each metric with its interval if it has one."""
    metrics, parts = evaluation.metrics, []
    for name in (name for name in metrics if not name.endswith(("_low", "_high"))):
        bounds = [metrics.get(f"{name}_{side}") for side in ("low", "high")]
        interval = "" if None in bounds else f" [{bounds[0]:.3f}, {bounds[1]:.3f}]"
        parts.append(f"{name} {metrics[name]:.3f}{interval}")
    return f"{evaluation.name}: {', '.join(parts)}"
