"""The root command: options that every command shares, the table of nouns, and how errors end the process."""

import importlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce, wraps
from keyword import iskeyword
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from rollbus import __version__
from rollbus.cli.groups import Verbs
from rollbus.runtime.machine import install_command
from rollbus.schemas.errors import RollbusError
from rollbus.schemas.unseen_characters import escape_unseen
from rollbus.terminal.log_lines import JsonFormatter, is_json_wanted
from rollbus.terminal.silence import SILENCE

if TYPE_CHECKING:
    from rollbus.settings import Settings as Settings
else:
    Settings = Any  # its import takes longer than a help text


class Entry(NamedTuple):
    """One row of the command table."""

    help: str
    extra: str
    """The extra that brings what the command needs."""
    module: str
    """Where the command is, below `commands`."""


TRACKERS = "wandb,mlflow,langfuse,openpipe"
COMMANDS: dict[str, Entry] = {
    "start": Entry("Lead a new project to its first step: start, look, explain, set.", "local", "local.start"),
    "up": Entry("Start Kafka, ClickHouse and the ART server on this machine.", "local", "local.stack"),
    "status": Entry("Show what runs and whether all is well.", "local", "local.health"),
    "top": Entry("Show the same live: lag, rates, steps, reward, problems.", "local", "local.health"),
    "down": Entry("Stop what `up` started; data stays.", "local", "local.stack"),
    "alarms": Entry("Watch the log, and report what goes wrong to a webhook.", "streams", "local.alarms"),
    "token": Entry("Give producers and reporters tokens of their own, and end them.", "cli", "local.token"),
    "doctor": Entry("Check this machine, its settings and its broker.", "streams", "local.doctor"),
    "demo": Entry("Watch a language model learn a job from its own traffic.", "local", "local.demo"),
    "finetune": Entry("Run a NeMo Agent Toolkit finetuning configuration on the bus.", "local", "trainer.finetune"),
    "topics": Entry("Create, check, list and draw the Kafka topics.", "streams", "streams.topics"),
    "worker": Entry("Run the stages that turn episode events into batches.", "streams", "streams.worker"),
    "run": Entry("List, pause, resume and stop runs, or record a program.", "streams", "streams.run"),
    "replay": Entry("Decide again with other rewards, groups or curriculum.", "streams", "streams.replay"),
    "resample": Entry("Run your agent again on openings that came only once.", "streams", "streams.resample"),
    "archive": Entry("Keep the log beyond Kafka's retention, and bring it back.", "archive", "streams.archive"),
    "forget": Entry("Exclude a person's episodes and delete their rows.", "streams", "streams.forget"),
    "trainer": Entry("Turn batches into GRPO updates, and look at the steps.", "trainer", "trainer.trainer"),
    "policy": Entry("List, serve, measure and roll back versions of the weights.", "trainer", "trainer.policy"),
    "model": Entry("Import a base model from this machine, or fetch one.", "local", "trainer.model"),
    "art-server": Entry("Run OpenPipe ART with its model endpoint.", "local", "trainer.art_server"),
    "capture": Entry("Start a program and record it, with no change of its code.", "cli", "producers.capture"),
    "proxy": Entry("Record programs that cannot be changed, with a proxy.", "proxy", "producers.proxy"),
    "import": Entry("Import traffic from Langfuse, LangSmith, OTLP or OpenAI files.", "cli", "producers.import_files"),
    "ingest": Entry("Take in OTLP of agents that are traced already.", "ingest", "producers.ingest"),
    "dead-letters": Entry("Show what could not be processed, and try it again.", "streams", "streams.dead_letters"),
    "sink": Entry("Write every topic into ClickHouse, and rebuild tables.", "clickhouse", "consumers.sink"),
    "sql": Entry("Ask ClickHouse saved questions or your own.", "clickhouse", "consumers.sql"),
    "ui": Entry("Show what was trained and why, in a browser.", "ui", "consumers.ui"),
    "export": Entry("Write data sets for other trainers: SFT, preference pairs.", "export", "consumers.export"),
    "log-to": Entry("Log steps to W&B and others, decisions to a webhook.", TRACKERS, "consumers.log_to"),
}

LOCAL_FILE = Path("rollbus.yaml")
"""Read where no other file is named, as people expect of a tool that is started in their project."""
SOCKS_PACKAGE = "socksio"
"""What httpx needs for a proxy whose address begins with socks5."""
DISABLE_PLUGINS = "PYDANTIC_DISABLE_PLUGINS"
"""Pydantic's variable, which it reads for each model."""
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


