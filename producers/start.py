"""`init`: settings and addresses to a running recorder. Kafka is imported when the first event is sent."""

import os
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from pydantic import ValidationError

from rollbus.producers.delivery import process_hooks
from rollbus.producers.delivery.counters import Counters
from rollbus.producers.delivery.sink import EventSink
from rollbus.producers.episode.settings import CaptureMode, RecorderSettings
from rollbus.producers.recorder import Recorder
from rollbus.producers.turns.redaction import Field
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.kafka.connection import KafkaConnection
from rollbus.schemas.records.events import LogprobMode
from rollbus.schemas.topics import DEFAULT_NAMESPACE


def init(
    *,
    bootstrap_servers: str | None = None,
    security: KafkaConnection | None = None,
    sink: EventSink | None = None,
    namespace: str = DEFAULT_NAMESPACE,
    producer: str = "",
    environment: str = "",
    agent: str = "",
    enabled: bool = True,
    sample_rate: float = 1.0,
    redact: Callable[[str], str] | None = None,
    withhold: Collection[Field] = (),
    logprobs: CaptureMode = "force",
    logprob_mode: LogprobMode = "unknown",
    max_queue_events: int = 50_000,
    max_queue_bytes: int = 128 * 1024 * 1024,
    report_interval_s: float = 30.0,
    spool_folder: Path | str | None = None,
    spool_bytes: int = 256 * 1024 * 1024,
    reward_keys: Mapping[str, str] | None = None,
    route: Collection[str] = (),
) -> Recorder:
    """Return a recorder that sends to a Kafka cluster, or to `sink`; raises ConfigurationError.

    `security` is the whole connection with its credentials; `bootstrap_servers` alone means plain text. A broker
    that does not answer is not an error: events wait in memory, within the queue's bounds, or on disk in
    `spool_folder`, which outlives the process. Rewards of a source in `reward_keys` are signed with its key.
    Calls for a model in `route` ask for the version that was decided for the episode, such as `agent@212`.
    """
    connection = security or KafkaConnection()
    if bootstrap_servers is not None and sink is None and enabled:
        connection = _at(connection, bootstrap_servers)
    settings = RecorderSettings(
        namespace=namespace,
        producer=producer,
        environment=environment,
        agent=agent,
        enabled=enabled,
        sample_rate=sample_rate,
        redact=redact,
        withhold=frozenset(withhold),
        logprobs=logprobs,
        logprob_mode=logprob_mode,
        max_queue_events=max_queue_events,
        max_queue_bytes=max_queue_bytes,
        report_interval_s=report_interval_s,
        spool_bytes=spool_bytes,
        max_record_bytes=connection.max_record_bytes,
    )
    counters = Counters()

    def make_direct() -> EventSink:
        if sink is not None:
            return sink
        with process_hooks.importing:
            from rollbus.producers.delivery.kafka_sink import KafkaSink

        return KafkaSink(connection, client_id=f"rollbus-{producer or 'producer'}", reward_keys=reward_keys)

    def make_spooled() -> EventSink:
        with process_hooks.importing:
            from rollbus.producers.delivery.spool import Spool
            from rollbus.producers.delivery.spool_sink import SpoolSink

        folder, owner = Path(spool_folder or ""), f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
        return SpoolSink(make_direct, lambda: Spool(folder, owner=owner, quota_bytes=settings.spool_bytes), counters)

    recorder = Recorder(settings, make_spooled if spool_folder is not None else make_direct, counters=counters)
    if spool_folder is not None and enabled:
        process_hooks.flush_all_on_sigterm()
    if route and enabled:
        from rollbus.producers.capture.routing import Routing, following

        follow = following(connection, namespace) if sink is None else lambda router: None
        recorder.outbox.routed = Routing(route, follow).routed
    return recorder


def _at(connection: KafkaConnection, bootstrap_servers: str) -> KafkaConnection:
    """Return the connection with another address; raises ConfigurationError for what is not an address."""
    try:
        return KafkaConnection.model_validate({**dict(connection), "bootstrap_servers": bootstrap_servers})
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"bootstrap_servers: {reason}") from error
