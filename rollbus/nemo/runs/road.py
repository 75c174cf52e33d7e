"""Which road a run takes: that of a settings file which names it, or a namespace of its own.

A file that has the run under `runs:` hosts it: its worker, sink and trainer serve the run as any other, and the records
are in its namespace. What the configuration asks must then be what the file says, and each difference is a mistake.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rollbus.nemo.runs.folder import STATE_FILE, read_settings_of
from rollbus.nemo.runs.plan import Plan
from rollbus.nemo.runs.settings import settings_of
from rollbus.runtime.health.alarms.processes import ProcessHealth
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.namespaces import DEFAULT_NAMESPACE
from rollbus.schemas.records.config import EVERY_NAME, RunConfig
from rollbus.settings import Settings
from rollbus.settings_file import format_place, load_settings
from rollbus.stack_settings import HOST
from rollbus.start.parts import TRAINER, WORKER, find_processes

NOT_COMPARED = (
    "namespace",
    "worker",
    "art_server",
    "runs",
    "scoring",
    "assembly.inactivity_ms",
    "trainer.alarm",
    "trainer.backend.token",
)
"""What a run alone in its namespace sets for itself, and what is compared apart."""


def hosts_run(settings: Settings, run_id: str) -> bool:
    """Say whether a settings file has the run."""
    return any(run.run_id == run_id for run in settings.runs)


def require_same(plan: Plan, settings: Settings, run_id: str, path: Path) -> None:
    """Raise ConfigurationError, with each difference, where a file does not say of its run what the configuration asks.

    The namespace's assembly and scoring, the run's own section, and what its trainer does are compared.
    """
    needed = settings_of(plan, run_id, settings.namespace)
    present = settings.model_dump(mode="json")
    present["trainer"]["backend"] = settings.trainer_settings(run_id).backend.model_dump(mode="json")
    places = [
        *_differences(needed, present, ()),
        *_differences(
            RunConfig.model_validate(needed["runs"][0]).model_dump(mode="json"), _run(present, run_id), ("runs",)
        ),
        *_unread_reward(settings, plan.reward),
    ]
    if places:
        lines = [
            f"  {format_place(place)}: it says {there!r}, and the run needs {value!r}" for place, there, value in places
        ]
        raise ConfigurationError(
            "\n".join(
                [
                    f"{path} has run {run_id!r}, and asks something else of it than the configuration:",
                    *lines,
                    "correct either, and start the worker again; or name another run under `rollbus: run_id`, which "
                    "gets a namespace of its own",
                ]
            )
        )


def require_where_it_began(folder: Path, namespace: str) -> None:
    """Raise ConfigurationError where a run would go on in another namespace than it began in: it is not there."""
    began_in = read_settings_of(folder).get("namespace", DEFAULT_NAMESPACE)
    if (folder / STATE_FILE).exists() and began_in != namespace:
        raise ConfigurationError(
            f"run {folder.name!r} began in namespace {began_in!r}, and would go on in {namespace!r}; let `runs:` of "
            "the settings file be as it was, or begin another run"
        )


def describe_road(plan: Plan) -> str:
    """Say where a run's stages are, and what a settings file lacks to host it."""
    path, run_id = plan.bus.settings_file, plan.bus.run_id
    if path is None:
        return f"services those of a stack of its own in {plan.bus.data_dir}"
    settings = load_settings(Settings, path, os.environ)
    if run_id is not None and hosts_run(settings, run_id):
        require_same(plan, settings, run_id, path)
        return f"services those of {path}, which hosts run {run_id!r} in namespace {settings.namespace!r}"
    road = f"services those of {path}, with a namespace, worker, sink and trainer of the run's own. To use that file's,"
    if run_id is None:
        return f"{road} name the run under `rollbus: run_id`"
    section = yaml.safe_dump(settings_of(plan, run_id, "")["runs"], sort_keys=False)
    return f"{road} add under its `runs:`, and start its worker again:\n{section.rstrip()}"


def missing_stages(settings: Settings, run_id: str, processes: Sequence[ProcessHealth]) -> frozenset[str]:
    """Return which of worker, sink and trainer do not beat; raises ConfigurationError for workers without the run."""
    parts = [part for part in find_processes(settings, processes) if part.run in ("", run_id)]
    workers = [process for process in processes if process.is_alive and process.kind == WORKER]
    if workers and not any(place.startswith(f"grouping.{run_id}[") for process in workers for place in process.holds):
        names = ", ".join(process.name for process in workers)
        raise ConfigurationError(
            f"{names} runs in namespace {settings.namespace!r} without run {run_id!r}; start it again, so that it "
            "reads the settings file"
        )
    return frozenset(part.name for part in parts if not part.is_there)


def require_no_trainer(missing: frozenset[str], run_id: str) -> None:
    """Raise ConfigurationError where another process trains a run whose adapter is in this one."""
    if TRAINER not in missing:
        raise ConfigurationError(
            f"a trainer of run {run_id!r} beats, and the adapter of the configuration trains in this process; stop it"
        )


def _differences(
    needed: Any, present: Any, place: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], Any, Any]]:
    """Yield each place where another value is present than is needed."""
    if isinstance(needed, Mapping) and isinstance(present, Mapping):
        for key, value in needed.items():
            if format_place((*place, key)) not in NOT_COMPARED:
                yield from _differences(value, present.get(key), (*place, key))
    elif _plain(needed) != _plain(present):
        yield place, present, needed


def _unread_reward(settings: Settings, name: str) -> Iterator[tuple[tuple[str | int, ...], Any, Any]]:
    """Yield a difference where the score is not what the evaluator reports."""
    weighted_rewards = [reward for reward in settings.scoring.rewards if reward.weight]
    reports = [reward.options.get("report", reward.name) for reward in weighted_rewards if reward.type == "feedback"]
    if reports not in ([name], [EVERY_NAME]) or [reward.weight for reward in weighted_rewards] != [1.0]:
        yield ("scoring", "rewards"), [reward.name for reward in weighted_rewards], [name]


def _run(present: Mapping[str, Any], run_id: str) -> Any:
    return next(run for run in present["runs"] if run["run_id"] == run_id)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, and this machine by one of its names."""
    if isinstance(value, str):
        return value.replace("//localhost:", f"//{HOST}:")
    return list(value) if isinstance(value, tuple) else value
