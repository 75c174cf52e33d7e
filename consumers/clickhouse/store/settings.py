"""Settings of the sink and the saved questions: where Kafka and ClickHouse are, and how large an insert may grow.

For the embedded endpoint and for a ClickHouse server only these values differ.
"""

import re
from itertools import pairwise

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.namespaces import DEFAULT_NAMESPACE

_HOST = re.compile(r"[^\s:/]+|\[[0-9A-Fa-f:.]+\]")


class TableRetention(BaseModel):
    """Days after which ClickHouse deletes what episodes said; what is left out is kept as long as the one below it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens_days: int | None = Field(default=None, ge=1)
    """Token ids and log-probs, most of the disk."""
    texts_days: int | None = Field(default=None, ge=1)
    """Messages, answers, tool calls, and the bytes of dead letters."""
    episodes_days: int | None = Field(default=None, ge=1)
    """Events, episodes, trajectories, rewards, scores; None keeps them for ever. Groups and steps are always kept."""

    @model_validator(mode="after")
    def _require_details_to_end_first(self) -> "TableRetention":
        limits = [(name, days) for name in type(self).model_fields if (days := getattr(self, name)) is not None]
        for (shorter, few), (longer, many) in pairwise(limits):
            if few > many:
                raise ValueError(
                    f"{shorter} is {few} and {longer} only {many}: nobody could say what these rows belong to; "
                    f"set {shorter} to {many} or less"
                )
        return self


class ClickHouseSettings(BaseModel):
    """One ClickHouse database over HTTP."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8123, gt=0, lt=65536)
    user: str = "default"
    password: SecretStr = SecretStr("")
    database: str = Field(default="rollbus", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    cluster: str | None = Field(default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    """Name of a cluster in the server's `remote_servers`: its tables are replicated and spread over its shards."""
    secure: bool = False
    """True for HTTPS."""
    timeout_s: float = Field(default=60.0, gt=0)
    """For one request; an insert that takes longer is tried again under the same token."""
    retention: TableRetention = TableRetention()
    """The sink gives it to the tables when it starts."""

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        if _HOST.fullmatch(host) is None:
            raise ValueError("give only a host's name or address; `port` and `secure` (for https) hold the rest")
        return host


class SinkSection(BaseModel):
    """How the sink gathers records into inserts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_bytes: int = Field(default=32 * 1024 * 1024, ge=1)
    """Bytes of the records that are buffered over all partitions before they are written; as many again while those are
    being written. Their rows take several times as much memory."""
    linger_ms: int = Field(default=1_000, ge=0)
    """Longest time for which a record waits for others."""


class SinkSettings(SinkSection):
    """One sink: a member of the consumer group `{namespace}sink`."""

    kafka: KafkaConnection = KafkaConnection()
    namespace: str = DEFAULT_NAMESPACE
    clickhouse: ClickHouseSettings = ClickHouseSettings()
    max_rows: int = 50_000
    """Rows of one insert: with more ClickHouse gains nothing, and small records would take much memory as rows."""

    @property
    def group_id(self) -> str:
        """The Kafka consumer group."""
        return f"{self.namespace}sink"
