"""`rollbus finetune`: run a NeMo Agent Toolkit finetuning configuration on the bus, and look at the runs."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rollbus.cli.groups import Verbs
from rollbus.terminal.output import Console, OutputTable, echo, format_count, show_rows
from rollbus.terminal.progress import show_progress

if TYPE_CHECKING:
    from rollbus.nemo.checks import FinetuneOptions
    from rollbus.nemo.runs.folder import RunRecord

EXISTING = click.Path(exists=True, dir_okay=False)
OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("dataset", "Use these examples in place of the configured ones.", {"type": EXISTING}),
    ("result_json_path", "Take the output from this place in an answer.", {"default": "$"}),
    ("endpoint", "Run the workflow at this URL instead of in this process.", {}),
    ("endpoint_timeout", "Wait this many seconds for an answer.", {"type": click.IntRange(min=1), "default": 300}),
    ("validation_dataset", "Validate on these held-out examples.", {"type": EXISTING}),
    ("validation_interval", "Validate after so many epochs.", {"type": click.IntRange(min=1), "default": 5}),
    ("validation_config_file", "Validate with this other configuration.", {"type": EXISTING}),
)
"""The toolkit's, in its spelling; each is also known with hyphens."""


def toolkit_options(command: Any) -> Any:
    """Give a command the options that `nat finetune` has."""
    for name, text, settings in reversed(OPTIONS):
        command = click.option(*_spellings(name), help=text, **settings)(command)
    return command


def _spellings(name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")))


@click.group(cls=Verbs, invoke_without_command=True)
@click.option(*_spellings("config_file"), type=EXISTING, help="Run this configuration (YAML).")
@toolkit_options
@click.option(
    "--override",
    "-o",
    type=(str, str),
    multiple=True,
    metavar="KEY VALUE",
    help="Set a value by its dotted key, in any section; repeatable.",
)
@click.option("--resume", is_flag=True, help="Continue the run of this configuration that began last.")
@click.option("--check", is_flag=True, help="Read the configuration, show what it would do, and stop.")
@click.pass_context
def finetune(context: click.Context, /, config_file: str | None, resume: bool, check: bool, **options: Any) -> None:
    """Finetune a workflow as the NeMo Agent Toolkit's guide describes.

    It starts what does not run yet: Kafka, ClickHouse, the stages of the run, and an ART server if the configured
    address is on this machine. It ends with code 1 if a job failed.
    """
    # The toolkit warns of its own packages as it is imported, before a run shows its lines.
    logging.getLogger("nat").addHandler(logging.NullHandler())
    if context.invoked_subcommand is not None:
        return
    if config_file is None:
        raise click.UsageError("Missing option '--config_file', or a command: list, show, resume, …")
    with show_progress(f"reading {config_file}, and importing the toolkit and its components"):
        run_options = _options(config_file, options, context.obj.given_path, otherwise=context.obj.path)

        from rollbus.nemo.checks import describe
        from rollbus.nemo.runs.folder import newest_run

        description = describe(run_options) if check else ""
    if check:
        echo(description)
        return
    if resume:
        run_options = replace(run_options, resume=newest_run(run_options.plan.bus.data_dir, Path(config_file)))
    _run(run_options)


def _options(
    config_file: str, options: dict[str, Any], settings_file: Path | None, *, otherwise: Path | None = None
) -> "FinetuneOptions":
    """`settings_file` wins over the configuration's own, and `otherwise` is read where neither names one."""
    from rollbus.nemo.toolkit_version import require_toolkit

    require_toolkit()  # before an import that another version does not have

    from nat.data_models.finetuning import FinetuneRunConfig

    from rollbus.nemo.checks import FinetuneOptions
    from rollbus.nemo.configuration import load_plan

    plan = load_plan(Path(config_file), options["override"])
    if chosen_file := settings_file or plan.bus.settings_file or otherwise:
        plan = replace(plan, bus=plan.bus.model_copy(update={"settings_file": chosen_file}))
    return FinetuneOptions(plan, FinetuneRunConfig(config_file=Path(config_file), **options))


def _options_of(record: "RunRecord") -> "FinetuneOptions":
    """Return what a run was started with; raises ConfigurationError for a run of `nat finetune`, which kept nothing."""
    from rollbus.schemas.errors import ConfigurationError

    if not record.config_file:
        raise ConfigurationError(f"run {record.run_id!r} is of `nat finetune`; only those of `rollbus finetune` go on")
    options = {**record.options, "override": tuple(map(tuple, record.options.get("override", ())))}
    finetune_options = _options(
        record.config_file, options, Path(record.settings_file) if record.settings_file else None
    )
    return replace(finetune_options, resume=record)


def _run(run_options: "FinetuneOptions") -> None:
    from rollbus.nemo.finetune import run_finetune

    if not run_finetune(run_options, Console()):
        raise click.exceptions.Exit(1)


data_dir_option = click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".rollbus/finetune"),
    show_default=True,
    help="Look for runs in this folder, as `rollbus: data_dir` names it.",
)


