"""The processes of a finetuning run: what is there is used, what is missing is started, and ends with the run.

A settings file names the services to use; without one Kafka and ClickHouse are started here, in the run's folder. The
ART server is the one at the configured address; where nothing answers there, and the address is this machine's, it is
started too. Worker, sink and trainer are always the run's own, in a namespace of its own.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import yaml
from pydantic_core import to_jsonable_python

from rollbus.cli.stages import create_topics
from rollbus.demo.base_model import WarmStartSettings, ensure
from rollbus.demo.processes import stack_rows, stage_rows
from rollbus.local.process.ports import find_free_port, is_free
from rollbus.local.process.service import Service, answers_http
from rollbus.local.process.supervisor import Supervisor
from rollbus.nemo import troubles
from rollbus.nemo.bus.kafka import KafkaBus
from rollbus.nemo.components import BusTrainerAdapterConfig
from rollbus.nemo.runs.folder import SETTINGS_FILE
from rollbus.nemo.runs.plan import Plan
from rollbus.nemo.runs.settings import laid_over, on_art_server, settings_of
from rollbus.runtime.credentials import DATA_DIR, TOKEN, make_secrets, secrets_folder
from rollbus.runtime.kafka.lag import open_lag
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.topics import TOPICS
from rollbus.settings import Settings
from rollbus.settings_file import load_settings, read_settings
from rollbus.stack_settings import HOST

logger = logging.getLogger(__name__)

LOOPBACK = ("localhost", "127.0.0.1", "0.0.0.0", "::1")
DEMO_MODEL = "rollbus/tictactoe"
"""As a base model: the demo's small one, made on first use."""
DRAIN_S = 120.0
LEAVING_S = 30.0
"""How long the processes of a killed run may take to end; they are signalled at its death."""
ART_PORTS = ("art_port", "model_port")
SECRET_MODE = 0o600


