"""A broker that speaks TLS and asks for a password: producers and workers get in, and learn when it is wrong."""

import asyncio
import dataclasses
import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from pydantic import SecretStr

import rollbus.producers
from rollbus.local.kafka.service import kafka_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.tether import tethered
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.kafka.connection import KafkaConnection
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, RewardReported, WriterClosed
from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics, require_topics
from tests.services.streams.fixtures import CountStage, read_topic, send_events, stream_settings
from tests.services.streams.process import check_exactly_once, running, until_counted

pytestmark = pytest.mark.services

USER, PASSWORD = "worker", "only-for-this-test"
KEYS = ["a", "b", "c"]


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


def broker_settings(certificate: Path, keystore: Path) -> dict[str, str]:
    """SASL_SSL with PLAIN on the clients' listener, which the broker itself uses too."""
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    return {
        "listener.security.protocol.map": "CLIENT:SASL_SSL,CONTROLLER:PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.client.plain.sasl.jaas.config": (
            f'{login} username="{USER}" password="{PASSWORD}" user_{USER}="{PASSWORD}";'
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(certificate),
    }


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[KafkaConnection]:
    certificate, keystore = make_certificate(tmp_path)
    changes = broker_settings(certificate, keystore)
    log = tmp_path / "kafka.log"
    service = kafka_service(
        folder=tmp_path / "kafka", client_port=find_free_port(), controller_port=find_free_port(), changes=changes
    )
    service = dataclasses.replace(service, is_healthy=lambda: "Kafka Server started" in log.read_text())
    broker = ServiceProcess(service, log_path=log, prefix=tethered())
    try:
        broker.start()
        broker.wait_until_healthy()
        yield KafkaConnection(
            bootstrap_servers=service.address,
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            username=USER,
            password=SecretStr(PASSWORD),
            ssl_ca_file=certificate,
        )
    finally:
        broker.stop()


def settings_of(connection: KafkaConnection, namespace: str) -> StreamSettings:
    return stream_settings(connection.bootstrap_servers, namespace).model_copy(update={"kafka": connection})


async def test_a_producer_and_a_worker_work_over_tls_with_a_password(
    connection: KafkaConnection, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(connection, namespace)
    await ensure_topics(settings, [CountStage()])
    async with running(settings, [CountStage()]):
        await send_events(settings, KEYS, range(3))
        drops = await until_counted(settings, 3 * len(KEYS))
    check_exactly_once(drops, KEYS, 3)
    wrong = connection.model_copy(update={"password": SecretStr("wrong")})
    with pytest.raises(UnavailableError, match=f"the password of user {USER} right"):
        await require_topics(settings_of(wrong, namespace), [CountStage()])
    assert "Invalid username or password" in caplog.text


async def test_a_recorder_delivers_over_tls_and_with_a_wrong_password_only_waits(
    connection: KafkaConnection, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = settings_of(connection, namespace)
    await ensure_topics(settings, [CountStage()])
    recording = rollbus.producers.init(security=connection, namespace=namespace)
    with recording.episode(task="t", example_id="x") as episode:
        recording.feedback(episode, reward=1.0)
    assert await asyncio.to_thread(recording.close, 30)
    records = await read_topic(settings, EPISODE_EVENTS.name, settings.event_partitions)
    assert {type(record) for record in records} == {EpisodeStarted, RewardReported, EpisodeEnded, WriterClosed}
    wrong = rollbus.producers.init(
        security=connection.model_copy(update={"password": SecretStr("wrong")}), namespace=namespace
    )
    with wrong.episode(task="t", example_id="x"):
        pass
    assert not await asyncio.to_thread(wrong.flush, 5)
    assert wrong.healthy is False
    assert wrong.counters["events_queued"] == 3
    assert f"the password of user {USER} right" in caplog.text
    await asyncio.to_thread(wrong.close, 0.5)
