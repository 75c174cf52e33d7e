"""What the owner does from the page → the command that does it, with a reason, as in a terminal.

So the page can nothing that the command line cannot: the same checks, the same records, the same words. A command is
shown before it runs, and its output afterwards. What it writes names who did it, in front of the reason.
"""

import asyncio
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rollbus.schemas.errors import ConfigurationError

LIMIT_S = 180.0
"""A command that takes longer is ended; `forget` reads the whole log."""


class ActionForm(BaseModel):
    """What the page sends."""

    model_config = ConfigDict(extra="forbid")

    action: str
    run: str = Field(min_length=1, max_length=200)
    version: int | None = Field(default=None, ge=0)
    episode: str | None = Field(default=None, min_length=1, max_length=200)
    label: str | None = Field(default=None, min_length=3, max_length=400, pattern="^[^=]+=.+")
    reason: str = Field(default="", max_length=500)
    is_preview: bool = False
    """Only say which command it is, and what it would do."""


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do."""

    title: str
    does: str
    """What will happen, for the confirmation."""
    needs: str
    """The field that it takes besides the run: version, episode, label or none."""
    words: Callable[[ActionForm], Sequence[str]]
    """The command's arguments, without the reason."""
    reason: str = "--reason"
    """The option that takes the reason."""
    preview: tuple[str, ...] = ()
    """Options with which the command only shows what it would do."""


ACTIONS: Mapping[str, Action] = {
    "pause": Action(
        "Pause the run",
        "The curriculum cuts no more batches. Groups are still made; the oldest beyond the limit are dropped.",
        "",
        lambda form: ["run", "pause", form.run],
        "--comment",
    ),
    "resume": Action(
        "Resume the run",
        "The run goes on after a pause or a stop.",
        "",
        lambda form: ["run", "resume", form.run],
        "--comment",
    ),
    "stop": Action(
        "Stop the run",
        "All that is not in a batch is dropped as run_stopped, and so is what comes, until the run is resumed.",
        "",
        lambda form: ["run", "stop", form.run],
        "--comment",
    ),
    "promote": Action(
        "Promote a version",
        "Requests for the bare model name get this version. Training goes on unchanged.",
        "version",
        lambda form: ["policy", "promote", f"--run={form.run}", str(form.version)],
    ),
    "rollback": Action(
        "Roll back to a version",
        "This version is served and trained on; later ones are rolled back. A running trainer ends and starts again.",
        "version",
        lambda form: ["policy", "rollback", f"--run={form.run}", str(form.version)],
    ),
    "reject": Action(
        "Stop a canary",
        "This version gets no traffic: its episodes go back to the version that serves.",
        "version",
        lambda form: ["policy", "reject", f"--run={form.run}", str(form.version)],
    ),
    "exclude": Action(
        "Exclude this episode",
        "No stage, trainer, replay or export uses it from now on. Its rows stay. Weights that used it still know it.",
        "episode",
        lambda form: ["forget", "--no-clickhouse", f"--episode={form.episode}"],
        preview=("--dry-run",),
    ),
    "forget": Action(
        "Forget a person",
        "Every episode with this label is excluded, and its rows are deleted. This cannot be undone.",
        "label",
        lambda form: ["forget", f"--label={form.label}"],
        preview=("--dry-run",),
    ),
}


def describe_actions() -> list[dict[str, str]]:
    """Return what the page offers."""
    return [
        {"name": name, "title": action.title, "does": action.does, "needs": action.needs}
        for name, action in ACTIONS.items()
    ]


def read_form(values: Mapping[str, Any]) -> ActionForm:
    """Return a form that can be done; raises ConfigurationError for another."""
    try:
        form = ActionForm.model_validate(values)
    except ValidationError as error:
        mistakes = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()]
        raise ConfigurationError("; ".join(mistakes)) from error
    action = ACTIONS.get(form.action)
    if action is None:
        raise ConfigurationError(f"no action {form.action!r}; there are {', '.join(ACTIONS)}")
    if action.needs and getattr(form, action.needs) is None:
        raise ConfigurationError(f"{form.action} takes a {action.needs}")
    if not form.is_preview and not form.reason.strip():
        raise ConfigurationError("give a reason; it is kept in the log")
    if form.run.startswith("-"):
        raise ConfigurationError(f"{form.run!r} names no run")
    return form


def words_of(form: ActionForm, judge: str) -> list[str]:
    """Return the arguments of the command that does it, and names who did."""
    action = ACTIONS[form.action]
    return [*action.words(form), f"{action.reason}={judge}: {form.reason.strip() or '…'}"]


class Commands:
    """Runs commands of `rollbus` with the settings of this process."""

    def __init__(self, options: Sequence[str] = ()) -> None:
        """`options` come in front of each command, such as `--config FILE`."""
        self._options = list(options)

    async def act(self, judge: str, values: Mapping[str, Any]) -> dict[str, str]:
        """Do it, or show what it would do; raises ConfigurationError with the command's words if it fails."""
        form = read_form(values)
        words = words_of(form, judge)
        answer = {"command": shlex.join(["rollbus", *words])}
        if not form.is_preview:
            return answer | {"output": await self._run(words)}
        preview = ACTIONS[form.action].preview
        return answer | {"output": await self._run([*words, *preview]) if preview else ""}

    async def _run(self, words: Sequence[str]) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "rollbus", *self._options, *words),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(LIMIT_S):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise ConfigurationError(f"the command did not end within {LIMIT_S:.0f} s; give it in a terminal") from None
        text = "\n".join(
            line for line in output.decode(errors="replace").splitlines() if not line.startswith("settings: ")
        )
        if process.returncode:
            raise ConfigurationError(text.strip() or f"the command ended with {process.returncode}")
        return text.strip()
