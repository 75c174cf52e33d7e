"""Runs as objects: each has a folder with its settings, logs, lock and `run.json`, which says how far it is.

`run.json` is written once the log is open, so a start that fails before leaves nothing to resume, and again at the
end. A run that is `running` without a holder of its lock was killed. Nothing here needs the toolkit, which takes
seconds to import.
"""

import json
import shlex
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import yaml

from rollbus.local.process.processes import is_running
from rollbus.local.process.state import hold_file, read_all
from rollbus.nemo.runs.outputs import Outputs
from rollbus.runtime.files import BY_UMASK, write_whole
from rollbus.schemas.errors import ConfigurationError
from rollbus.stack_settings import StackSettings

DATA_DIR = Path(".rollbus/finetune")
"""The folder of all runs, where none is named."""
STATE_FILE, LOCK_FILE, SETTINGS_FILE = "run.json", ".lock", "settings.yaml"
STACK_FOLDER = "data"
"""In a run's folder: the services that are its own."""

RunState = Literal["running", "completed", "failed", "interrupted", "killed"]
"""`interrupted` by SIGTERM, SIGHUP or Ctrl-C; `killed` is seen by the reader alone."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """What `run.json` holds."""

    run_id: str
    config_file: str
    options: dict[str, Any]
    """Of the command line, as `FinetuneRunConfig` has them."""
    output_dir: str
    model: str
    settings_file: str | None = None
    state: RunState = "running"
    began_at: str = ""
    ended_at: str | None = None
    policy_version: int = 0
    checkpoint: str = ""
    """Folder of the newest weights, as the backend names it."""
    folder: Path = field(default=Path(), compare=False)

    def rows(self) -> list[dict[str, Any]]:
        """Return the lines of the run's epochs."""
        outputs = Path(self.output_dir)
        rows = Outputs(outputs).training_rows() if outputs.is_dir() else []
        return [row for row in rows if row.get("run_id") == self.run_id]


def write_run(record: RunRecord) -> None:
    """Write a run's record whole; a crash leaves the old one or the new one."""
    plain = {name: value for name, value in asdict(record).items() if name != "folder"}
    write_whole(record.folder / STATE_FILE, json.dumps(plain, indent=2, default=str) + "\n", BY_UMASK)


def read_run(folder: Path) -> RunRecord:
    """Return a run's record; raises ConfigurationError for one that cannot be read."""
    path = folder / STATE_FILE
    try:
        record = RunRecord(**json.loads(path.read_text(encoding="utf-8")), folder=folder)
    except FileNotFoundError as error:
        raise ConfigurationError(f"no run has the folder {folder}; see `rollbus finetune list`") from error
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"{path} does not describe a run ({error}); restore it, or delete {folder}") from error
    return replace(record, state="killed") if record.state == "running" and not is_held(folder) else record


def read_settings_of(folder: Path) -> dict[str, Any]:
    """Return the settings that an earlier start wrote for a run; empty where none did."""
    path = folder / SETTINGS_FILE
    settings: dict[str, Any] = (yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None) or {}
    return settings


def list_runs(data_dir: Path) -> list[RunRecord]:
    """Return the runs of a folder, the newest last."""
    records = [read_run(path.parent) for path in data_dir.glob(f"*/{STATE_FILE}")]
    return sorted(records, key=_began_s)


def newest_run(data_dir: Path, config_file: Path) -> RunRecord:
    """Return the run of a configuration that began last: the one to resume."""
    runs = [run for run in list_runs(data_dir) if run.config_file == str(config_file.resolve())]
    if not runs:
        raise ConfigurationError(
            f"nothing to resume: {data_dir} has no run of {config_file}; start without --resume, or continue one of "
            "another configuration by `rollbus finetune resume RUN`"
        )
    return runs[-1]


def _began_s(record: RunRecord) -> float:
    """Return when a run began; 0 where its record does not say."""
    try:
        return datetime.fromisoformat(record.began_at).timestamp()  # of an older record without a time zone, local time
    except (ValueError, TypeError):
        return 0.0


def what_next(record: RunRecord) -> str:
    """Say where a run's results are, and which commands go on from there."""
    folder = record.folder.parent
    name = record.run_id if folder == DATA_DIR else f"{record.run_id} --data-dir {shlex.quote(str(folder))}"
    epochs, plot = record.rows(), Path(record.output_dir) / "reward_plot.png"  # which a trainer of one's own lacks
    rows = {
        "run": f"{record.run_id}, {record.state}" + (f", {len(epochs)} epochs" if epochs else ""),
        "weights": f"{record.model}@{record.policy_version} {record.checkpoint}".strip(),
        **({"curves": plot} if plot.exists() else {}),
        "log, tables": f"rollbus --config {_quote_settings(record)} up, then `ui` or `sql`",
        "measure": f"rollbus finetune evaluate {name} --dataset FILE",
        "serve": f"rollbus finetune serve {name}",
    }
    if record.state != "completed":
        rows["continue"] = f"rollbus finetune resume {name}"
    return "\n".join(f"{what:<11} {text}" for what, text in rows.items())


def _quote_settings(record: RunRecord) -> str:
    """Return a run's settings file as a shell takes it."""
    return shlex.quote(str(record.folder / SETTINGS_FILE))


def delete_run(record: RunRecord) -> None:
    """Delete a run's folder, with its local log, tables and weights; what it wrote to `output_dir` stays.

    Raises ConfigurationError while its services run, such as after `rollbus up`: nothing could end them afterwards.
    """
    with hold_run(record.folder):
        services = read_all(StackSettings(data_dir=record.folder / STACK_FOLDER).run_dir)
        if running := ", ".join(service.name for service in services if is_running(service.identity)):
            raise ConfigurationError(
                f"of run {record.run_id!r} still run {running}; end them first: "
                f"`rollbus --config {_quote_settings(record)} down`"
            )
        shutil.rmtree(record.folder)


def hold_run(folder: Path) -> AbstractContextManager[None]:
    """Keep a run to one process; raises ConfigurationError where another has it. A kill lets it go."""
    return _hold(folder, f"run {folder.name!r} is running; wait for its end, or stop it")


def hold_output(folder: Path) -> AbstractContextManager[None]:
    """Keep a run's output folder to one process; raises ConfigurationError where another has it."""
    return _hold(folder, f"another run writes to {folder}; wait for its end, or set another finetuning.output_dir")


@contextmanager
def _hold(folder: Path, refusal: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with hold_file(folder / LOCK_FILE, lambda _: refusal):
        yield


def is_held(folder: Path) -> bool:
    """Whether a process has the run."""
    try:
        with hold_run(folder):
            return False
    except ConfigurationError:
        return True


def now() -> str:
    """Return the time, as a record has it: with its distance from UTC, as a run may go on in another time zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")
