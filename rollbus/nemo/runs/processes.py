"""The processes of a finetuning run: what is there is used, what is missing is started, and ends with the run.

A settings file names the services to use; without one Kafka and ClickHouse are started here, in the run's folder. The
ART server is the one at the configured address; where nothing answers there, and the address is this machine's, it is
started too. A settings file that has the run hosts it (`road`): of its worker, sink and trainer only those are started
that do not beat. Otherwise the three are the run's own, in a namespace of its own.
"""

import asyncio
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from nat.utils.io.yaml_tools import deep_merge
from pydantic_core import to_jsonable_python

from rollbus.demo.base_model import WarmStartSettings, ensure_base_model
from rollbus.demo.processes import STAGES, stack_rows, stage_rows
from rollbus.health.reading import read_living_processes
from rollbus.hosted_stages import create_topics
from rollbus.local.process.service import Service
from rollbus.local.process.supervisor import Supervisor
from rollbus.nemo import troubles
from rollbus.nemo.art_server import is_healthy
from rollbus.nemo.bus.kafka import KafkaBus
from rollbus.nemo.components import ARTBackendConfig
from rollbus.nemo.runs.folder import SETTINGS_FILE
from rollbus.nemo.runs.own_stack import LOOPBACK, services_here
from rollbus.nemo.runs.plan import Plan
from rollbus.nemo.runs.road import hosts_run, missing_stages, require_no_trainer, require_same, require_where_it_began
from rollbus.nemo.runs.settings import settings_of
from rollbus.runtime.credentials import DATA_DIR, TOKEN, make_secrets, secrets_folder
from rollbus.runtime.health.alarms.processes import ProcessHealth
from rollbus.runtime.kafka.lag import PartitionLag, count_behind, open_lag
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.namespaces import DEFAULT_NAMESPACE
from rollbus.schemas.topics import TOPICS
from rollbus.settings import Settings
from rollbus.settings_file import load_settings, read_settings
from rollbus.start.parts import SINK, TRAINER
from rollbus.trainer.settings import TrainerSettings

logger = logging.getLogger(__name__)

DEMO_MODEL = "rollbus/tictactoe"
"""As a base model: the demo's small one, made on first use."""
DRAIN_S = 120.0
SERVICES = ("kafka", "clickhouse", "sink", "stack")
"""Sections of a settings file that name services."""
CLOCKS_DIFFER_S = 600.0
"""By how much the broker's clock may be behind ours."""
SECRET_MODE = 0o600


