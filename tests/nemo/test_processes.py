"""What a run starts and what it refuses to, before anything is started."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import click
import pytest

from rollbus.local.process.ports import find_free_port
from rollbus.local.process.supervisor import Supervisor
from rollbus.nemo.components import BusConfig, LogTrajectoryBuilderConfig, WorkflowTelemetryConfig
from rollbus.nemo.runs.folder import SETTINGS_FILE
from rollbus.nemo.runs.own_stack import model_port, wait_until_free
from rollbus.nemo.runs.processes import Processes
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.lag import GroupLag, PartitionLag
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.settings import Settings
from tests.nemo.world import document, read


def processes(tmp_path: Path, given: str = "", **backend: Any) -> Processes:
    """Those of a run, next to a settings file where one is given."""
    plain = document(tmp_path)
    plain["rollbus"] = {"data_dir": str(tmp_path / "state")}
    plain["trainer_adapters"]["a"]["backend"] |= backend
    if given:
        plain["rollbus"]["settings_file"] = "rollbus.yaml"
        (tmp_path / "rollbus.yaml").write_text(given)
    return Processes(read(tmp_path, plain), "run-1", Supervisor(log_dir=tmp_path))


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ({"base_model": "Qwen/Qwen2.5-3B-Instruct"}, "none is started here, because base_model .* is not a folder"),
        ({"ip": "192.0.2.1"}, "Failed to connect to ART backend at http://192.0.2.1"),
    ],
)
def test_an_absent_server_is_started_only_for_a_local_model(
    tmp_path: Path, backend: dict[str, Any], message: str
) -> None:
    run_processes = processes(tmp_path, **backend)
    art = run_processes._plan.art_backend
    assert art is not None
    with pytest.raises(UnavailableError, match=message):
        run_processes._require_startable(art)


def test_without_a_settings_file_the_run_has_a_stack_of_its_own(tmp_path: Path) -> None:
    document = processes(tmp_path, port=17001)._document()
    settings = Settings.model_validate(document)
    assert settings.kafka.bootstrap_servers == f"127.0.0.1:{settings.stack.kafka_port}"
    assert settings.stack.art_port == 17001
    assert settings.stack.data_dir == (tmp_path / "state" / "run-1" / "data").resolve()
    assert settings.namespace == "run-1."


def test_a_settings_file_names_the_services(tmp_path: Path) -> None:
    document = processes(tmp_path, "kafka: {bootstrap_servers: 'kafka:9092'}\nruns: [{run_id: other}]\n")._document()
    assert document["kafka"] == {"bootstrap_servers": "kafka:9092"}
    assert document["clickhouse"]["host"] == "127.0.0.1"
    assert [run["run_id"] for run in document["runs"]] == ["run-1"]


def test_a_settings_file_with_a_stack_alone_reaches_that_stack(tmp_path: Path) -> None:
    document = processes(tmp_path, "stack: {kafka_port: 19555, clickhouse_port: 18555}\n")._document()
    settings = Settings.model_validate(document)
    assert settings.kafka.bootstrap_servers == "127.0.0.1:19555"
    assert settings.clickhouse.port == 18555


def test_a_settings_file_is_looked_for_beside_the_configuration(tmp_path: Path) -> None:
    plain = document(tmp_path)
    plain["rollbus"] = {"settings_file": "services.yaml"}
    assert read(tmp_path, plain).bus.settings_file == tmp_path / "services.yaml"


@pytest.mark.parametrize("section", [BusConfig, LogTrajectoryBuilderConfig, WorkflowTelemetryConfig])
@pytest.mark.parametrize(("name", "file"), [("services.yaml", "flows/services.yaml"), ("/etc/s.yaml", "/etc/s.yaml")])
def test_the_toolkits_commands_look_for_a_settings_file_beside_the_configuration_too(
    tmp_path: Path, section: type[Any], name: str, file: str
) -> None:
    found: list[Path] = []

    @click.command()
    @click.option("--config_file", type=Path)
    def command(config_file: Path) -> None:
        found.append(section(settings_file=name).settings_file)

    command(["--config_file", str(tmp_path / "flows" / "workflow.yml")], standalone_mode=False)
    assert found == [tmp_path / file]


def test_a_settings_file_with_an_unset_variable_is_refused(tmp_path: Path) -> None:
    run_processes = processes(tmp_path, "kafka: {bootstrap_servers: '${NOBODY_SETS_THIS}'}\n")
    with pytest.raises(ConfigurationError, match="NOBODY_SETS_THIS"):
        run_processes._document()


def test_the_environment_wins_over_a_settings_file_here_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLBUS_KAFKA__BOOTSTRAP_SERVERS", "broker:9092")
    monkeypatch.setenv("ROLLBUS_KAFKA__PASSWORD", "0123")
    monkeypatch.setenv("ROLLBUS_NAMESPACE", "others.")
    document = processes(tmp_path, "kafka: {bootstrap_servers: 'kafka:9092'}\n")._document()
    assert document["kafka"] == {"bootstrap_servers": "broker:9092", "password": "0123"}
    assert document["namespace"] == "run-1."


def test_the_files_of_a_run_with_passwords_are_private(tmp_path: Path) -> None:
    run_processes = processes(tmp_path)
    run_processes._folder.mkdir(parents=True)
    (run_processes._folder / SETTINGS_FILE).touch(0o644)
    run_processes._write({"kafka": {"password": "hunter2"}})
    path = run_processes._folder / SETTINGS_FILE
    assert (path.stat().st_mode & 0o777, "hunter2" in path.read_text()) == (0o600, True)


def test_the_model_endpoint_keeps_the_port_that_the_configuration_names(tmp_path: Path) -> None:
    plain = document(tmp_path)
    plain["llms"]["policy"]["base_url"] = "http://localhost:18123/v1"
    plain["rollbus"] = {}
    assert model_port(read(tmp_path, plain)) == 18123


def test_a_resumed_run_waits_for_the_ports_of_the_one_that_was_killed() -> None:
    port = find_free_port()
    listener = socket.create_server(("127.0.0.1", port))
    threading.Timer(0.3, listener.close).start()
    wait_until_free([port], timeout_s=20.0)
    socket.create_server(("127.0.0.1", port)).close()


class BusyLog:
    """A log that grows by a tick each time its lag is asked for; the sink is five of them behind."""

    def __init__(self) -> None:
        self.reads = 0

    @asynccontextmanager
    async def open(self, kafka: KafkaConnection) -> AsyncIterator[Self]:
        yield self

    async def read(self, groups: Mapping[str, Any]) -> dict[str, GroupLag]:
        self.reads += 1
        place = PartitionLag("run-1.scores", 0, committed=95 + self.reads, begin=0, end=100 + self.reads)
        return {name: GroupLag("Stable", 1, (place,)) for name in groups}


async def test_the_end_of_a_run_waits_for_no_later_tick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollbus.nemo.runs.processes.open_lag", (log := BusyLog()).open)
    run_processes = processes(tmp_path)
    run_processes.settings = Settings(namespace="run-1.")
    async with asyncio.timeout(20.0):
        await run_processes.drain()
    assert log.reads == 6, "what was there at the first of them is in ClickHouse"
