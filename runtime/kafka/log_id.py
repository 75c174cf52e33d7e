"""Topics → which logs they are: the cluster's id, and the id that the broker gave to the topic when it was made.

aiokafka 0.14 asks for metadata in version 5 at most, in which topics have no ids yet; here it is asked in version 10.
"""

from collections.abc import Collection
from io import BytesIO
from typing import Any
from uuid import UUID

from aiokafka.errors import UnknownTopicOrPartitionError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest_v5
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from rollbus.runtime.log_mark import LogId

NO_TOPIC = UUID(int=0)


class _Uuid(AbstractType[UUID]):  # type: ignore[misc]
    @classmethod
    def encode(cls, value: UUID) -> bytes:
        return value.bytes

    @classmethod
    def decode(cls, data: BytesIO) -> UUID:
        return UUID(bytes=data.read(16))


_TEXT = CompactString("utf-8")
_BROKER = (("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), ("tags", TaggedFields))
_NUMBERS = CompactArray(Int32)
_PARTITION = (
    *(("error_code", Int16), ("partition", Int32), ("leader", Int32), ("leader_epoch", Int32)),
    *(("replicas", _NUMBERS), ("isr", _NUMBERS), ("offline_replicas", _NUMBERS), ("tags", TaggedFields)),
)
_TOPIC = (
    *(("error_code", Int16), ("topic", _TEXT), ("topic_id", _Uuid), ("is_internal", Boolean)),
    *(("partitions", CompactArray(*_PARTITION)), ("authorized_operations", Int32), ("tags", TaggedFields)),
)


class _Metadata10(Response):  # type: ignore[misc]
    API_KEY, API_VERSION = 3, 10
    SCHEMA = Schema(
        *(("throttle_time_ms", Int32), ("brokers", CompactArray(*_BROKER)), ("cluster_id", _TEXT)),
        *(("controller_id", Int32), ("topics", CompactArray(*_TOPIC))),
        *(("authorized_operations", Int32), ("tags", TaggedFields)),
    )


class _AskMetadata10(RequestStruct):  # type: ignore[misc]
    API_KEY, API_VERSION, RESPONSE_TYPE, FLEXIBLE_VERSION = 3, 10, _Metadata10, True
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", _TEXT), ("tags", TaggedFields))),
        *(("allow_auto_topic_creation", Boolean), ("include_cluster", Boolean), ("include_topics", Boolean)),
        ("tags", TaggedFields),
    )


class _AskForIds(Request[_AskMetadata10]):  # type: ignore[misc]
    """Asks for topics by name and makes none."""

    API_KEY = 3

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: Any) -> Any:
        """Return the request in the broker's version."""
        if request_struct_class is MetadataRequest_v5:
            return MetadataRequest_v5(list(self._topics), False)
        return _AskMetadata10([(NO_TOPIC, name, {}) for name in self._topics], False, False, False, {})


_AskForIds._CLASSES = (MetadataRequest_v5, _AskMetadata10)


async def read_log_ids(client: Any, topics: Collection[str]) -> dict[str, LogId]:
    """Return which log each topic is, by a started consumer, producer or admin client; raises KafkaError."""
    ids = await find_log_ids(client, topics)
    if missing := sorted(set(topics) - ids.keys()):
        raise UnknownTopicOrPartitionError(", ".join(missing))
    return ids


async def find_log_ids(client: Any, topics: Collection[str]) -> dict[str, LogId]:
    """Do the same for those of the topics that there are."""
    connection = client._client if hasattr(client, "_client") else client.client
    answer = (await connection.send(connection.get_random_node(), _AskForIds(topics))).to_object()
    cluster = answer["cluster_id"] or ""
    return {
        topic["topic"]: LogId(cluster, topic["topic_id"].hex if "topic_id" in topic else "")
        for topic in answer["topics"]
        if not topic["error_code"]
    }
