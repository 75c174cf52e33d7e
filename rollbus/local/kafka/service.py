"""A real Kafka broker as a service: data folder and ports → one KRaft node that answers on loopback.

Only an empty folder is formatted; the data stay for the next start. Healthy means that a client has received the
cluster's metadata, not only that a port is open.
"""

import asyncio
import logging
import subprocess
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rollbus.local.kafka.config import LOG4J, server_properties
from rollbus.local.kafka.jars import find_jars, find_java
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ANSWER_S, Service
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.stack_settings import HOST

logger = logging.getLogger(__name__)

JAVA_OPTIONS = ("-Xms128m", "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A small heap, and the quick compiler only: a start takes a third less CPU time, and the traffic of one machine
never repays the slow compiler."""


def kafka_service(
    *,
    folder: Path,
    client_port: int,
    controller_port: int | None = None,
    changes: Mapping[str, str] | None = None,
    cluster_id: str | None = None,
) -> Service:
    """Return the broker with its data and configuration under `folder`; `changes` to its settings win over ours.

    Nodes of one cluster need one `cluster_id`, 16 bytes in URL-safe base64, and controllers that know one another's
    ports. A single one makes its own, and its controller, which nobody else asks, takes a free port at each start.
    """

    bootstrap_servers = f"{HOST}:{client_port}"
    return Service(
        name="kafka",
        command=lambda: prepare(
            folder,
            client_port=client_port,
            controller_port=find_free_port() if controller_port is None else controller_port,
            changes=changes,
            cluster_id=cluster_id,
        ),
        is_healthy=lambda: is_healthy(bootstrap_servers),
        address=bootstrap_servers,
        ports={"kafka_port": client_port},
    )


def prepare(
    folder: Path,
    *,
    client_port: int,
    controller_port: int,
    changes: Mapping[str, str] | None = None,
    cluster_id: str | None = None,
) -> list[str]:
    """Make the folder ready and return the command that runs the broker on it."""
    java, jars = find_java(), find_jars()
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    properties, log4j = folder / "server.properties", folder / "log4j2.properties"
    text = server_properties(client_port=client_port, controller_port=controller_port, log_dir=data, changes=changes)
    properties.write_text(text, encoding="ascii")
    log4j.write_text(LOG4J, encoding="ascii")
    base = [java, *JAVA_OPTIONS, f"-Dlog4j2.configurationFile={log4j.resolve()}", "-cp", f"{jars.resolve()}/*"]
    if not is_formatted(data):
        _format(base, properties, cluster_id or new_cluster_id())
    return [*base, "kafka.Kafka", str(properties.resolve())]


def is_formatted(data: Path) -> bool:
    """False for an empty folder, True for a formatted one; a folder in between raises ConfigurationError."""
    names = {entry.name for entry in data.iterdir()}
    if not names:
        return False
    meta = data / "meta.properties"
    lines = meta.read_text(encoding="ascii", errors="replace").splitlines() if meta.is_file() else []
    keys = {line.split("=", 1)[0] for line in lines if "=" in line}
    if not {"cluster.id", "node.id", "version"} <= keys:
        raise ConfigurationError(
            f"Kafka's data folder {data} is half written: it holds {len(names)} entries but no complete "
            "meta.properties, so an earlier start was cut off; move it away or remove it, and start again"
        )
    return True


def is_healthy(bootstrap_servers: str) -> bool:
    """Whether a client gets metadata from the broker. In a thread, as the caller may be inside an event loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(_answers(bootstrap_servers))).result()


def new_cluster_id() -> str:
    """Return a new unique name for a cluster."""
    cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return "A" + cluster_id[1:] if cluster_id.startswith("-") else cluster_id  # the tool would read an option


def _format(base: list[str], properties: Path, cluster_id: str) -> None:
    command = [*base, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode != 0:
        detail = (result.stderr or result.stdout).strip()
        if "UnsupportedClassVersionError" in detail:
            raise ConfigurationError(
                f"{base[0]} is older than Java 17, which Kafka needs; set JAVA_HOME to a newer one"
            )
        raise ConfigurationError(f"Kafka's storage could not be formatted: {detail}")
    logger.info("formatted Kafka storage cluster_id=%s properties=%s", cluster_id, properties)


async def _answers(bootstrap_servers: str) -> bool:
    from rollbus.runtime.kafka.clients import new_admin, running  # where no broker runs, nobody needs the client

    kafka_logger = logging.getLogger("aiokafka")
    level = kafka_logger.level
    kafka_logger.setLevel(logging.CRITICAL)  # a broker that is not there yet is not an error here
    connection = KafkaConnection(bootstrap_servers=bootstrap_servers)
    admin = new_admin(connection, request_timeout_ms=int(ANSWER_S * 1000))
    try:
        async with asyncio.timeout(ANSWER_S), running(connection, admin):
            return bool((await admin.describe_cluster())["brokers"])
    except (UnavailableError, TimeoutError):
        return False
    finally:
        kafka_logger.setLevel(level)
