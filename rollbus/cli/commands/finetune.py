"""`rollbus finetune`: run a NeMo Agent Toolkit finetuning configuration on the bus."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rollbus.cli.output import Console, echo
from rollbus.cli.root import SettingsFile


@click.command()
@click.option(
    "--config_file",
    "--config-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    required=True,
    help="Run this configuration (YAML).",
)
@click.option(
    "--dataset",
    type=click.Path(exists=True, dir_okay=False),
    help="Use these examples in place of the configured ones.",
)
@click.option(
    "--result_json_path", "--result-json-path", default="$", help="Take the output from this place in an answer."
)
@click.option("--endpoint", help="Run the workflow at this URL instead of in this process.")
@click.option(
    "--endpoint_timeout",
    "--endpoint-timeout",
    type=click.IntRange(min=1),
    default=300,
    help="Wait at most this many seconds for an answer.",
)
@click.option(
    "--override",
    "-o",
    type=(str, str),
    multiple=True,
    metavar="KEY VALUE",
    help="Set a value by its dotted key, in any section; repeatable.",
)
@click.option(
    "--validation_dataset",
    "--validation-dataset",
    type=click.Path(exists=True, dir_okay=False),
    help="Validate on these held-out examples.",
)
@click.option(
    "--validation_interval",
    "--validation-interval",
    type=click.IntRange(min=1),
    default=5,
    help="Validate after so many epochs.",
)
@click.option(
    "--validation_config_file",
    "--validation-config-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Validate with this other configuration.",
)
@click.option("--resume", "resume", is_flag=True, help="Continue where the last run of this configuration was killed.")
@click.option("--check", is_flag=True, help="Read the configuration, show what it would do, and stop.")
@click.pass_obj
def finetune(source: SettingsFile, /, config_file: Path, resume: bool, check: bool, **options: Any) -> None:
    """Finetune a workflow as the NeMo Agent Toolkit's guide describes.

    It starts what does not run yet: Kafka, ClickHouse, the stages of the run, and an ART server if the configured
    address is on this machine. It ends with code 1 if a job failed.
    """
    from nat.data_models.finetuning import FinetuneRunConfig

    from rollbus.harness.configuration import load_plan
    from rollbus.harness.finetune import FinetuneOptions, describe, run_finetune

    plan = load_plan(config_file, options["override"])
    if source.path is not None:
        plan = replace(plan, bus=plan.bus.model_copy(update={"settings_file": source.path}))
    chosen = FinetuneOptions(plan, FinetuneRunConfig(config_file=config_file, **options), resume=resume)
    if check:
        echo(describe(chosen))
        return
    if not run_finetune(chosen, Console()):
        raise click.exceptions.Exit(1)
