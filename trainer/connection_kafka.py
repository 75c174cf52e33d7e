"""How the trainer's clients reach the broker, and what their failures mean to the trainer."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IllegalOperation, KafkaError, ProducerFenced, UnknownTopicOrPartitionError
from aiokafka.helpers import create_ssl_context

from rollbus.schemas.errors import ConfigurationError, FencedError, UnavailableError
from rollbus.schemas.topics import MAX_MESSAGE_BYTES


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """Where the broker is and how to prove who we are."""

    bootstrap_servers: str
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    sasl_username: str | None = None
    sasl_password: str | None = None
    ssl_cafile: str | None = None

    def client_options(self) -> dict[str, Any]:
        """Return what every client takes."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": self.security_protocol,
        }
        if self.security_protocol.startswith("SASL"):
            options |= {
                "sasl_mechanism": self.sasl_mechanism,
                "sasl_plain_username": self.sasl_username,
                "sasl_plain_password": self.sasl_password,
            }
        if self.security_protocol.endswith("SSL"):
            options["ssl_context"] = create_ssl_context(cafile=self.ssl_cafile)
        return options

    def reader_options(self) -> dict[str, Any]:
        """Return what every consumer takes: committed records only, and no jump when retention was faster."""
        return {
            **self.client_options(),
            "isolation_level": "read_committed",
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "max_partition_fetch_bytes": 4 * MAX_MESSAGE_BYTES,
        }


@contextmanager
def kafka_errors(what: str) -> Iterator[None]:
    """Turn the client's errors into ours: fenced, or away for now."""
    try:
        yield
    except ProducerFenced as error:
        raise FencedError(f"{what}: a newer trainer of this model has taken over") from error
    except (KafkaError, IllegalOperation, OSError, TimeoutError) as error:
        raise UnavailableError(f"{what}: Kafka does not answer as it should: {error!r}") from error


async def partition_counts(connection: KafkaConnection, topics: Collection[str]) -> Mapping[str, int]:
    """Return how many partitions each topic has; ConfigurationError names every one that is not there."""
    with kafka_errors("describing topics"):
        admin = AIOKafkaAdminClient(**connection.client_options())
        try:
            await admin.start()
            described = await admin.describe_topics(list(topics))
        finally:
            await admin.close()
    missing = [each["topic"] for each in described if each["error_code"] == UnknownTopicOrPartitionError.errno]
    if missing:
        raise ConfigurationError(
            f"topics {', '.join(sorted(missing))} do not exist on {connection.bootstrap_servers}; "
            "create them with `rollbus topics create`, or correct `namespace`"
        )
    return {each["topic"]: len(each["partitions"]) for each in described}
