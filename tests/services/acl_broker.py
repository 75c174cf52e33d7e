"""A broker that asks who one is, and allows each role's user exactly what `rollbus topics acls` prints for it."""

import argparse
import dataclasses
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest
from click.testing import CliRunner
from pydantic import SecretStr

from rollbus.cli.root import rollbus
from rollbus.local.kafka.service import kafka_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.tether import tethered
from rollbus.schemas.kafka.connection import KafkaConnection
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.operate.acls import ROLES
from tests.services.stream_fixtures import stream_settings

PASSWORD = "only-for-this-test"
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
TYPES = {"topic": 2, "group": 3, "transactional_id": 5}
PATTERNS = {"literal": 3, "prefixed": 4}
OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Delete": 6, "Describe": 8, "DescribeConfigs": 10}
ALLOW = 3
"""Numbers of Kafka's protocol (AclBindings)."""

BROKER = {
    "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.client.plain.sasl.jaas.config": " ".join(
        [
            f'{LOGIN} username="admin" password="{PASSWORD}"',
            *(f'user_{user}="{PASSWORD}"' for user in ("admin", *ROLES)),
        ]
    )
    + ";",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",  # the controller's own listener knows no users
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Address of a broker that asks who one is, and lets nobody but its administrator do anything."""
    log = tmp_path / "kafka.log"
    service = kafka_service(
        folder=tmp_path / "kafka", client_port=find_free_port(), controller_port=find_free_port(), changes=BROKER
    )
    service = dataclasses.replace(service, is_healthy=lambda: "Kafka Server started" in log.read_text())
    broker = ServiceProcess(service, log_path=log, prefix=tethered())
    try:
        broker.start()
        broker.wait_until_healthy()
        yield service.address
    finally:
        broker.stop()


def connection(server: str, user: str) -> KafkaConnection:
    """The broker as one user reaches it."""
    return KafkaConnection(
        bootstrap_servers=server,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        username=user,
        password=SecretStr(PASSWORD),
    )


def settings_of(server: str, namespace: str, user: str) -> StreamSettings:
    return stream_settings(server, namespace).model_copy(update={"kafka": connection(server, user)})


def printed(config: Path) -> Iterator[tuple[str, argparse.Namespace]]:
    """Each line of `rollbus topics acls` as `kafka-acls` would take it, with its role."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    parser.add_argument("--operation", action="append")
    parser.add_argument("--resource-pattern-type", choices=PATTERNS)
    for kind in TYPES:
        parser.add_argument(f"--{kind.replace('_', '-')}")
    role = ""
    for line in command(config, "topics", "acls").splitlines():
        if line.startswith("#"):
            role = line.removeprefix("# ").partition(":")[0]
        else:
            yield role, parser.parse_args(shlex.split(line))


def command(config: Path, *arguments: str) -> str:
    """What a command says, given with these settings."""
    result = CliRunner().invoke(rollbus, ["-c", str(config), *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return result.output


async def apply(server: str, lines: Iterable[tuple[str, argparse.Namespace]]) -> None:
    """Allow each role's user what was printed for it."""
    admin = AIOKafkaAdminClient(**connection(server, "admin").client_options())
    await admin.start()
    try:
        for role, line in lines:
            ((kind, name),) = [(kind, name) for kind in TYPES if (name := getattr(line, kind)) is not None]
            pattern = PATTERNS[line.resource_pattern_type]
            for operation in line.operation:
                request = CreateAclsRequest(
                    TYPES[kind], name, pattern, f"User:{role}", "*", OPERATIONS[operation], ALLOW
                )
                response: Any = await admin._send_request(request)
                assert all(code == 0 for code, _ in response.creation_responses), response
    finally:
        await admin.close()


def write_configs(server: str, namespace: str, folder: Path) -> dict[str, Path]:
    """Write a settings file for each role's user; return them by role."""
    configs: dict[str, Path] = {role: folder / f"{role}.yaml" for role in ROLES}
    for role, config in configs.items():
        kafka = f"{{bootstrap_servers: '{server}', security_protocol: SASL_PLAINTEXT, sasl_mechanism: PLAIN, "
        kafka += f"username: {role}, password: {PASSWORD}}}"
        config.write_text(
            f"namespace: {namespace}\nkafka: {kafka}\nworker: {{event_partitions: 2}}\nruns: [{{run_id: main}}]\n"
        )
    return configs