class Processes:
    """Everything that runs in addition to the harness; use it as a block, in the main thread."""

    def __init__(self, plan: Plan, run_id: str) -> None:
        self._plan, self._run_id, self._folder = plan, run_id, plan.bus.data_dir / run_id
        self._given = plan.bus.settings_file
        self._stack = ExitStack()
        self._supervisor: Supervisor | None = None
        self.settings: Settings
        self.namespace = f"{run_id}."

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._supervisor = self._stack.enter_context(Supervisor(log_dir=self._folder / "logs"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def start(self, *, with_stages: bool = True) -> None:
        """Start what is missing; raises UnavailableError where a configured service does not answer.

        Without the stages the weights are served, and nothing is trained.
        """
        assert self._supervisor is not None
        make_secrets(secrets_folder(DATA_DIR, os.environ), (TOKEN,))
        path = self._write(self._document())
        loaded = load_settings(Settings, path, {})
        if self._given is None:  # a ClickHouse of the settings file may have no password
            make_secrets(loaded.stack_settings().secrets_dir)
        self.settings = loaded.with_credentials(os.environ)
        for service in self._missing(path):
            self._supervisor.start(service)
        self._supervisor.wait()
        if not with_stages:
            return
        with ThreadPoolExecutor(1) as thread:  # the caller may run in an event loop
            thread.submit(asyncio.run, create_topics(self.settings)).result()
        for service in self._stages(path):
            self._supervisor.start(service)
        self._supervisor.wait()

    def check(self) -> None:
        """Raise UnavailableError, with the end of its log, if one has ended."""
        assert self._supervisor is not None
        self._supervisor.check()

    def bus(self, *, resume: bool) -> KafkaBus:
        """Return the run's bus, not yet open."""
        return KafkaBus(self.settings.kafka, self.namespace, with_events=resume)

    @property
    def settings_file(self) -> Path:
        """The settings of the run, for every other command."""
        return self._folder / SETTINGS_FILE

    def addresses(self) -> Iterator[str]:
        """Yield a line for each service: what it is and where."""
        yield f"{'run':<11} {self._run_id}"
        yield f"{'kafka':<11} {self.settings.kafka.bootstrap_servers}"
        yield f"{'clickhouse':<11} {self.settings.clickhouse.host}:{self.settings.clickhouse.port}"
        if self._art is not None:
            yield f"{'art-server':<11} {self._art.backend.url}"
        yield f"{'settings':<11} {self.settings_file}"

    def model_url(self) -> str:
        """Return the address of the trained model; raises ConfigurationError where the run has no server."""
        if self._art is None:
            raise ConfigurationError(f"the weights of run {self._run_id!r} are its own adapter's; serve them there")
        return f"http://{self._art.backend.ip}:{self.settings.stack.model_port}/v1"

    async def drain(self) -> None:
        """Wait until ClickHouse has everything; what takes longer is there after the next start of the sink."""
        kafka = self.settings.kafka
        group = f"{self.namespace}sink"
        topics = [topic.full_name(self.namespace) for topic in TOPICS]  # also those that it has not begun
        try:
            async with asyncio.timeout(DRAIN_S), open_lag(kafka) as lag:
                while True:
                    with suppress(UnavailableError):
                        sink = (await lag.read({group: topics}))[group]
                        if sink.partitions and sink.lag == 0:
                            return
                    await asyncio.sleep(0.2)
        except TimeoutError:
            logger.warning("ClickHouse is still behind; `rollbus -c %s sink run` continues", self.settings_file)

    # Settings

    @property
    def _art(self) -> BusTrainerAdapterConfig | None:
        """Return the adapter's configuration, where the run trains on an ART server."""
        adapter = self._plan.adapter
        return adapter if isinstance(adapter, BusTrainerAdapterConfig) and on_art_server(self._plan) else None

    def _document(self) -> dict[str, Any]:
        settings = settings_of(self._plan, self._run_id, self.namespace)
        services = self._services_here() if self._given is None else self._services_given(self._given)
        document: dict[str, Any] = to_jsonable_python(laid_over(services, settings))
        return document

    def _write(self, document: Mapping[str, Any]) -> Path:
        """Write the settings that every process of the run reads, for this user only: they hold passwords."""
        path = self.settings_file
        path.touch(SECRET_MODE)
        path.chmod(SECRET_MODE)  # an earlier start may have made it
        text = yaml.safe_dump(document, sort_keys=False)
        path.write_text(f"# Written by `rollbus finetune`.\n{text}", encoding="utf-8")
        return path

    def _services_given(self, path: Path) -> dict[str, Any]:
        """Return the services of a settings file, read with its environment; its runs and topics are others'."""
        values, _, mistakes = read_settings(Settings, path, os.environ)
        if mistakes:
            raise ConfigurationError("\n".join([f"mistakes in the settings from {path}:", *mistakes]))
        services = {name: values[name] for name in ("kafka", "clickhouse", "sink", "stack") if name in values}
        given = load_settings(Settings, path, os.environ).with_stack_addresses()
        addresses = {
            "kafka": {"bootstrap_servers": given.kafka.bootstrap_servers},
            "clickhouse": {"host": given.clickhouse.host, "port": given.clickhouse.port},
        }
        written: dict[str, Any] = laid_over(services, addresses)
        return written

    def _services_here(self) -> dict[str, Any]:
        """Return Kafka and ClickHouse in the run's folder; on the ports that an earlier start took."""
        stack = self._earlier_stack() or {
            "data_dir": str((self._folder / "data").resolve()),
            "kafka_port": find_free_port(),
            "kafka_controller_port": find_free_port(),
            "clickhouse_port": find_free_port(),
            "art_port": self._art.backend.port if self._art is not None else find_free_port(),
            "model_port": self._model_port(),
        }
        return {
            "kafka": {"bootstrap_servers": f"{HOST}:{stack['kafka_port']}"},
            "clickhouse": {"host": HOST, "port": stack["clickhouse_port"]},
            "stack": stack,
        }

    def _earlier_stack(self) -> dict[str, Any] | None:
        path = self.settings_file
        if not path.exists():
            return None
        earlier_settings: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        stack = earlier_settings.get("stack") if earlier_settings.get("namespace") == self.namespace else None
        if stack is not None:
            had_art = (Path(stack["data_dir"]) / "art").exists()
            names = [name for name in stack if name.endswith("_port") and (had_art or name not in ART_PORTS)]
            wait_until_free([int(stack[name]) for name in names])
        return stack

    def _model_port(self) -> int:
        """Return the port of the trained model's endpoint, as an entry under `llms` has it."""
        names = {self._art.backend.base_model, self._art.backend.name} if self._art is not None else set()
        for llm in self._plan.config.llms.values():
            address = urlsplit(str(getattr(llm, "base_url", "") or ""))
            if getattr(llm, "model_name", None) in names and address.hostname in LOOPBACK and address.port:
                return address.port
        return find_free_port()

    # Processes

    def _missing(self, settings_file: Path) -> Iterator[Service]:
        stack = self.settings.stack_settings()
        rows = {service.name: service for service in stack_rows(stack, settings_file)}
        art = self._art
        if self._given is None:
            yield from (service for name, service in rows.items() if name != "art-server")
        if art is not None and not _answers(art.backend.ip, art.backend.port):
            self._require_startable(art)
            yield replace(rows["art-server"], is_healthy=lambda: _answers(art.backend.ip, art.backend.port))

    def _require_startable(self, art: BusTrainerAdapterConfig) -> None:
        """Refuse to start a server for an address that is not ours, or for a model that is not here."""
        backend = art.backend
        if backend.ip not in LOOPBACK:
            raise troubles.no_connection(backend.url, "no answer")
        if backend.base_model == DEMO_MODEL:
            ensure(WarmStartSettings(), self.settings.stack.data_dir / "models")
        elif not Path(backend.base_model).is_dir():
            raise troubles.no_connection(
                backend.url, f"and none is started here, because base_model {backend.base_model!r} is not a folder"
            )

    def _stages(self, settings_file: Path) -> Iterator[Service]:
        from rollbus.consumers.clickhouse.questions.saved import has_tables

        for service in stage_rows(settings_file, has_tables=lambda: has_tables(self.settings.clickhouse)):
            if service.name != "trainer" or isinstance(self._plan.adapter, BusTrainerAdapterConfig):
                yield service


def wait_until_free(ports: Sequence[int], timeout_s: float = LEAVING_S) -> None:
    """Wait for the ports of an earlier start; one that stays taken is reported by the service that needs it."""
    deadline = time.monotonic() + timeout_s
    while not all(map(is_free, ports)) and time.monotonic() < deadline:
        time.sleep(0.1)


def _answers(host: str, port: int) -> bool:
    import httpx

    if host in LOOPBACK:
        return answers_http(port, "/health")
    try:
        return httpx.get(f"http://{host}:{port}/health", timeout=5.0).status_code == 200
    except httpx.HTTPError:
        return False