class Nouns(Verbs):
    """The root's group: it imports a command's module only when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the nouns in the order of the table: the order in which a newcomer needs them."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"rollbus.cli.commands.{entry.module}")
        name = cmd_name.replace("-", "_")
        command: click.Command = getattr(module, f"{name}_" if iskeyword(name) else name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Print the table without importing anything."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of rollbus, of a file or of a missing extra ends it with a message and status 1."""
        try:
            return super().invoke(ctx)
        except RollbusError as error:
            if ctx.params.get("debug"):
                raise
            raise CommandEnd(escape_unseen(str(error)), ctx) from error
        except OSError as error:
            if ctx.params.get("debug") or isinstance(error, ConnectionError):  # click handles a closed pipe
                raise
            where = f"{error.filename}: " if error.filename else ""
            raise CommandEnd(escape_unseen(f"{where}{error.strerror or error}"), ctx) from error
        except ModuleNotFoundError as error:
            entry = COMMANDS.get(ctx.invoked_subcommand or "")
            if entry is None or (error.name or "").startswith("rollbus"):
                raise
            remedy = install_command(f"'rollbus[{entry.extra}]'")
            raise CommandEnd(
                f"`rollbus {ctx.invoked_subcommand}` needs the package {error.name}, which {sys.executable} does not "
                f"have; run: {remedy}",
                ctx,
            ) from error
        except ImportError as error:
            if SOCKS_PACKAGE not in str(error):  # httpx says so where it makes a client
                raise
            remedy = install_command(SOCKS_PACKAGE)
            message = f"ALL_PROXY names a SOCKS proxy, which needs the package {SOCKS_PACKAGE}; run: {remedy}"
            raise CommandEnd(message, ctx) from error


class CommandEnd(click.ClickException):
    """The error that ended a command, for people; where log lines are JSON, it is printed as one."""

    def __init__(self, message: str, ctx: click.Context) -> None:
        """Take the root's context, which knows how log lines are written."""
        super().__init__(message)
        self._is_json = ctx.params.get("log_format") == "json"

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it on stderr."""
        if not self._is_json:
            super().show(file)
            return
        record = logging.LogRecord("rollbus", logging.ERROR, "", 0, self.message, None, None)
        click.echo(JsonFormatter().format(record), err=True)


@click.group(cls=Nouns, context_settings=CONTEXT)
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="ROLLBUS_CONFIG",
    help="Read the settings from this YAML file, else from ./rollbus.yaml if there is one; ROLLBUS_… variables win.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    envvar="ROLLBUS_LOG_FORMAT",
    help="Write the log lines of long-running processes as text, or as one JSON object each.",
)
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(__version__, prog_name="rollbus")
@click.pass_context
def rollbus(ctx: click.Context, config: Path | None, log_format: str, debug: bool) -> None:
    """Train an LLM agent from its own production traffic.

    Episodes go over Kafka to trajectories, groups, curriculum windows and GRPO updates on OpenPipe ART;
    every number lands in ClickHouse.
    """
    ctx.obj = SettingsFile(config)
    for name in ("urllib3", "clickhouse_connect", "aiokafka"):  # they also raise what they log
        library = logging.getLogger(name)
        ctx.call_on_close(partial(library.setLevel, library.level))
        library.setLevel(logging.CRITICAL)


@dataclass(slots=True)
class SettingsFile:
    """Where the settings are; they are read when a command first needs them."""

    given_path: Path | None
    """What `--config` or ROLLBUS_CONFIG says; None where neither is set."""
    _settings: Any = None
    _is_announced: bool = False

    @property
    def path(self) -> Path | None:
        """The file to read: the given one, else ./rollbus.yaml; None where there is neither."""
        return self.given_path or (LOCAL_FILE if LOCAL_FILE.is_file() else None)

    def load(self) -> Any:
        """Return the parsed settings, and say first which file they are from.

        Raises ConfigurationError with every mistake.
        """
        if self._settings is None:
            with _without_pydantic_plugins():
                from rollbus.settings import Settings
            from rollbus.settings_file import count_overrides, load_settings

            if not self._is_announced:
                _say(describe_source(self.path, count_overrides(Settings, os.environ)))
                self._is_announced = True
            settings = load_settings(Settings, self.path, os.environ)
            self._settings = settings.with_stack_addresses().with_credentials(os.environ)
        return self._settings

    def reload(self) -> Any:
        """Return the settings as the file and the credentials are now."""
        self._settings = None
        return self.load()


@contextmanager
def _without_pydantic_plugins() -> Iterator[None]:
    """Make models without looking for plugins: pydantic reads the metadata of every package that is installed.

    Models that are made afterwards, such as a user's, have their plugins.
    """
    earlier_value = os.environ.get(DISABLE_PLUGINS)
    os.environ[DISABLE_PLUGINS] = "__all__"
    try:
        yield
    finally:
        if earlier_value is None:
            del os.environ[DISABLE_PLUGINS]
        else:
            os.environ[DISABLE_PLUGINS] = earlier_value


def describe_source(path: Path | None, overrides: int) -> str:
    """Return the first line of a command that reads settings: their file, and how many variables win over it."""
    source = str(path) if path else f"the defaults, as there is no {LOCAL_FILE} in {Path.cwd()}"
    over = f", with {overrides} of the environment over it" if overrides else ""
    return f"settings: {source}{over}"


def _say(text: str) -> None:
    """Write a line for people to stderr; a JSON object among JSON lines."""
    if is_json_wanted():
        text = JsonFormatter().format(logging.LogRecord("rollbus", logging.INFO, "", 0, text, None, None))
    click.echo(escape_unseen(text), err=True)


def with_settings(command: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a command to receive the parsed settings as its first argument."""

    @click.pass_context
    @wraps(command)
    def run(context: click.Context, /, **options: Any) -> Any:
        SILENCE.command = context.command_path
        return command(context.obj.load(), **options)

    return run


def with_options(*options: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decorator that adds these options to a command, in this order in its help."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        return reduce(lambda decorated, option: option(decorated), reversed(options), command)

    return decorate
