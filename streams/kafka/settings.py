"""The settings of a stream worker: cluster, namespace, and the trade of latency against throughput."""

from functools import partial
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.limits import FETCH_BYTES
from rollbus.schemas.namespaces import DEFAULT_NAMESPACE
from rollbus.schemas.signing import SignerOf, Signing

if TYPE_CHECKING:
    from rollbus.schemas.topics import Topic


class WorkerSection(BaseModel):
    """The worker processes, and the topics that they need."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    event_partitions: int = Field(default=4, ge=1)
    """Partitions of the event topics; changing it for an existing namespace breaks the history of every key."""
    replication_factor: int = Field(default=1, ge=1)
    retention_hours: int = Field(default=7 * 24, ge=1)
    """How long event topics are kept; a replay cannot begin earlier."""
    session_timeout_s: float = Field(default=6.0, ge=1)
    """How long the partitions of a killed worker wait; the broker's own minimum is 6 s."""
    transaction_timeout_s: float = Field(default=10.0, gt=0)
    """Deadline of one transaction; an open one holds back every read-committed reader."""
    linger_ms: int = Field(default=20, ge=0)
    """How long a small batch waits for more: fewer transactions at low rates for that much more latency."""
    fetch_max_wait_ms: int = Field(default=50, ge=1)
    """How long the broker holds a fetch that finds nothing. A larger value means fewer requests of an idle worker, and
    that much more latency at low rates."""
    max_partition_fetch_bytes: int = Field(default=FETCH_BYTES, ge=1)
    """What a worker asks of a partition at a time; a larger record comes alone."""
    tick_interval_ms: int = Field(default=1_000, ge=10)
    equal_failures: int = Field(default=5, ge=1)
    """So many equal failures in a row on the same batch end the process."""
    stalled_s: float = Field(default=300.0, gt=0)
    """A position that lags and does not move for so long ends the process."""


class StreamSettings(WorkerSection):
    """What one worker process takes: its section, and what all processes share."""

    kafka: KafkaConnection = KafkaConnection()
    namespace: str = DEFAULT_NAMESPACE
    """Prefix of every topic, consumer group and transactional id."""
    signing: Signing = Signing()

    def signer_of(self, topic: "Topic") -> SignerOf | None:
        """Return what names the signer of a topic's records; None where all of them are the owner's."""
        if not (topic.is_open and self.signing.is_used):
            return None
        return partial(self.signing.signer_of, topic.full_name(self.namespace))
