"""docker-compose.yml against the local stack: same ports, same broker settings, commands and secrets that exist."""

import os
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import click
import pytest

from rollbus.cli.root import rollbus
from rollbus.local.clickhouse.reader_role import READONLY_PROFILE, readonly_grants
from rollbus.local.kafka.config import BROKER_SETTINGS, server_properties
from rollbus.local.kafka.jars import POM
from rollbus.runtime.credentials import FOLDER_VARIABLE, METRICS_TOKEN, OWNER_KEY, PASSWORD, READONLY_PASSWORD, TOKEN
from rollbus.runtime.principals import PRINCIPALS, PRINCIPALS_KEY
from rollbus.settings import Settings
from rollbus.settings_file import load_settings
from rollbus.stack_settings import HOST, StackSettings
from tests.compose import BASE, ROOT, SASL, SECRETS, names_of_secrets, read_compose

OURS = ("topics", "worker", "sink", "trainer", "alarms", "art-server", "art-server-gpu")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return read_compose(BASE)


def environment_name(setting: str) -> str:
    """The variable that the image turns into a broker setting."""
    return "KAFKA_" + setting.upper().replace(".", "_")


def test_the_broker_has_the_settings_of_the_local_one_and_no_others(compose: dict[str, Any]) -> None:
    environment = compose["services"]["kafka"]["environment"]
    assert {environment_name(name): value for name, value in BROKER_SETTINGS.items()}.items() <= environment.items()
    local = server_properties(client_port=9092, controller_port=9093, log_dir=Path("/data"))
    local_names = {environment_name(line.partition("=")[0]) for line in local.splitlines()}
    assert set(environment) - local_names == {"CLUSTER_ID", "KAFKA_HEAP_OPTS"}
    assert environment["KAFKA_ADVERTISED_LISTENERS"] in local


def test_ports_are_those_of_the_local_stack_and_on_loopback(compose: dict[str, Any]) -> None:
    settings = StackSettings()
    published = {name: service["ports"] for name, service in compose["services"].items() if "ports" in service}
    assert published == {
        "kafka": [f"{HOST}:{settings.kafka_port}:{settings.kafka_port}"],
        "clickhouse": [f"{HOST}:{settings.clickhouse_port}:{settings.clickhouse_port}"],
    }
    health = compose["services"]["art-server"]["healthcheck"]["test"]
    assert f"{settings.art_url}/health" in health[-1]


def test_the_brokers_image_is_of_the_version_that_the_tests_run(compose: dict[str, Any]) -> None:
    pom = ET.parse(POM)
    version = pom.findtext(".//{http://maven.apache.org/POM/4.0.0}kafka.version")
    assert compose["services"]["kafka"]["image"].startswith(f"apache/kafka:{version}@")


def test_the_readonly_user_has_the_limits_of_the_local_endpoint(compose: dict[str, Any]) -> None:
    users = ET.fromstring(compose["configs"]["clickhouse-readonly"]["content"])
    profile = users.find("profiles/rollbus_readonly")
    assert profile is not None
    assert {limit.tag: limit.text for limit in profile} == READONLY_PROFILE
    grants = [query.text for query in users.findall("users/readonly/grants/query")]
    assert grants == readonly_grants(Settings().clickhouse.database)
    assert users.findtext("users/readonly/profile") == "rollbus_readonly"
    assert users.find("users/readonly/password[@from_env='READONLY_PASSWORD']") is not None


