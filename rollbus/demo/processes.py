"""The processes of the demo beside the local stack, each as one row: name, command, environment."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rollbus.demo.agents import AgentSettings
from rollbus.local.service import Service
from rollbus.local.settings import StackSettings
from rollbus.local.stack import stack_services

STAGES = ("worker", "sink", "trainer")


def stack_rows(stack: StackSettings, settings_file: Path) -> tuple[Service, ...]:
    """Kafka, ClickHouse and art-server."""
    services = stack_services(stack, art_command=_rollbus(settings_file, "art-server"))
    return tuple(replace(service, env=_environment()) for service in services)


def stage_rows(settings_file: Path, *, has_tables: Callable[[], bool]) -> tuple[Service, ...]:
    """Worker, sink and trainer; the sink is ready once it has made the tables."""
    rows = {name: _row(name, _rollbus(settings_file, name)) for name in STAGES}
    return tuple({**rows, "sink": replace(rows["sink"], is_healthy=has_tables)}.values())


def agents_row(settings: AgentSettings) -> Service:
    return _row("agents", [sys.executable, "-m", "rollbus.demo.agents", json.dumps(asdict(settings))])


def _row(name: str, command: Sequence[str]) -> Service:
    """A process without an address: that it runs is all there is to ask."""
    return Service(name=name, command=lambda: command, is_healthy=lambda: True, env=_environment())


def _rollbus(settings_file: Path, noun: str) -> list[str]:
    return [sys.executable, "-m", "rollbus", "--config", str(settings_file), noun, "run"]


def _environment() -> Mapping[str, str]:
    """One thread each: several processes share a few cores, and threads that wait by spinning take them from others."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ROLLBUS_")}
    return {**ours, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