class Processes:
    """Everything that runs in addition to the harness, as long as the supervisor's block lasts."""

    def __init__(self, plan: Plan, run_id: str, supervisor: Supervisor) -> None:
        self._plan, self._run_id, self._folder = plan, run_id, plan.bus.data_dir / run_id
        self._supervisor = supervisor
        self.settings: Settings
        self.is_hosted = False
        """Whether the settings file has the run: then its namespace is shared."""
        self._missing_stages = frozenset(STAGES)

    def start(self, *, with_stages: bool = True) -> None:
        """Start what is missing; raises UnavailableError where a configured service does not answer.

        Without the stages the weights are served, and nothing is trained.
        """
        make_secrets(secrets_folder(DATA_DIR, os.environ), (TOKEN,))
        path = self._write(self._document())
        loaded = load_settings(Settings, path, {})
        if self._plan.bus.settings_file is None:  # a ClickHouse of the settings file may have no password
            make_secrets(loaded.stack_settings().secrets_dir)
        self.settings = loaded.with_credentials(os.environ)
        for service in self._missing(path):
            self._supervisor.start(service)
        self._supervisor.wait()
        if not with_stages:
            return
        with ThreadPoolExecutor(1) as thread:  # the caller may run in an event loop
            processes = thread.submit(asyncio.run, self._prepare_log()).result()
        if self.is_hosted:
            self._missing_stages = missing_stages(self.settings, self._run_id, processes)
        for service in self._stages(path):
            self._supervisor.start(service)
        self._supervisor.wait()

    async def _prepare_log(self) -> Sequence[ProcessHealth]:
        """Create the topics that are missing; return the processes that read them already."""
        await create_topics(self.settings)
        if not self.is_hosted:
            return ()
        return await read_living_processes(self.settings.kafka, self.namespace)

    def check(self) -> None:
        """Raise UnavailableError, with the end of its log, if one has ended."""
        self._supervisor.check()

    def bus(self, *, resume: bool, began_at: str) -> KafkaBus:
        """Return the run's bus, not yet open; a shared log is read from a little before the run began."""
        since_ms = None
        if self.is_hosted:
            since_ms = int((datetime.fromisoformat(began_at).timestamp() - CLOCKS_DIFFER_S) * 1000)
        return KafkaBus(self.settings.kafka, self.namespace, with_events=resume, since_ms=since_ms)

    @property
    def namespace(self) -> str:
        """The namespace of the run's records."""
        return self.settings.namespace

    def trainer_settings(self) -> TrainerSettings:
        """Return the settings of the run's trainer; raises ConfigurationError where another process has that part."""
        if self.is_hosted:
            require_no_trainer(self._missing_stages, self._run_id)
        return self.settings.trainer_settings(self._run_id)

    @property
    def settings_file(self) -> Path:
        """The settings of the run, for every other command."""
        return self._folder / SETTINGS_FILE

    def addresses(self) -> Iterator[str]:
        """Yield a line for each service: what it is and where."""
        yield f"{'run':<11} {self._run_id}"
        yield f"{'kafka':<11} {self.settings.kafka.bootstrap_servers}"
        yield f"{'clickhouse':<11} {self.settings.clickhouse.host}:{self.settings.clickhouse.port}"
        if (backend := self._plan.art_backend) is not None:
            yield f"{'art-server':<11} {backend.url}"
        yield f"{'settings':<11} {self.settings_file}"

    def model_url(self) -> str:
        """Return the address of the trained model; raises ConfigurationError where the run has no server."""
        if (backend := self._plan.art_backend) is None:
            raise ConfigurationError(f"the weights of run {self._run_id!r} are its own adapter's; serve them there")
        return f"http://{backend.host}:{self.settings.stack.model_port}/v1"

    async def drain(self) -> None:
        """Wait until ClickHouse has everything so far; what takes longer is there after the next start of the sink.

        A sink that is not ours goes on. Ticks go on too, so a sink is hardly ever at the end.
        """
        if SINK not in self._missing_stages:
            return
        kafka = self.settings.kafka
        group = f"{self.namespace}sink"
        topics = [topic.full_name(self.namespace) for topic in TOPICS]  # also those that it has not begun
        try:
            async with asyncio.timeout(DRAIN_S), open_lag(kafka) as lag:
                first: tuple[PartitionLag, ...] = ()
                while True:
                    with suppress(UnavailableError):
                        places = (await lag.read({group: topics}))[group].partitions
                        first = first or places
                        if places and not count_behind(first, places):
                            return
                    await asyncio.sleep(0.2)
        except TimeoutError:
            logger.warning("ClickHouse is still behind; `rollbus -c %s sink run` continues", self.settings_file)

    # Settings

    def _document(self) -> dict[str, Any]:
        path = self._plan.bus.settings_file
        services = services_here(self._plan, self._folder) if path is None else self._read_settings(path)
        if not self.is_hosted:
            services = {name: services[name] for name in SERVICES if name in services}
            services = deep_merge(services, settings_of(self._plan, self._run_id, f"{self._run_id}."))
        document: dict[str, Any] = to_jsonable_python(services)
        require_where_it_began(self._folder, document.get("namespace", DEFAULT_NAMESPACE))
        return document

    def _write(self, document: Mapping[str, Any]) -> Path:
        """Write the settings that every process of the run reads, for this user only: they hold passwords."""
        path = self.settings_file
        path.touch(SECRET_MODE)
        path.chmod(SECRET_MODE)  # an earlier start may have made it
        text = yaml.safe_dump(document, sort_keys=False)
        path.write_text(f"# Written by `rollbus finetune`.\n{text}", encoding="utf-8")
        return path

    def _read_settings(self, path: Path) -> dict[str, Any]:
        """Return a settings file, read with its environment, with the addresses of its stack; see whether it hosts the
        run.
        """
        values, _, mistakes = read_settings(Settings, path, os.environ)
        if mistakes:
            raise ConfigurationError("\n".join([f"mistakes in the settings from {path}:", *mistakes]))
        settings = load_settings(Settings, path, os.environ).with_stack_addresses()
        self.is_hosted = hosts_run(settings, self._run_id)
        if self.is_hosted:
            require_same(self._plan, settings, self._run_id, path)
        addresses = {
            "kafka": {"bootstrap_servers": settings.kafka.bootstrap_servers},
            "clickhouse": {"host": settings.clickhouse.host, "port": settings.clickhouse.port},
        }
        return deep_merge(values, addresses)

    # Processes

    def _missing(self, settings_file: Path) -> Iterator[Service]:
        stack = self.settings.stack_settings()
        rows = {service.name: service for service in stack_rows(stack, settings_file)}
        backend = self._plan.art_backend
        if self._plan.bus.settings_file is None:
            yield from (service for name, service in rows.items() if name != "art-server")
        if backend is not None and not is_healthy(backend.health_url):
            self._require_startable(backend)
            yield replace(rows["art-server"], is_healthy=partial(is_healthy, backend.health_url))

    def _require_startable(self, backend: ARTBackendConfig) -> None:
        """Refuse to start a server for an address that is not ours, or for a model that is not here."""
        if backend.ip.strip("[]") not in LOOPBACK:
            raise troubles.no_connection(backend.url, "no answer")
        if backend.base_model == DEMO_MODEL:
            ensure_base_model(WarmStartSettings(), self.settings.stack.data_dir / "models")
        elif not Path(backend.base_model).is_dir():
            raise troubles.no_connection(
                backend.url, f"and none is started here, because base_model {backend.base_model!r} is not a folder"
            )

    def _stages(self, settings_file: Path) -> Iterator[Service]:
        from rollbus.consumers.clickhouse.questions.saved_questions import has_tables

        is_ours = self._plan.backend is not None
        for service in stage_rows(settings_file, self._run_id, has_tables=lambda: has_tables(self.settings.clickhouse)):
            if service.name in self._missing_stages and (service.name != TRAINER or is_ours):
                yield service
