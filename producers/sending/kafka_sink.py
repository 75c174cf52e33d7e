"""Outbound records to Kafka: an idempotent producer whose acknowledgements are awaited.

Idempotent batches never expire, so with a broker that has gone away `send` waits until it is back; the queue before
it is what is bounded. Every failure that may pass becomes UnavailableError: delivery then sends the same records
again, and readers absorb doubles by event id.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError, TopicAuthorizationFailedError

from rollbus.producers.sending.sink import DELIVERY_THREAD, Outbound
from rollbus.runtime.kafka.clients import kafka_errors, new_producer, start_client, stop_producer
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.codec import decode, record_name
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.principals import split_token
from rollbus.schemas.records.events import RewardReported
from rollbus.schemas.signing import Headers, Signing, make_signature

LINGER_MS = 20
MAX_BATCH_BYTES = 512 * 1024
START_GRACE_S = 0.25
"""How long a start that is cancelled may still take: a process may be waiting for its end."""
TOPIC_S = 2.0
"""How long a topic may take to appear: some clusters make one when it is first asked for."""
STOP_S = 1.0
"""How long a clean stop may take; a producer whose broker is gone never stops cleanly."""
_REFUSAL_ERRORS = (MessageSizeTooLargeError, RecordListTooLargeError, TopicAuthorizationFailedError)


class _OtherThreadsOnly(logging.Filter):
    """Drops what the delivery thread logs: the client logs a line for each attempt, the courier one for all."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.threadName != DELIVERY_THREAD


_OTHER_THREADS_ONLY = _OtherThreadsOnly()


def _quiet_client() -> None:
    """Let the Kafka client log nothing from the delivery thread; the host's own clients log on."""
    for name in tuple(logging.root.manager.loggerDict):
        if name.partition(".")[0] == "aiokafka":
            logging.getLogger(name).addFilter(_OTHER_THREADS_ONLY)  # once, however often it is added


class KafkaSink:
    """Sends to the topics named in the records; they must exist."""

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        client_id: str = "rollbus-producer",
        reward_keys: Mapping[str, str] | None = None,
        token: str | None = None,
        signing: Signing | None = None,
    ) -> None:
        """Connect later, in `start`; rewards of the sources in `reward_keys` are signed with their key, and all else
        with a principal's token. A process of the owner gives `signing`, to sign records that name another principal.
        Raises ConfigurationError for a text that is not such a token.
        """
        self._principal = split_token(token) if token else None
        if token and self._principal is None:
            raise ConfigurationError(
                "the token is not the token of a principal; `rollbus token create NAME` prints one"
            )
        self._reward_keys, self._signing = reward_keys or {}, signing or Signing()
        self._connection, self._client_id = connection, client_id
        self._producer: AIOKafkaProducer | None = None
        self._known_topics: set[str] = set()

    async def start(self) -> None:
        """Connect; raises UnavailableError."""
        _quiet_client()
        producer = new_producer(
            self._connection, client_id=self._client_id, linger_ms=LINGER_MS, max_batch_size=MAX_BATCH_BYTES
        )
        with kafka_errors(self._connection):
            self._producer = await start_client(producer, grace_s=START_GRACE_S)

    async def send(self, records: Sequence[Outbound]) -> frozenset[int]:
        """Send in order, wait for every acknowledgement; return the positions refused for good."""
        if self._producer is None:
            raise UnavailableError("the Kafka sink is not started")
        refused_places, acknowledgements = set(), []
        try:
            for topic in {record.topic for record in records} - self._known_topics:
                await self._require(self._producer, topic)
            for position, record in enumerate(records):
                try:
                    future = await self._producer.send(
                        record.topic,
                        record.value,
                        key=record.key,
                        timestamp_ms=record.timestamp_ms,
                        headers=self._signature(record),
                    )
                    acknowledgements.append((position, future))
                except _REFUSAL_ERRORS:
                    refused_places.add(position)
            results = await asyncio.gather(*(future for _, future in acknowledgements), return_exceptions=True)
        except (KafkaError, OSError) as error:
            raise UnavailableError(f"Kafka took no records: {error!r}") from error
        for (position, _), result in zip(acknowledgements, results, strict=True):
            if isinstance(result, _REFUSAL_ERRORS):
                refused_places.add(position)
            elif isinstance(result, BaseException):
                raise UnavailableError(f"Kafka did not acknowledge {records[position].topic}: {result!r}") from result
        return frozenset(refused_places)

    async def _require(self, producer: AIOKafkaProducer, topic: str) -> None:
        """Raise UnavailableError for a topic that does not exist: the client would look for it much longer than a
        process that ends can wait, and not say which it is.
        """
        try:
            async with asyncio.timeout(TOPIC_S):
                await producer.partitions_for(topic)
        except TimeoutError as error:
            servers = self._connection.bootstrap_servers
            if not await producer.client.force_metadata_update():
                raise UnavailableError(f"no broker at {servers} answers") from error
            raise UnavailableError(
                f"topic {topic} does not exist on {servers}; create it with `rollbus topics create`, "
                "or correct `namespace`"
            ) from error
        except TopicAuthorizationFailedError:  # each record of it is refused by itself
            return
        self._known_topics.add(topic)

    def _signature(self, record: Outbound) -> Headers:
        if self._reward_keys and record_name(record.value) == RewardReported.__name__:
            source = decode(record.value).source
            if (key := self._reward_keys.get(source)) is not None:
                return make_signature(source, key.encode(), record.topic, record.key, record.value)
        if record.principal:
            return self._signing.sign(record.principal, record.topic, record.key, record.value)
        if self._principal is None:
            return []
        return make_signature(*self._principal, record.topic, record.key, record.value)

    async def close(self) -> None:
        """Let go of the connection."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(Exception):
                await stop_producer(producer, timeout_s=STOP_S)
