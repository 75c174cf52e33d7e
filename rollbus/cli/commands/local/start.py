"""`rollbus start`: lead a new project from nothing to its first step, one question at a time."""

import asyncio
import os
import shlex
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from rollbus.cli.groups import Verb
from rollbus.cli.number_option import Number
from rollbus.cli.root import LOCAL_FILE, Settings, SettingsFile
from rollbus.runtime.files import BY_UMASK, PRIVATE, draft_of
from rollbus.terminal.output import Console, OutputTable, echo
from rollbus.terminal.progress import show_progress

if TYPE_CHECKING:
    from rollbus.health.status import NamespaceStatus
    from rollbus.start.parts import Part
    from rollbus.start.proposals import Proposal

LOOK_EVERY_S = 3.0


@click.command(cls=Verb)
@click.option("--yes", is_flag=True, help="Start what is missing and write what is proposed, without asking.")
@click.option(
    "--wait",
    "wait_s",
    type=Number(min=0),
    help="Wait so many seconds for the first episodes; by default until they come, or not at all without a terminal.",
)
@click.pass_obj
def start(source: SettingsFile, yes: bool, wait_s: float | None) -> None:
    """Start what a new project needs, explain what becomes of its first episodes, and propose the settings that follow.

    It asks before it starts or writes anything. Without a terminal it prints the same, and neither starts nor writes
    without --yes; its status is then 1 if something is missing. `rollbus down` ends what it started.
    """
    from rollbus.schemas.errors import UnavailableError
    from rollbus.start.proposals import find_proposals

    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    settings, console = source.load(), Console()
    parts = _look_for_parts(settings)
    console.print(_table(parts))
    missing = _start_missing(settings, source, parts, may_ask=is_interactive, yes=yes)
    refusal = UnavailableError(f"missing: {missing}; `{_command_of(source)}` starts it") if missing else None
    if refusal is None or any(part.is_there for part in parts if part.name == "kafka"):
        settings = source.reload()
        _explain_recording(settings)
        status = _wait_for_episodes(settings, wait_s if wait_s is not None else float("inf") if is_interactive else 0.0)
        _show_funnels(console, status)
        proposals = find_proposals(status.funnels)
        if proposals:
            _offer(source, proposals, may_ask=is_interactive, yes=yes)
        echo("`rollbus status` shows this again, `rollbus top` keeps looking, and `rollbus down` ends what runs here")
    if refusal is not None and not is_interactive:  # a script goes on only with what it asked for
        raise refusal
    if refusal is not None:
        echo(str(refusal))


def _look_for_parts(settings: Settings) -> "tuple[Part, ...]":
    from rollbus.consumers.clickhouse.questions.saved_questions import ask
    from rollbus.health.reading import read_living_processes
    from rollbus.hosted_stages import all_stages
    from rollbus.local import stack
    from rollbus.schemas.errors import ServiceError, UnavailableError
    from rollbus.start.parts import find_parts
    from rollbus.streams.kafka.topics_on_broker import check_topics

    mistakes, processes = None, None
    with show_progress("looking at the services, the topics and the processes"):
        local = settings.stack_settings()
        services = stack.status(local, stack.stack_services(local, art_command=["art-server"]))
        answering = {service.name for service in services if service.state == "running"}
        is_stopped = any(row.state == "stopped" and row.address == settings.kafka.bootstrap_servers for row in services)
        with suppress(UnavailableError):  # then the part is shown as missing
            if not is_stopped:
                mistakes = asyncio.run(check_topics(settings.stream_settings(), all_stages(settings)))
                look = read_living_processes(settings.kafka, settings.namespace, settings.health.alarms)
                processes = asyncio.run(look)
                answering.add("kafka")
        with suppress(ServiceError):
            ask(settings.clickhouse, "SELECT 1")
            answering.add("clickhouse")
    return find_parts(settings, services, answering=answering, topic_mistakes=mistakes, processes=processes)


def _table(parts: "Iterable[Part]") -> OutputTable:
    from rich.text import Text

    table = OutputTable("part", "", "")
    for part in parts:
        state = Text("there", "green") if part.is_there else Text("missing", "yellow")
        table.add_row(f"{part.name} of {part.run}" if part.run else part.name, state, part.detail)
    return table


