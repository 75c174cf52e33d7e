"""`init`: settings and addresses to a running recorder.

What the delivery thread needs is imported here, in the thread of the caller, because an import of aiokafka in another
thread does harm. aiokafka defines a Protocol of an Iterable: meanwhile the application's `isinstance(None, Iterable)`
can be true, and Python keeps the answer. And a process that is forked during the import waits for the module for ever.
"""

import os
import uuid
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from pydantic import ValidationError

from rollbus.producers.episode.settings import CaptureMode, RecorderSettings
from rollbus.producers.recorder import Recorder
from rollbus.producers.sending import process_hooks
from rollbus.producers.sending.counters import Counters
from rollbus.producers.sending.sink import EventSink, MemorySink
from rollbus.producers.turns.redaction import Field
from rollbus.runtime.credentials import find_own_token
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.namespaces import DEFAULT_NAMESPACE
from rollbus.schemas.principals import split_token
from rollbus.schemas.records.events import LogprobMode

MakeSink = Callable[[], EventSink]


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
    token: str | None = None,
    route: Collection[str] = (),
) -> Recorder:
    """Return a recorder that sends to a Kafka cluster, or to `sink`; raises ConfigurationError.

    `security` is the whole connection with its credentials; `bootstrap_servers` alone means plain text. A broker
    that does not answer is not an error: events wait in memory, within the queue's bounds, or on disk in
    `spool_folder`, which outlives the process. Rewards of a source in `reward_keys` are signed with its key.
    Everything else is signed with `token`, a principal's: by default ROLLBUS_TOKEN, or else the agents' token of the
    stack on this machine.
    Calls for a model in `route` ask for the version that was decided for the episode, such as `agent@212`.
    """
    connection = security or KafkaConnection()
    if bootstrap_servers is not None and sink is None and enabled:
        connection = _replace_address(connection, bootstrap_servers)
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

    if not enabled:
        return Recorder(settings, MemorySink, counters=counters)  # a disabled recorder sends nothing
    make_sink = _prepare_kafka_sink(connection, producer, reward_keys, token) if sink is None else lambda: sink
    if spool_folder is not None:
        make_sink = _add_spool(make_sink, Path(spool_folder), spool_bytes, counters)
        process_hooks.flush_all_on_sigterm()
    recorder = Recorder(settings, make_sink, counters=counters)
    if route:
        from rollbus.producers.capture.routing import VersionRouting, make_follower

        follow = make_follower(connection, namespace) if sink is None else lambda router: None
        recorder.outbox.add_version = VersionRouting(route, follow).add_version
    return recorder


def _prepare_kafka_sink(
    connection: KafkaConnection, producer: str, reward_keys: Mapping[str, str] | None, token: str | None
) -> MakeSink:
    from rollbus.producers.sending.kafka_sink import KafkaSink

    principal_token = token or find_own_token(connection.bootstrap_servers)
    if principal_token and split_token(principal_token) is None:
        raise ConfigurationError("`token` is not the token of a principal; `rollbus token create NAME` prints one")
    name = f"rollbus-{producer or 'producer'}"
    return lambda: KafkaSink(connection, client_id=name, reward_keys=reward_keys, token=principal_token)


def _add_spool(make_direct_sink: MakeSink, folder: Path, quota_bytes: int, counters: Counters) -> MakeSink:
    """Return the maker of a sink with a spool that only this process writes."""
    from rollbus.producers.sending.spool import Spool
    from rollbus.producers.sending.spool_sink import SpoolSink

    def make_spool() -> Spool:
        return Spool(folder, owner=f"{os.getpid()}-{uuid.uuid4().hex[:8]}", quota_bytes=quota_bytes)

    return lambda: SpoolSink(make_direct_sink, make_spool, counters)


def _replace_address(connection: KafkaConnection, bootstrap_servers: str) -> KafkaConnection:
    """Return the connection with another address; raises ConfigurationError for what is not an address."""
    try:
        return KafkaConnection.model_validate({**dict(connection), "bootstrap_servers": bootstrap_servers})
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigurationError(f"bootstrap_servers: {reason}") from error
