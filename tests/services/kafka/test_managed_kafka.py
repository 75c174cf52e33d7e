"""The profile of docs/managed-kafka.md on a broker as managed services run it: TLS, SCRAM, 1 MiB, no new topics."""

import asyncio
import datetime
import ipaddress
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

import rollbus.producers
from rollbus.local.kafka.config import server_properties
from rollbus.local.kafka.jars import find_jars, find_java
from rollbus.local.kafka.service import new_cluster_id
from rollbus.local.process.ports import find_free_port
from rollbus.schemas.errors import RollbusError, UnavailableError
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.topics import DROPS, EPISODE_EVENTS
from rollbus.settings import Settings
from rollbus.settings_file import load_settings
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import require_topics
from tests.compose import ROOT
from tests.faults.episodes import Traffic, pipeline
from tests.services.brokers import own_broker, running_broker
from tests.services.kafka.acl_broker import command
from tests.services.streams.fixtures import read_topic
from tests.services.streams.process import running
from tests.waiting import until

pytestmark = pytest.mark.services

PASSWORD = "only-for-this-test"
LIMIT = 1_048_588
"""The usual limit of a message, which smaller plans of managed services do not raise."""
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@dataclass(frozen=True, slots=True)
class Broker:
    """Its address, and the certificate by which its clients know it."""

    address: str
    certificate: Path


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("managed")
    certificate, keystore = make_certificate(folder)
    changes = {
        "message.max.bytes": str(LIMIT),
        "replica.fetch.max.bytes": str(LIMIT),
        "listener.security.protocol.map": "CLIENT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512",
        "listener.name.client.scram-sha-512.sasl.jaas.config": f'{SCRAM} username="admin" password="{PASSWORD}";',
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate),
    }
    ports = find_free_port(), find_free_port()
    format_with_user(folder / "kafka", changes, ports)
    with running_broker(own_broker(folder / "kafka", changes, ports)) as address:
        yield Broker(address, certificate)


@pytest.fixture
def config(broker: Broker, tmp_path: Path, namespace: str) -> Path:
    """The page's settings, with the address of the broker that was started for them."""
    (example,) = (ROOT / "docs" / "managed-kafka.md").read_text().split("```yaml\n")[1:]
    content = yaml.safe_load(example.partition("```")[0])
    del content["kafka"]["password_file"]
    content["kafka"] |= {"bootstrap_servers": broker.address, "password": PASSWORD}
    content["kafka"] |= {"ssl_ca_file": str(broker.certificate)}
    content["worker"] |= {"replication_factor": 1, "event_partitions": 2}
    path = tmp_path / "rollbus.yaml"
    path.write_text(yaml.safe_dump(content | {"namespace": namespace}))
    return path


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1 that signs itself; return it, and it with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rollbus-test")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=1))
    host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    builder = builder.add_extension(x509.SubjectAlternativeName([host]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    public, whole = folder / "certificate.pem", folder / "keystore.pem"
    public.write_bytes(certificate)
    whole.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + certificate)
    return public, whole


def format_with_user(folder: Path, changes: dict[str, str], ports: tuple[int, int]) -> None:
    """Make the broker's folder with the one user, whose password is then in the cluster's own records."""
    data = folder / "data"
    data.mkdir(parents=True)
    properties = folder / "format.properties"
    properties.write_text(
        server_properties(client_port=ports[0], controller_port=ports[1], log_dir=data, changes=changes)
    )
    tool = [find_java(), "-cp", f"{find_jars()}/*", "kafka.tools.StorageTool", "format", "-t", new_cluster_id()]
    user = ["--add-scram", f"SCRAM-SHA-512=[name=rollbus,password={PASSWORD}]"]
    user_options = ["--add-scram", f"SCRAM-SHA-512=[name=admin,password={PASSWORD}]"]
    subprocess.run([*tool, "-c", str(properties), *user, *user_options], check=True, capture_output=True)


def stream_settings(config: Path) -> StreamSettings:
    return load_settings(Settings, config, {}).stream_settings()


async def test_groups_are_trained_and_what_is_too_large_is_a_drop_with_its_reason(config: Path) -> None:
    settings = stream_settings(config)
    await asyncio.to_thread(command, config, "topics", "create")
    recorder = rollbus.producers.init(security=settings.kafka, namespace=settings.namespace)
    with recorder.episode(task="t", example_id="x") as episode:
        await asyncio.to_thread(recorder.flush, 30)
        episode.tool("look", result="x" * LIMIT)
    assert await asyncio.to_thread(recorder.close, 30)
    traffic = Traffic(settings)
    async with running(settings, pipeline()):
        await traffic.send(range(2))
        await traffic.until_trained()
        async with asyncio.timeout(120):
            while not (drops := await drops_of(settings, episode.id)):  # noqa: ASYNC110 - looks at a topic
                await asyncio.sleep(0.5)
    assert [drop.reason for drop in drops] == ["too_large"]


async def drops_of(settings: StreamSettings, episode_id: str) -> list[Drop]:
    records = await read_topic(settings, DROPS.name)
    return [record for record in records if isinstance(record, Drop) and record.unit_id == episode_id]


async def test_a_wrong_password_is_named_and_a_recorder_only_waits(
    config: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = stream_settings(config)
    wrong = settings.kafka.model_copy(update={"password": SecretStr("wrong")})
    with pytest.raises(UnavailableError, match="the password of user rollbus right"):
        await require_topics(settings.model_copy(update={"kafka": wrong}), pipeline())
    assert "invalid credentials" in caplog.text
    caplog.clear()
    recorder = rollbus.producers.init(security=wrong, namespace=settings.namespace)
    with recorder.episode(task="t", example_id="x"):
        pass
    await until(lambda: recorder.healthy is False, "the recorder does not notice")
    assert recorder.counters["events_queued"] == 3
    assert "the password of user rollbus right" in caplog.text
    await asyncio.to_thread(recorder.close, 0.5)


async def test_a_missing_topic_is_not_created_and_the_message_names_the_command(config: Path) -> None:
    settings = stream_settings(config)
    with pytest.raises(RollbusError, match="rollbus topics create"):
        await require_topics(settings, pipeline())
    async with AIOKafkaProducer(**settings.kafka.client_options(), request_timeout_ms=3_000) as producer:
        with pytest.raises((KafkaError, TimeoutError)):
            await asyncio.wait_for(producer.send_and_wait(EPISODE_EVENTS.full_name(settings.namespace), b"x"), 120)