def _start_missing(
    settings: Settings, source: SettingsFile, parts: "Sequence[Part]", *, may_ask: bool, yes: bool
) -> str:
    """Start what is missing, if that is wanted; return the names of what stays missing."""
    from rollbus.health.checks import find_memory
    from rollbus.schemas.errors import UnavailableError
    from rollbus.start.processes import start_parts

    missing = [part for part in parts if not part.is_there]
    elsewhere = [part for part in missing if not part.can_start]
    if elsewhere:
        raise UnavailableError("; ".join(f"{part.name}: {part.detail}; {part.remedy}" for part in elsewhere))
    if not missing:
        return ""
    for finding in find_memory(settings):
        if finding.remedy and any(part.name == "art-server" for part in missing):
            echo(f"memory: {finding.what}; {finding.remedy}")
    names = ", ".join(f"{part.name} of {part.run}" if part.run else part.name for part in missing)
    if _agrees(f"Start {names} on this machine?", may_ask=may_ask, yes=yes):
        start_parts(settings, source.path, missing)
        return ""
    return names


def _explain_recording(settings: Settings) -> None:
    """Say what an agent needs to be recorded here, in the words of docs/first-agent.md."""
    local = settings.stack_settings()
    echo(
        f"an agent is recorded by `rollbus.init(bootstrap_servers={settings.kafka.bootstrap_servers!r})`, or unchanged "
        f"by `rollbus run python agent.py`; the model is {settings.art_server.model!r} at {local.model_url}. A program "
        "in this folder finds its key (`rollbus.read_token`), one elsewhere by "
        f"ROLLBUS_SECRETS={shlex.quote(str(local.secrets_dir.absolute()))}"
    )


def _wait_for_episodes(settings: Settings, wait_s: float) -> "NamespaceStatus":
    """Look until an episode has come to its first decision, the time is up, or Ctrl-C."""
    from rollbus.health.funnel.numbers import EPISODES, TRAINABLE
    from rollbus.health.status import StatusWatch

    deadline = time.monotonic() + wait_s

    async def look() -> "NamespaceStatus":
        watch = StatusWatch(settings)
        try:
            with show_progress("waiting for the first episodes") as progress:
                while True:
                    status = await watch.ask()
                    stages = [funnel.stages[TRAINABLE] for funnel in status.funnels if funnel.stages]
                    if any(stage.episodes or stage.lost for stage in stages) or time.monotonic() >= deadline:
                        return status
                    began = sum(funnel.stages[EPISODES].episodes for funnel in status.funnels if funnel.stages)
                    progress.what = f"waiting for the first episodes: {began} began, none is assembled yet"
                    await asyncio.sleep(LOOK_EVERY_S)
        finally:
            await watch.close()

    return asyncio.run(look())


def _show_funnels(console: Console, status: "NamespaceStatus") -> None:
    from rollbus.health.funnel.show import render_funnel

    for funnel in status.funnels:
        console.print(render_funnel(funnel))


def _offer(source: SettingsFile, proposals: "Sequence[Proposal]", *, may_ask: bool, yes: bool) -> None:
    """Show the changes, write them if that is wanted, and let the processes that read them start again."""
    from rollbus.settings import Settings as Model
    from rollbus.settings_file import load_settings
    from rollbus.start.proposals import write_proposals

    path = source.path or LOCAL_FILE
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    changed_text = write_proposals(text, proposals)
    for proposal in proposals:
        echo(f"because {proposal.why}:\n    {proposal.text}")
    if not _agrees(f"Write this into {path}?", may_ask=may_ask, yes=yes):
        echo(f"`{_command_of(source)}` writes this into {path}")
        return
    file = path.resolve()  # a link stays one
    with draft_of(file, PRIVATE if file.exists() else BY_UMASK) as draft:
        draft.write_text(changed_text, encoding="utf-8")
        load_settings(Model, draft, os.environ)
        if file.exists():
            shutil.copymode(file, draft)
    echo(f"wrote {path}")
    _restart_readers(source.reload(), path)


def _restart_readers(settings: Settings, path: Path) -> None:
    from rollbus.start.parts import WORKER, Part
    from rollbus.start.processes import restart_process

    if not restart_process(settings, path, Part(WORKER, False, "")):
        echo("start the worker again, so that it reads them")


def _command_of(source: SettingsFile) -> str:
    """Return the command that does this without questions, for the settings file that is read."""
    config = f"--config {shlex.quote(str(source.given_path))} " if source.given_path else ""
    return f"rollbus {config}start --yes"


def _agrees(question: str, *, may_ask: bool, yes: bool) -> bool:
    return yes or (may_ask and click.confirm(question, default=True))
