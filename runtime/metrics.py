"""What processes measure for Prometheus, in its conventions: seconds as histograms, `_total` counters, build info.

A process exports what it measures: what has labels has no sample before, and what has none is in the registry of its
kind, since a 0 of another process would pass for an answer. Counters that a part keeps anyway, such as a worker's of
each partition, are text of its own after these.
"""

import platform

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""From a transaction to a slow insert."""
LONG_S = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Steps and attempts of agents."""

SINK, RESAMPLE, ALARMS = CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
OF_KIND = {"sink": SINK, "resample": RESAMPLE, "alarms": ALARMS}
"""By kind of process, its measurements without labels."""

BUILD = Info("rollbus_build", "The release of rollbus and the kind of process.")
TRANSACTION_SECONDS = Histogram(
    "rollbus_stream_transaction_seconds", "From a batch to its committed transaction.", ["stage"], buckets=LATENCIES_S
)
INSERT_SECONDS = Histogram(
    "rollbus_sink_write_seconds", "From cut ranges to committed offsets.", buckets=LATENCIES_S, registry=SINK
)
SINK_RECORDS = Counter("rollbus_sink_records", "Records that the sink has committed.", registry=SINK)
SINK_ROWS = Counter("rollbus_sink_rows", "Rows that ClickHouse has confirmed.", registry=SINK)
SINK_DEAD_LETTERS = Counter("rollbus_sink_dead_letters", "Records that the sink could not read.", registry=SINK)
SINK_RETRIES = Counter("rollbus_sink_retries", "Calls of Kafka or ClickHouse that were made again.", registry=SINK)
STEP_SECONDS = Histogram("rollbus_trainer_step_seconds", "From an opened step to its end.", ["run"], buckets=LONG_S)
STEPS = Counter("rollbus_trainer_steps", "Steps that this trainer has closed.", ["run", "outcome"])
REWARD = Gauge("rollbus_trainer_reward", "Mean reward of the newest completed step.", ["run"])
TAKE_SECONDS = Histogram(
    "rollbus_logger_take_seconds", "From a record's offer until it was taken.", ["logger"], buckets=LATENCIES_S
)
ATTEMPT_SECONDS = Histogram(
    "rollbus_resample_attempt_seconds", "One attempt of the agent.", buckets=LONG_S, registry=RESAMPLE
)
REQUEST_SECONDS = Histogram(
    "rollbus_http_request_seconds",
    "From a request's head to the end of its answer.",
    ["method", "status"],
    buckets=LATENCIES_S,
)
LAG = Gauge("rollbus_consumer_lag", "Records that a consumer group has still to read.", ["group", "topic"])
BEAT_AGE_SECONDS = Gauge(
    "rollbus_heartbeat_age_seconds", "Since a process's last heartbeat, by the broker's clock.", ["kind", "process"]
)
STEP_AGE_SECONDS = Gauge("rollbus_step_age_seconds", "Since a run's newest closed step.", ["run"])
RUN_REWARD = Gauge("rollbus_run_reward", "Mean reward of a run's newest completed step, from the log.", ["run"])
DEAD_LETTERS = Gauge(
    "rollbus_dead_letters",
    "Records that have a dead letter in Kafka; what the sink could not read is not among them.",
    registry=ALARMS,
)
FIRING = Gauge("rollbus_alarm_firing", "1 while an alarm fires.", ["alarm", "subject"])


def describe_build(kind: str, version: str) -> None:
    """Say which process this is."""
    BUILD.info({"kind": kind, "version": version, "python": platform.python_version()})


def render(kind: str) -> str:
    """Return all samples of a process of this kind in the text format."""
    registries = [REGISTRY, OF_KIND[kind]] if kind in OF_KIND else [REGISTRY]
    return "".join(generate_latest(registry).decode() for registry in registries)
