"""`up`, `status` and `down` with the real Kafka and ClickHouse, on free ports."""

import re
from pathlib import Path

import clickhouse_connect
import pytest
from aiokafka.admin import NewTopic

from rollbus.local.clickhouse.service import clickhouse_service
from rollbus.local.kafka.jars import find_jars
from rollbus.local.kafka.service import kafka_service
from rollbus.local.process import state
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.processes import end, is_running
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.tether import tethered
from rollbus.local.stack import down, stack_services, status, up
from rollbus.runtime.credentials import OWNER_KEY, PASSWORD, read_secret
from rollbus.runtime.kafka.clients import new_admin, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.stack_settings import HOST, StackSettings
from tests.installs import run

pytestmark = pytest.mark.services


@pytest.fixture
def settings(tmp_path: Path) -> StackSettings:
    return StackSettings(
        data_dir=tmp_path / "data",
        kafka_port=find_free_port(),
        clickhouse_port=find_free_port(),
    )


def test_the_stack_comes_up_keeps_its_data_over_a_crash_and_goes_down(settings: StackSettings) -> None:
    services = stack_services(settings)
    try:
        assert [s.state for s in up(settings, services)] == ["started", "started"]
        assert [s.state for s in status(settings, services)] == ["running", "running"]
        key = settings.secrets_dir / OWNER_KEY
        assert (len(key.read_text()) >= 32, key.stat().st_mode & 0o777) == (True, 0o600)
        with clickhouse_connect.get_client(
            host=HOST, port=settings.clickhouse_port, password=read_secret(settings.secrets_dir, PASSWORD) or ""
        ) as client:
            client.command("CREATE TABLE kept (a UInt8) ENGINE = MergeTree ORDER BY a")
            client.insert("kept", [[1]], column_names=["a"])

        clickhouse = state.read(settings.run_dir, "clickhouse")
        assert clickhouse is not None
        end(clickhouse.identity, grace_s=0)
        assert [s.state for s in status(settings, services)] == ["running", "crashed"]
        assert [s.state for s in up(settings, services)] == ["running", "started"]
        with clickhouse_connect.get_client(
            host=HOST, port=settings.clickhouse_port, password=read_secret(settings.secrets_dir, PASSWORD) or ""
        ) as client:
            assert client.command("SELECT count() FROM kept") == 1

        another = settings.model_copy(update={"data_dir": settings.data_dir.with_name("other")})
        with pytest.raises(ConfigurationError, match=rf"port {settings.kafka_port} for kafka is already in use"):
            up(another, stack_services(another))
        service_records = state.read_all(settings.run_dir)
    finally:
        ended = down(settings)
    assert [s.name for s in ended] == ["clickhouse", "kafka"]
    assert not any(is_running(record.identity) for record in service_records)
    assert [s.state for s in status(settings, services)] == ["stopped", "stopped"]


async def test_a_broker_keeps_its_topics_while_its_controller_takes_another_port_at_each_start(tmp_path: Path) -> None:
    folder = tmp_path / "kafka"
    service = kafka_service(folder=folder, client_port=find_free_port())
    broker = ServiceProcess(service, log_path=folder / "service.log", prefix=tethered())
    connection, lines, topics = KafkaConnection(bootstrap_servers=service.address), set[str](), list[str]()
    for grace_s in (20, 0, 0):  # it is stopped once, and killed
        broker.start()
        try:
            broker.wait_until_healthy()
            lines |= {line for line in (folder / "server.properties").read_text().splitlines() if "voters" in line}
            admin = new_admin(connection)
            async with running(connection, admin):
                await admin.create_topics([NewTopic(f"start-{len(lines)}", 1, 1)])
                topics = await admin.list_topics()
        finally:
            broker.stop(grace_s=grace_s)
    assert len(lines) == 3
    assert {"start-1", "start-2", "start-3"} <= set(topics)


@pytest.mark.parametrize("install", ["wheel"], indirect=True)
def test_an_installed_rollbus_has_its_stack_in_an_empty_folder(install: Path, tmp_path: Path) -> None:
    names = ("kafka_port", "clickhouse_port", "art_port", "model_port")
    ports = {name: str(find_free_port()) for name in names}
    environment = {f"ROLLBUS_STACK__{name.upper()}": port for name, port in ports.items()} | {
        "ROLLBUS_KAFKA__BOOTSTRAP_SERVERS": f"{HOST}:{ports['kafka_port']}",
        "ROLLBUS_CLICKHOUSE__PORT": ports["clickhouse_port"],
    }

    def rollbus(*words: str, code: int = 0, **more: str) -> str:
        result = run(install / "rollbus", *words, cwd=tmp_path, check=False, **environment, **more)
        assert result.returncode == code, result.stdout + result.stderr
        return " ".join((result.stdout + result.stderr).split())

    nowhere = {"XDG_CACHE_HOME": "empty", "PIP_INDEX_URL": "http://127.0.0.1:9", "PIP_RETRIES": "0"}
    nowhere |= {"UV_INDEX_URL": "http://127.0.0.1:9", "UV_HTTP_RETRIES": "0", "ROLLBUS_KAFKA_JARS": str(find_jars())}
    try:
        without_a_model = rollbus("up", code=1, **nowhere)
        assert re.search(r"kafka +started", without_a_model)
        assert "bring SmolLM2-135M-Instruct.Q4_1.gguf yourself: `rollbus model import PATH`" in without_a_model
        assert re.search(r"clickhouse +running", rollbus("up", "--no-art"))
        assert "more do not exist; run `rollbus topics create`" in rollbus("doctor", code=1)
        rollbus("topics", "create")
        assert "all exist" in rollbus("doctor")
        assert "nothing is recorded yet, and no process runs" in rollbus("status")
        assert "no archive at kept" in rollbus("archive", "ls", "--at", "kept", code=1)
        rollbus("archive", "run", "--at", "kept")
        rollbus("archive", "verify", "--at", "kept")
    finally:
        rollbus("down")
    assert "running" not in rollbus("status")


def test_a_clickhouse_folder_in_use_or_spoilt_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first = ServiceProcess(clickhouse_service(folder=folder, port=find_free_port()), log_path=tmp_path / "first.log")
    second = ServiceProcess(clickhouse_service(folder=folder, port=find_free_port()), log_path=tmp_path / "second.log")
    try:
        first.start()
        first.wait_until_healthy()
        with clickhouse_connect.get_client(dsn=first.service.address) as client:
            client.command("CREATE TABLE half (a UInt8) ENGINE = MergeTree ORDER BY a")
        second.start()
        with pytest.raises(UnavailableError, match="in use by another process"):
            second.wait_until_healthy()
    finally:
        first.stop()
        second.stop()
    (metadata,) = folder.rglob("half.sql")
    metadata.write_text(metadata.read_text()[:20])
    try:
        second.start()
        with pytest.raises(UnavailableError, match="cannot be opened"):
            second.wait_until_healthy()
    finally:
        second.stop()
