"""Missing parts → running processes of this machine, which `rollbus down` ends; their logs are in the data folder."""

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rollbus.consumers.clickhouse.questions.saved_questions import has_tables
from rollbus.health.own_machine import is_gone
from rollbus.health.reading import read_health
from rollbus.hosted_stages import create_topics
from rollbus.local import stack
from rollbus.local.kafka.jars import find_jars
from rollbus.local.process.processes import end
from rollbus.local.process.service import Service
from rollbus.local.process.state import read, remove
from rollbus.schemas.errors import UnavailableError
from rollbus.settings import Settings
from rollbus.start.parts import SINK, TOPICS, TRAINER, WORKER, Part, is_beating
from rollbus.start.served_model import served_base_model
from rollbus.terminal.progress import show_progress


def start_parts(settings: Settings, file: Path | None, missing: Sequence[Part]) -> None:
    """Start the missing parts in their order, each once what it needs answers; shows how far that is."""
    local, names = settings.stack_settings(), [part.name for part in missing]
    services = stack.stack_services(local, art_command=["art-server"])
    stack.require_startable(local, [service for service in services if service.name in names])
    if "kafka" in names:
        with show_progress("looking for Kafka's jars") as progress:
            find_jars(report=progress.begin)
    _up(settings, [service for service in services[:2] if service.name in names])
    settings = settings.with_credentials(os.environ)  # Kafka's start has made those that were missing
    if TOPICS in names:
        with show_progress("creating the topics"):
            asyncio.run(create_topics(settings))
    rows = list(_process_rows(settings, file, missing))
    _up(settings, [row for row in rows if row.name in (WORKER, SINK)])
    if "art-server" in names:
        model = served_base_model(settings)
        _up(settings, [stack.art_service(local, _command(file, "art-server", "run", "--base-model", str(model)))])
    _up(settings, [row for row in rows if row.name.startswith(TRAINER)])


def restart_process(settings: Settings, file: Path | None, part: Part) -> bool:
    """Start a process again if it was started here, so that it reads the settings again; False if it was not."""
    run_dir = settings.stack_settings().run_dir
    (row,) = _process_rows(settings, file, [part])
    service = read(run_dir, row.name)
    if service is None:
        return False
    with show_progress(f"ending {row.name}"):
        end(service.identity)
    remove(run_dir, row.name)
    _up(settings, [row])
    return True


def _up(settings: Settings, services: Sequence[Service]) -> None:
    if services:
        with show_progress(f"starting {', '.join(service.name for service in services)}"):
            stack.up(settings.stack_settings(), services)


def _process_rows(settings: Settings, file: Path | None, parts: Sequence[Part]) -> Iterator[Service]:
    """Yield a row for each of our processes: the sink is ready once it has made the tables, others once they beat."""
    for part in parts:
        if part.name in (WORKER, SINK, TRAINER):
            options = ["--run", part.run] if part.run else []
            yield Service(
                name=f"{part.name}-{part.run}" if part.run else part.name,
                command=partial(_command, file, part.name, "run", *options),
                is_healthy=partial(has_tables, settings.clickhouse)
                if part.name == SINK
                else partial(_beats, settings, part),
            )


def _beats(settings: Settings, part: Part) -> bool:
    """Whether a process of a part writes heartbeats; the last one of a process that was killed is none."""
    try:
        picture = asyncio.run(read_health(settings.kafka, settings.namespace, settings.health.alarms))
    except UnavailableError:
        return False
    return is_beating(settings, part, [process for process in picture.processes if not is_gone(process)])


def _command(file: Path | None, *words: str) -> list[str]:
    return [sys.executable, "-m", "rollbus", *(["--config", str(file)] if file else []), *words]
