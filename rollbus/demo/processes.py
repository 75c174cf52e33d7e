"""The processes of the demo in addition to the local stack, each as one row: name, command, environment."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rollbus.local.process.service import Service
from rollbus.local.stack import stack_services
from rollbus.runtime.credentials import FOLDER_VARIABLE, TOKEN_VARIABLE
from rollbus.stack_settings import StackSettings

STAGES = ("worker", "sink", "trainer")


def stack_rows(stack: StackSettings, settings_file: Path) -> tuple[Service, ...]:
    """Return Kafka, ClickHouse and art-server, which takes all cores where its model is worth it."""
    kafka, clickhouse, art = stack_services(stack, art_command=_rollbus(settings_file, "art-server"))
    one_thread = _environment()
    all_cores = {name: value for name, value in one_thread.items() if name != "OMP_NUM_THREADS"}
    return replace(kafka, env=one_thread), replace(clickhouse, env=one_thread), replace(art, env=all_cores)


def stage_rows(settings_file: Path, run_id: str, *, has_tables: Callable[[], bool]) -> tuple[Service, ...]:
    """Return worker, sink and the run's trainer; the sink is ready once it has made the tables."""
    options = {"trainer": ("--run", run_id)}
    rows = {name: _row(name, [*_rollbus(settings_file, name), *options.get(name, ())]) for name in STAGES}
    return tuple({**rows, "sink": replace(rows["sink"], is_healthy=has_tables)}.values())


def traffic_row(name: str, command: Sequence[str], token: str, env: Mapping[str, str] | None = None) -> Service:
    """Return a process of the traffic; every user sees a command line, so the token is in the environment."""
    return replace(_row(name, command), env={**_environment(), TOKEN_VARIABLE: token, **(env or {})})


def _row(name: str, command: Sequence[str]) -> Service:
    """Return a process without an address; it is healthy while it runs."""
    return Service(name=name, command=lambda: command, is_healthy=lambda: True, env=_environment())


def _rollbus(settings_file: Path, noun: str) -> list[str]:
    return [sys.executable, "-m", "rollbus", "--config", str(settings_file), noun, "run"]


def _environment() -> Mapping[str, str]:
    """Return one thread for each: several processes share a few cores, and spinning threads take them from others."""
    ours = {
        name: value for name, value in os.environ.items() if not name.startswith("ROLLBUS_") or name == FOLDER_VARIABLE
    }
    return {**ours, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
