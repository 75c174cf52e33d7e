"""Kafka as docker-compose.sasl.yml starts it: the same settings, real certificates, and a user for each role."""

import argparse
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka.protocol.admin import DescribeAclsRequest
from click.testing import CliRunner

from rollbus.cli.root import rollbus
from rollbus.runtime.kafka.clients import new_admin, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.operate.acls import ROLES
from rollbus.streams.operate.acls_on_broker import ALLOW, OPERATIONS, PATTERNS, RESOURCES
from tests.compose import BASE, ROOT, SASL, SECRETS, broker_settings, read_compose
from tests.services.brokers import own_broker, running_broker
from tests.services.streams.fixtures import stream_settings

Permission = tuple[str, int, str, int, int]
"""Principal, kind and name of a resource, pattern, operation; in Kafka's numbers."""
ANY: Any = 1
OWN_PORTS_AND_FOLDERS = ("listeners", "advertised.listeners", "controller.quorum.voters", "log.dirs")


@dataclass(frozen=True, slots=True)
class Server:
    """A broker that asks who one is, and lets nobody but its administrator do anything."""

    address: str
    secrets: Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with acl_server(tmp_path) as started_server:
        yield started_server


@contextmanager
def acl_server(folder: Path) -> Iterator[Server]:
    """Start it with its data in a folder; stop it when the block ends."""
    secrets = folder / "secrets"
    subprocess.run([ROOT / "scripts" / "compose-secrets", secrets], check=True)
    kafka = read_compose(BASE, SASL)["services"]["kafka"]
    changes = {
        name: value.replace(SECRETS, str(secrets))
        for name, value in broker_settings(kafka["environment"]).items()
        if name not in OWN_PORTS_AND_FOLDERS
    }
    with running_broker(own_broker(folder / "kafka", changes)) as address:
        yield Server(address, secrets)


def kafka_section(server: Server, user: str) -> dict[str, str]:
    """The settings of a container of this user, with the address and the folder of here."""
    of_containers: dict[str, str] = yaml.safe_load((ROOT / SASL).read_text())["x-kafka"]
    section = {name.removeprefix("ROLLBUS_KAFKA__").lower(): value for name, value in of_containers.items()}
    password = section["password_file"].removeprefix(f"{SECRETS}/").replace("password", user)
    return {
        **section,
        "bootstrap_servers": server.address,
        "username": user,
        "password_file": str(server.secrets / password),
        "ssl_ca_file": section["ssl_ca_file"].replace(SECRETS, str(server.secrets)),
    }


def connection(server: Server, user: str) -> KafkaConnection:
    """The broker as one user reaches it."""
    return KafkaConnection.model_validate(kafka_section(server, user))


def settings_of(server: Server, namespace: str, user: str) -> StreamSettings:
    return stream_settings(server.address, namespace).model_copy(update={"kafka": connection(server, user)})


def printed_permissions(config: Path) -> set[Permission]:
    """What `rollbus topics acls` prints, read as `kafka-acls` reads it."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--operation", action="append")
    parser.add_argument("--resource-pattern-type", choices=PATTERNS)
    for kind in RESOURCES:
        parser.add_argument(f"--{kind}", dest=kind)
    role, permissions = "", set()
    for line in command(config, "topics", "acls").splitlines():
        if line.startswith("#"):
            role = line.removeprefix("# ").partition(":")[0]
            continue
        options = vars(parser.parse_args(shlex.split(line)))
        ((kind, name),) = [(kind, options[kind]) for kind in RESOURCES if options[kind] is not None]
        pattern = PATTERNS[options["resource_pattern_type"]]
        permissions |= {
            (f"User:{role}", RESOURCES[kind], name, pattern, OPERATIONS[operation])
            for operation in options["operation"]
        }
    return permissions


async def on_broker(server: Server) -> set[Permission]:
    """What the broker allows, asked by its administrator."""
    kafka = connection(server, "admin")
    async with running(kafka, admin := new_admin(kafka)):
        answer: Any = await admin._send_request(DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY))
    return {
        (principal, kind, name, pattern, operation)
        for kind, name, pattern, acls in answer.resources
        for principal, _, operation, allowed in acls
        if allowed == ALLOW
    }


def command(config: Path, *arguments: str) -> str:
    """What a command prints, given with these settings; what it says of them goes to stderr."""
    result = CliRunner().invoke(rollbus, ["-c", str(config), *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.stdout


def write_configs(server: Server, namespace: str, folder: Path) -> dict[str, Path]:
    """Write a settings file for the administrator and for each role's user; return them by name."""
    configs = {user: folder / f"{user}.yaml" for user in ("admin", *ROLES)}
    for user, config in configs.items():
        content: dict[str, Any] = {"namespace": namespace, "kafka": kafka_section(server, user)}
        config.write_text(yaml.safe_dump(content | {"worker": {"event_partitions": 2}, "runs": [{"run_id": "main"}]}))
    return configs
