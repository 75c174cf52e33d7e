"""`rollbus run`: several runs on one log, and an operator's word to each."""

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml
from pydantic import ValidationError

from rollbus.cli.groups import Verbs
from rollbus.cli.needs import needs_topic
from rollbus.cli.output import Console, Table
from rollbus.cli.root import with_settings
from rollbus.cli.yaml_text import read_yaml
from rollbus.schemas.config import RunConfig
from rollbus.schemas.control import RunCommand, RunCommandName
from rollbus.schemas.errors import ConfigurationError
from rollbus.settings_file import described

if TYPE_CHECKING:
    from rollbus.settings import Settings

comment_option = click.option("--comment", help="Why; it stands in the log beside the command.")


@click.group(cls=Verbs)
def run() -> None:
    """Several runs on one log, and an operator's word to each."""


@run.command()
@click.argument("run_id")
@click.option("--file", "path", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="Run as YAML.")
@click.option("--model", help="Name of the model that the run trains.")
@click.option("--task", "tasks", multiple=True, help="Only scores of this task; repeatable.")
@click.option("--strategy", type=click.Choice(["by_example", "by_prompt", "baseline"]), help="How to group.")
@click.option("--group-size", type=click.IntRange(min=1), help="Trajectories of a group.")
@click.option("--curriculum", type=click.Choice(["off", "harness", "pools", "advantage_range"]), help="Which windows.")
@click.option("--groups-per-step", type=click.IntRange(min=1), help="Groups of a training step.")
@with_settings
def create(settings: "Settings", run_id: str, path: Path | None, **options: Any) -> None:
    """Check a new run and print what to add under `runs:` of the settings file; nothing is changed.

    Options win over the file. Every process reads its runs from the settings file, so a run begins once the workers
    are started again with it: at the oldest scores that are kept.
    """
    if run_id in [one.run_id for one in settings.runs]:
        raise ConfigurationError(f"the settings have a run {run_id!r} already; choose another name, or change it there")
    plain = _from_file(path) if path else {}
    plain["run_id"] = run_id
    for section, field, value in (
        (None, "model", options["model"]),
        ("filter", "tasks", list(options["tasks"]) or None),
        ("grouping", "strategy", options["strategy"]),
        ("grouping", "group_size", options["group_size"]),
        ("curriculum", "mode", options["curriculum"]),
        ("batching", "groups_per_step", options["groups_per_step"]),
    ):
        if value is not None:
            _set(plain, section, field, value)
    if options["group_size"] == 1:
        plain["grouping"].setdefault("min_group_size", 1)
    try:
        found = RunConfig.model_validate(plain)
    except ValidationError as error:
        mistakes = [described(one, RunConfig) for one in error.errors()]
        raise ConfigurationError(f"run {run_id!r}: {'; '.join(mistakes)}") from error
    shown = {"run_id": run_id, "model": found.model} | found.model_dump(mode="json", exclude_defaults=True)
    click.echo(yaml.safe_dump([shown], sort_keys=False), nl=False)
    click.echo("# add this under `runs:`, then: rollbus topics create; and start the workers again", err=True)


def _set(plain: dict[str, Any], section: str | None, field: str, value: Any) -> None:
    if section is None:
        plain[field] = value
        return
    if plain.get(section) is None:  # not given, or left empty
        plain[section] = {}
    if not isinstance(plain[section], dict):
        raise ConfigurationError(f"{section}: of a run holds fields, such as `{field}:`; it is {plain[section]!r}")
    plain[section][field] = value


def _from_file(path: Path) -> dict[str, Any]:
    found = read_yaml(path)
    if not isinstance(found, dict):
        raise ConfigurationError(f"{path} holds no run: fields such as `grouping:` are expected, as under `runs:`")
    return found


@run.command("list")
@with_settings
def list_(settings: "Settings") -> None:
    """List the runs of the settings and those of the log: state, groups, batches, newest policy version."""
    from rollbus.streams.operator_kafka import list_runs
    from rollbus.streams.run_status import RunStatus

    needs_topic(settings, "run-log")
    found = list_runs(settings.stream_settings())
    configured = {one.run_id: one.model for one in settings.runs}
    table = Table("run", "model", "state", "groups", "batches", "answered", "newest version")
    for run_id in dict.fromkeys([*configured, *sorted(found)]):
        status = found.get(run_id) or RunStatus(run_id, state="nothing yet")
        state = status.state if run_id in configured else f"{status.state}, not in the settings"
        counts = [str(count) for count in (status.groups, status.batches, status.answered)]
        newest = "–" if status.newest_version is None else str(status.newest_version)
        table.add_row(run_id, configured.get(run_id, "–"), state, *counts, newest)
    Console().print(table)


def _say(settings: "Settings", run_id: str, command: RunCommandName, comment: str | None) -> None:
    from rollbus.streams.operator_kafka import send_command

    settings.run(run_id)  # only a run of the settings has a stage that hears
    needs_topic(settings, "run-log")
    record = RunCommand(run_id=run_id, command=command, command_id=str(uuid.uuid4()), comment=comment)
    send_command(settings.stream_settings(), record)
    click.echo(f"{command.replace('_', '-')} is in the log of run {run_id}")


@run.command()
@click.argument("run_id")
@comment_option
@with_settings
def pause(settings: "Settings", run_id: str, comment: str | None) -> None:
    """Cut no more batches; groups go on to be made, and the oldest beyond `max_waiting_groups` are dropped."""
    _say(settings, run_id, "pause", comment)


@run.command()
@click.argument("run_id")
@comment_option
@with_settings
def resume(settings: "Settings", run_id: str, comment: str | None) -> None:
    """Go on after `pause` or `stop`."""
    _say(settings, run_id, "resume", comment)


@run.command()
@click.argument("run_id")
@comment_option
@with_settings
def stop(settings: "Settings", run_id: str, comment: str | None) -> None:
    """Drop all that is not in a batch, and everything that comes until `resume`, with reason `run_stopped`."""
    _say(settings, run_id, "stop", comment)


@run.command("end-window")
@click.argument("run_id")
@comment_option
@with_settings
def end_window(settings: "Settings", run_id: str, comment: str | None) -> None:
    """Close the open curriculum window now."""
    _say(settings, run_id, "end_window", comment)
