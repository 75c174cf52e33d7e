"""`rollbus run`: check and list the runs of one log, and send a command to one of them."""

import asyncio
import shutil
import uuid
from pathlib import Path
from typing import Any

import click
import yaml
from pydantic import ValidationError

from rollbus.cli.commands.producers.capture import capture
from rollbus.cli.groups import Verb, Verbs, describe_unknown
from rollbus.cli.required_topics import require_topics
from rollbus.cli.root import Settings, with_settings
from rollbus.cli.yaml_text import read_yaml
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.config import RunConfig
from rollbus.schemas.records.control import RunCommand, RunCommandName
from rollbus.settings_file import describe_mistake
from rollbus.terminal.output import Console, OutputTable, echo

OPERATOR_COMMANDS: dict[RunCommandName, str] = {
    "pause": "Cut no more batches. Groups are still made; the oldest beyond `max_waiting_groups` are dropped.",
    "resume": "Continue after `pause` or `stop`.",
    "stop": "Drop all that is not in a batch, and everything that comes until `resume`, with reason `run_stopped`.",
    "end_window": "Close the open curriculum window now.",
}
"""Each with its help."""


class VerbsOrProgram(Verbs):
    """The verbs of runs; behind any other word is a program for `rollbus capture`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Read the arguments as those of `capture`, if they begin with neither a verb nor `--help`."""
        context = click.Context(self, info_name=info_name, parent=parent)
        if not args or args[0] in (*self.list_commands(context), *context.help_option_names):
            return super().make_context(info_name, args, parent, **extra)
        if not args[0].startswith("-") and shutil.which(args[0]) is None:
            context.fail(f"{describe_unknown(args[0], self.list_commands(context))} It is not a program either.")
        return capture.make_context(info_name, args, parent, **extra)


@click.group(cls=VerbsOrProgram)
def run() -> None:
    """Check a new run; list, pause, resume and stop the runs of one log.

    Behind any other word is a program: `rollbus run python app.py` is `rollbus capture python app.py`.
    """


@run.command()
@click.argument("run_id")
@click.option(
    "--file",
    "path",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Read the run from this YAML file.",
)
@click.option("--model", help="Train the model of this name.")
@click.option("--task", "tasks", multiple=True, help="Use only scores of this task; repeatable.")
@click.option(
    "--strategy", type=click.Choice(["adaptive", "by_example", "by_prompt", "single"]), help="Group in this way."
)
@click.option("--group-size", type=click.IntRange(min=1), help="Put this many trajectories into a group.")
@click.option(
    "--curriculum",
    type=click.Choice(["off", "harness", "pools", "advantage_range", "surprise"]),
    help="Rank groups in windows of this kind.",
)
@click.option("--groups-per-step", type=click.IntRange(min=1), help="Use this many groups in a training step.")
@with_settings
def create(
    settings: Settings,
    run_id: str,
    path: Path | None,
    model: str | None,
    tasks: tuple[str, ...],
    strategy: str | None,
    group_size: int | None,
    curriculum: str | None,
    groups_per_step: int | None,
) -> None:
    """Check a new run and print what to add under `runs:` of the settings file; nothing is changed.

    Options win over the file. Every process reads its runs from the settings file. So a run begins once the workers
    are restarted with it, at the oldest scores that are kept.
    """
    if run_id in [run.run_id for run in settings.runs]:
        raise ConfigurationError(f"the settings have a run {run_id!r} already; choose another name, or change it there")
    plain = _read_run(path) if path else {}
    plain["run_id"] = run_id
    for section, field, value in (
        (None, "model", model),
        ("filter", "tasks", list(tasks) or None),
        ("grouping", "strategy", strategy),
        ("grouping", "group_size", group_size),
        ("curriculum", "mode", curriculum),
        ("batching", "groups_per_step", groups_per_step),
    ):
        if value is not None:
            _set_field(plain, section, field, value)
    if group_size == 1:
        plain["grouping"].setdefault("min_group_size", 1)
    try:
        config = RunConfig.model_validate(plain)
    except ValidationError as error:
        mistakes = [describe_mistake(detail, RunConfig) for detail in error.errors()]
        raise ConfigurationError(f"run {run_id!r}: {'; '.join(mistakes)}") from error
    document = {"run_id": run_id, "model": config.model} | config.model_dump(mode="json", exclude_defaults=True)
    echo(yaml.safe_dump([document], sort_keys=False), nl=False)
    echo("# add this under `runs:`, run `rollbus topics create`, and restart the workers", err=True)


def _set_field(plain: dict[str, Any], section: str | None, field: str, value: Any) -> None:
    if section is None:
        plain[field] = value
        return
    if plain.get(section) is None:  # not given, or left empty
        plain[section] = {}
    if not isinstance(plain[section], dict):
        raise ConfigurationError(f"`{section}:` of a run holds fields such as `{field}:`, but it is {plain[section]!r}")
    plain[section][field] = value


def _read_run(path: Path) -> dict[str, Any]:
    plain = read_yaml(path)
    if not isinstance(plain, dict):
        raise ConfigurationError(f"{path} holds no run: write fields such as `grouping:`, as under `runs:`")
    return plain


@run.command("list")
@with_settings
def list_(settings: Settings) -> None:
    """List the runs of the settings and those of the log: state, groups, batches, newest policy version."""
    from rollbus.streams.operate.operator import list_runs
    from rollbus.streams.operate.run_status import RunStatus

    require_topics(settings, "run-log")
    statuses = asyncio.run(list_runs(settings.stream_settings()))
    configured = {run.run_id: run.model for run in settings.runs}
    table = OutputTable("run", "model", "state", "groups", "batches", "answered", "newest version")
    for run_id in dict.fromkeys([*configured, *sorted(statuses)]):
        status = statuses.get(run_id) or RunStatus(run_id, state="nothing yet")
        state = status.state if run_id in configured else f"{status.state}, not in the settings"
        counts = [str(count) for count in (status.groups, status.batches, status.answered)]
        newest = "–" if status.newest_version is None else str(status.newest_version)
        table.add_row(run_id, configured.get(run_id, "–"), state, *counts, newest)
    Console().print(table)


def _make_command(name: RunCommandName, help_text: str) -> click.Command:
    """Return the verb that writes an operator's command into the log of a run."""

    @click.command(name.replace("_", "-"), help=help_text, cls=Verb)
    @click.argument("run_id")
    @click.option("--comment", help="Say why; it is kept in the log with the command.")
    @with_settings
    def send(settings: Settings, run_id: str, comment: str | None) -> None:
        from rollbus.streams.operate.operator import send_command

        settings.run(run_id)  # only a run of the settings has a stage that reads commands
        require_topics(settings, "run-log")
        record = RunCommand(run_id=run_id, command=name, command_id=str(uuid.uuid4()), comment=comment)
        asyncio.run(send_command(settings.stream_settings(), record))
        echo(f"{name.replace('_', '-')} is in the log of run {run_id}")

    return send


for _name, _help in OPERATOR_COMMANDS.items():
    run.add_command(_make_command(_name, _help))
