"""A real Kafka broker as a child process: data folder and ports → one KRaft node that answers on loopback.

`start` formats an empty folder, never one that already holds something; `stop` leaves the data for the next start.
Healthy means that a client got the cluster's metadata, not that a port is open.
"""

import asyncio
import logging
import subprocess
import time
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from rollbus.local.kafka_config import LOG4J, server_properties
from rollbus.local.kafka_jars import find_jars, find_java
from rollbus.local.processes import POLL_S, ProcessIdentity, end, is_running, spawn
from rollbus.local.settings import HOST
from rollbus.schemas.errors import ConfigurationError, UnavailableError

logger = logging.getLogger(__name__)

HEAP = ("-Xms128m", "-Xmx400m", "-XX:+UseSerialGC")
START_TIMEOUT_S = 90.0
"""Three seconds on an idle machine; long enough for one that is busy with a build."""
LOG_LINES_SHOWN = 12


class KafkaBroker:
    """One broker; `start`, `wait_until_healthy`, `stop`, in this order, as often as wanted on the same folder."""

    def __init__(
        self, *, folder: Path, client_port: int, controller_port: int, log_path: Path | None = None
    ) -> None:
        self.folder = folder
        self.client_port = client_port
        self.controller_port = controller_port
        self.log_path = log_path or folder / "broker.log"
        self.process: ProcessIdentity | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.client_port}"

    def start(self) -> ProcessIdentity:
        """Write the configuration, format the storage if it is new, and start the broker."""
        command = prepare(self.folder, client_port=self.client_port, controller_port=self.controller_port)
        self.process = spawn(command, log_path=self.log_path)
        return self.process

    def wait_until_healthy(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return once the broker answers; raise UnavailableError with the end of its log if it died or is too slow."""
        deadline = time.monotonic() + timeout_s
        while not is_healthy(self.bootstrap_servers):
            if self.process is not None and not is_running(self.process):
                raise UnavailableError(f"Kafka ended while starting; {log_tail(self.log_path)}")
            if time.monotonic() >= deadline:
                raise UnavailableError(
                    f"Kafka did not answer on {self.bootstrap_servers} within {timeout_s:.0f} s; {log_tail(self.log_path)}"
                )
            time.sleep(POLL_S)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL; nothing if it is not running."""
        if self.process is not None:
            end(self.process)
            self.process = None


def prepare(folder: Path, *, client_port: int, controller_port: int) -> list[str]:
    """Make the folder ready and return the command that runs the broker on it."""
    java, jars = find_java(), find_jars()
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    properties, log4j = folder / "server.properties", folder / "log4j2.properties"
    properties.write_text(
        server_properties(client_port=client_port, controller_port=controller_port, log_dir=data),
        encoding="ascii",
    )
    log4j.write_text(LOG4J, encoding="ascii")
    base = [java, *HEAP, f"-Dlog4j2.configurationFile={log4j.resolve()}", "-cp", f"{jars.resolve()}/*"]
    if not is_formatted(data):
        _format(base, properties)
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
            f"Kafka's data folder {data} is half written: it holds {len(names)} entries but no complete meta.properties, "
            "so an earlier start was cut off; move it away or remove it, and start again"
        )
    return True


def is_healthy(bootstrap_servers: str, *, timeout_s: float = 5.0) -> bool:
    """Whether a client gets metadata from the broker. Not for use inside a running event loop."""
    return asyncio.run(_answers(bootstrap_servers, timeout_s))


def log_tail(path: Path) -> str:
    """The end of a log file, for error messages."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    except OSError:
        return f"it left no log in {path}"
    return f"the end of {path}:\n" + "\n".join(f"  {line}" for line in lines)


def _format(base: list[str], properties: Path) -> None:
    cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    if cluster_id.startswith("-"):  # the tool would read it as an option
        cluster_id = "A" + cluster_id[1:]
    command = [*base, "kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(properties)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ConfigurationError(
            f"Kafka's storage could not be formatted: {(result.stderr or result.stdout).strip()}"
        )
    logger.info("formatted Kafka storage cluster_id=%s properties=%s", cluster_id, properties)


async def _answers(bootstrap_servers: str, timeout_s: float) -> bool:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap_servers, request_timeout_ms=int(timeout_s * 1000))
    kafka_logger = logging.getLogger("aiokafka")
    level = kafka_logger.level
    kafka_logger.setLevel(logging.CRITICAL)  # a broker that is not there yet is no error here
    try:
        async with asyncio.timeout(timeout_s):
            await admin.start()
            cluster = await admin.describe_cluster()
            return bool(cluster["brokers"])
    except (KafkaError, OSError, TimeoutError):
        return False
    finally:
        kafka_logger.setLevel(level)
        await admin.close()