def test_no_container_can_gain_rights_or_take_the_machines_memory(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "mem_limit" in service, name
        if name in OURS:
            assert service["read_only"] is True
            assert service["tmpfs"] == ["/tmp"]
            assert "cap_add" not in service


def test_the_servers_logs_about_itself_are_capped(compose: dict[str, Any]) -> None:
    logs = ET.fromstring(compose["configs"]["clickhouse-logs"]["content"])
    for log in logs:
        assert log.get("remove") == "1" or "INTERVAL" in (log.findtext("ttl") or ""), log.tag


def test_our_containers_see_the_hosts_loopback_and_run_our_commands(compose: dict[str, Any]) -> None:
    for name in OURS:
        service = compose["services"][name]
        assert service["network_mode"] == "host"
        assert service["build"]["context"] == "."
        noun = name.removesuffix("-gpu")
        assert service["command"] == [noun, "create" if noun == "topics" else "run"]


@pytest.mark.parametrize("files", [[BASE], [BASE, SASL]], ids=" and ".join)
def test_every_command_and_setting_of_our_containers_exists(files: list[str]) -> None:
    compose = read_compose(*files)
    for name in OURS:
        service = compose["services"][name]
        noun, verb, *options = service["command"]
        group = rollbus.get_command(click.Context(rollbus), noun)
        assert isinstance(group, click.Group)
        assert set(options) <= {name for option in group.commands[verb].params for name in option.opts}
        environment = {**service["environment"]}
        cache = environment.pop("XDG_CACHE_HOME", "/app/.rollbus/")
        assert f"rollbus:{cache.removesuffix('/cache').rstrip('/')}" in service["volumes"]
        assert environment.pop("ROLLBUS_SECRETS") == SECRETS
        assert environment.pop("HOME") == "/tmp"
        for option in group.commands[verb].params:
            environment.pop(str(option.envvar), None)
        settings = load_settings(Settings, None, environment)
        count = sum(len(getattr(settings, section).model_fields_set) for section in settings.model_fields_set)
        assert count == len(environment)


def test_each_container_has_the_secrets_that_it_needs_and_no_others(compose: dict[str, Any], tmp_path: Path) -> None:
    needed = {
        "topics": set(),
        "worker": {METRICS_TOKEN, OWNER_KEY, PRINCIPALS_KEY, PRINCIPALS},
        "sink": {METRICS_TOKEN, PASSWORD},
        "trainer": {TOKEN, METRICS_TOKEN},
        "alarms": {METRICS_TOKEN},
        "art-server": {TOKEN, PRINCIPALS_KEY, PRINCIPALS},
        "art-server-gpu": {TOKEN, PRINCIPALS_KEY, PRINCIPALS},
        "clickhouse": {PASSWORD, READONLY_PASSWORD},
    }
    given = {name: set(names_of_secrets(service)) for name, service in compose["services"].items()}
    assert given == {"kafka": set(), **needed}
    subprocess.run([ROOT / "scripts" / "compose-secrets", tmp_path], check=True)
    for declared in (compose["secrets"], read_compose(BASE, SASL)["secrets"]):
        assert all(
            (tmp_path / Path(secret["file"]).name).stat().st_mode & 0o777 == 0o600 for secret in declared.values()
        )
    settings = Settings().with_credentials({FOLDER_VARIABLE: str(tmp_path)})
    worker = settings.stream_settings()
    assert worker.signing.fingerprint, "the worker signs ticks and configurations"
    assert worker.signing.principals, "it knows whose token signed a record"
    metrics_token = settings.health.metrics_token
    assert metrics_token is not None
    assert (
        metrics_token.get_secret_value()
        == (tmp_path / METRICS_TOKEN).read_text().strip()
        != (tmp_path / TOKEN).read_text()
    )


@pytest.mark.parametrize(
    ("user", "is_given", "message"),
    [("0", True, ""), ("1000", False, ""), ("1001", False, "you are user 1001: run sudo chown 1000")],
)
def test_secrets_belong_to_the_user_of_the_containers(user: str, is_given: bool, message: str, tmp_path: Path) -> None:
    """Compose binds the files as they are: root's, which root alone reads, would start no container."""
    (commands := tmp_path / "bin").mkdir()
    for name, line in (("id", f"echo {user}"), ("chown", f'echo "$@" > {tmp_path}/owners')):
        (commands / name).write_text(f"#!/bin/sh\n{line}\n")
        (commands / name).chmod(0o755)
    path = f"{commands}:{os.environ['PATH']}"
    command = [ROOT / "scripts" / "compose-secrets", tmp_path / "secrets"]
    result = subprocess.run(command, check=True, env={"PATH": path}, capture_output=True, text=True)
    assert message in result.stderr
    assert bool(result.stderr) == bool(message)
    owners = tmp_path / "owners"
    assert owners.exists() == is_given
    if is_given:
        user_id, *names = owners.read_text().split()
        assert user_id == "1000"
        assert {Path(name).name for name in names} == {path.name for path in (tmp_path / "secrets").iterdir()}


def test_each_container_has_only_the_password_of_its_role() -> None:
    compose = read_compose(BASE, SASL)
    users = {"topics": "admin", "worker": "worker", "sink": "sink", "trainer": "trainer", "alarms": "operator"}
    users |= dict.fromkeys(("art-server", "art-server-gpu"), "trainer")
    for name, user in users.items():
        service = compose["services"][name]
        assert service["environment"]["ROLLBUS_KAFKA__USERNAME"] == user
        secret_by_name = names_of_secrets(service)
        kafka_secrets = {under: secret for under, secret in secret_by_name.items() if secret.startswith("kafka_")}
        assert kafka_secrets == {"kafka_password": f"kafka_{user}", "kafka_certificate": "kafka_certificate"}
        assert set(secret_by_name.values()) <= set(compose["secrets"])
    for name, service in compose["services"].items():
        if name not in (*users, "kafka"):
            assert not any(secret.startswith("kafka_") for secret in names_of_secrets(service).values())


def test_gpus_are_reserved_only_under_their_profile(compose: dict[str, Any]) -> None:
    reserved = {
        name: service["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"]
        for name, service in compose["services"].items()
        if "deploy" in service
    }
    assert reserved == {"art-server-gpu": ["gpu"]}
    assert compose["services"]["art-server-gpu"]["profiles"] == ["gpu"]


def test_the_dockerfile_installs_with_the_uv_of_the_setup() -> None:
    dockerfile, setup = (ROOT / "Dockerfile").read_text(), (ROOT / "scripts" / "setup").read_text()
    pinned = next(line for line in dockerfile.splitlines() if line.startswith("ARG UV_VERSION="))
    assert pinned.removeprefix("ARG ") in setup
