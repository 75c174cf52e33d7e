"""The configuration of the one-node Kafka broker: settings → `server.properties` and `log4j2.properties`.

`BROKER_SETTINGS` is what the local broker and the container in docker-compose.yml share; a test compares the two.
"""

from collections.abc import Mapping
from pathlib import Path

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.limits import MAX_MESSAGE_BYTES
from rollbus.stack_settings import HOST

BROKER_SETTINGS: dict[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "CLIENT",
    "controller.listener.names": "CONTROLLER",
    # Topics are made by `rollbus topics create` with their own partitions and retention, never by accident.
    "auto.create.topics.enable": "false",
    "num.partitions": "1",
    # One node: every copy is the only one.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "8",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "8",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "message.max.bytes": str(MAX_MESSAGE_BYTES),
    "replica.fetch.max.bytes": str(MAX_MESSAGE_BYTES),
    # A worker that joins starts at once; one that died is noticed after its own session timeout, 6 s at least.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "6000",
    # A dead owner's transaction holds back every read_committed reader; look for them each second, not each ten.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # Small threads and buffers for a heap of 400 MB (the cleaner alone would take 128 MB).
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "socket.request.max.bytes": "104857600",
}

LOG4J = """\
status = warn
appender.stdout.type = Console
appender.stdout.name = stdout
appender.stdout.layout.type = PatternLayout
appender.stdout.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.stdout.ref = stdout
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
logger.broker.name = kafka.server.BrokerServer
logger.broker.level = info
"""


def server_properties(
    *, client_port: int, controller_port: int, log_dir: Path, changes: Mapping[str, str] | None = None
) -> str:
    """The text of server.properties for a broker on loopback with its data in `log_dir`; `changes` win.

    Raises ConfigurationError for a folder that Kafka would take for several, or whose name it would cut.
    """
    if {",", "\n", "\r"} & set(str(log_dir.resolve())):
        raise ConfigurationError(
            f"Kafka cannot keep its data in {str(log_dir.resolve())!r}: a comma or a line end would end the folder's "
            "name; set `stack: data_dir:` to a folder without one"
        )
    client = f"CLIENT://{HOST}:{client_port}"
    settings = {
        **BROKER_SETTINGS,
        "listeners": f"{client},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": client,
        "controller.quorum.voters": f"{BROKER_SETTINGS['node.id']}@{HOST}:{controller_port}",
        "log.dirs": str(log_dir.resolve()),
        **(changes or {}),
    }
    return "".join(f"{name}={_escape(value)}\n" for name, value in settings.items())


def _escape(value: str) -> str:
    """Escape for the Java properties format: a backslash starts an escape, which is of 16 bits; the file is Latin-1."""
    data = value.replace("\\", "\\\\").encode("utf-16-be", "surrogatepass")
    units = (int.from_bytes(data[at : at + 2]) for at in range(0, len(data), 2))
    return "".join(chr(unit) if unit < 128 else f"\\u{unit:04x}" for unit in units)
