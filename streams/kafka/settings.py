"""The settings of a stream worker: cluster, namespace, and the trade of latency against throughput."""

from functools import partial
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from rollbus.runtime.kafka.connection import KafkaConnection
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
    linger_ms: int = Field(default=20, ge=0)
    """How long a small batch waits for more, and the broker holds a fetch that finds nothing (50 ms at least): fewer
    transactions and requests at low rates, for that much more latency."""
    tick_interval_ms: int = Field(default=1_000, ge=10)


class StreamSettings(WorkerSection):
    """What one worker process takes: its section, what all processes share, and times that no operator knows better."""

    kafka: KafkaConnection = KafkaConnection()
    namespace: str = DEFAULT_NAMESPACE
    """Prefix of every topic, consumer group and transactional id."""
    signing: Signing = Signing()
    session_timeout_s: float = 6.0
    """How long the partitions of a killed worker wait: as short as a broker allows by default."""
    transaction_timeout_s: float = 10.0
    """Deadline of one transaction, which takes milliseconds; an open one holds back every read-committed reader."""
    least_fetch_wait_ms: int = 50
    """How long the broker holds a fetch that finds nothing, unless `linger_ms` is longer: a shorter time asks it often
    for nothing."""
    equal_failures: int = 5
    """So many equal failures in a row on the same batch end the process: what passes has passed by then."""
    stalled_s: float = 300.0
    """A position that lags and does not move for so long ends the process: longer than an operator needs to look at it,
    after `health: alarms: waiting_s:` has named it."""

    @property
    def fetch_max_wait_ms(self) -> int:
        """How long the broker holds a fetch that finds nothing."""
        return max(self.least_fetch_wait_ms, self.linger_ms)

    def signer_of(self, topic: "Topic") -> SignerOf | None:
        """Return what names the signer of a topic's records; None where all of them are the owner's."""
        if not (topic.is_open and self.signing.is_used):
            return None
        return partial(self.signing.signer_of, topic.full_name(self.namespace))