@finetune.command("list")
@data_dir_option
def list_(data_dir: Path) -> None:
    """List the runs: state, epochs, rewards and weights."""
    from rollbus.nemo.runs.folder import list_runs

    table = OutputTable("run", "state", "began", "epochs", "reward", "weights")
    for record in list_runs(data_dir):
        rows = record.rows()
        rewards = [f"{row['avg_reward']:.4f}" for row in (rows[:1] + rows[-1:]) if row.get("avg_reward") is not None]
        weights = f"{record.model}@{record.policy_version}"
        table.add_row(record.run_id, record.state, record.began_at, str(len(rows)), " → ".join(rewards), weights)
    show_rows(table, f"{data_dir} has no run; `rollbus finetune --config_file FILE` makes one")


@finetune.command()
@click.argument("run")
@data_dir_option
def show(run: str, data_dir: Path) -> None:
    """Show a run: where its results are, and which commands go on from there."""
    from rollbus.nemo.runs.folder import read_run, what_next

    echo(what_next(read_run(data_dir / run)))


@finetune.command()
@click.argument("run")
@data_dir_option
def resume(run: str, data_dir: Path) -> None:
    """Continue a run with the options of its start; what is finished is not made again."""
    from rollbus.nemo.runs.folder import read_run

    _run(_options_of(read_run(data_dir / run)))


@finetune.command()
@click.argument("run")
@click.option("--dataset", type=EXISTING, help="Measure on these examples; by default on those of the validation.")
@data_dir_option
def evaluate(run: str, dataset: str | None, data_dir: Path) -> None:
    """Measure a run's newest weights by its own evaluator."""
    from rollbus.nemo.runs.folder import read_run

    record = read_run(data_dir / run)
    run_options = _options_of(record)

    from rollbus.nemo.finetune import evaluate_run

    metrics = evaluate_run(run_options, dataset, Console(stderr=True))
    weights = f"{record.model}@{record.policy_version}"
    echo(f"{weights}: reward {metrics['avg_reward']:.4f} on {format_count(metrics['num_examples'], 'example')}")


@finetune.command()
@click.argument("run")
@data_dir_option
def serve(run: str, data_dir: Path) -> None:
    """Serve a run's newest weights until Ctrl-C."""
    from rollbus.nemo.runs.folder import read_run

    run_options = _options_of(read_run(data_dir / run))

    from rollbus.nemo.finetune import serve_run

    serve_run(run_options, Console())


@finetune.command()
@click.argument("run")
@click.option("--yes", is_flag=True, help="Do not ask.")
@data_dir_option
def delete(run: str, yes: bool, data_dir: Path) -> None:
    """Delete a run's folder: its settings, logs, and the local log, tables and weights."""
    from rollbus.nemo.runs.folder import delete_run, read_run

    record = read_run(data_dir / run)
    if not yes:
        click.confirm(f"Delete {record.folder} with {format_count(len(record.rows()), 'epoch')}?", abort=True)
    delete_run(record)
    echo(f"deleted {record.folder}; the curves in {record.output_dir} stay")
