"""Which topics a namespace needs and how each must be configured, from the one table in schemas; and its picture."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rollbus.schemas.topics import HEARTBEATS, STAGE_INPUTS, TOPICS, Topic
from rollbus.streams.kafka import names
from rollbus.streams.kafka.settings import StreamSettings

HOUR_MS = 3_600_000
SEGMENT_MS = HOUR_MS
"""Compaction skips the newest segment, so a changelog's segments must end after some time."""
MOST_NAMED = 3
"""So many of the topics that do not exist are named: on an empty broker it is all of them."""
COMPACTION_LAG_MS = 24 * HOUR_MS
"""Until when what is deleted from a changelog is also gone from the broker's disk."""
BROKERS_CLOCK = ("message.timestamp.type", "LogAppendTime")
"""A record's timestamp is when the broker took it: no client's clock holds back retention, or is refused."""

Retention = Literal["time", "forever", "compact"]


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic as the broker should have it."""

    name: str
    partitions: int
    retention: Retention
    config: tuple[tuple[str, str], ...]
    """Broker settings that must hold."""
    wished: tuple[tuple[str, str], ...] = (BROKERS_CLOCK,)
    """Settings for creation alone: a topic without them works as long as all clocks are right."""


def topic_specs(settings: StreamSettings, stages: Iterable[Any] = ()) -> list[TopicSpec]:
    """Return every topic of the namespace: the table's, a changelog per stage, the ticker's own, the heartbeats."""
    specs = [_spec(topic.full_name(settings.namespace), topic, topic.retention, settings) for topic in TOPICS]
    if settings.signing.signed_since:  # what came before is believed by the broker's clock
        open_topics = {topic.full_name(settings.namespace) for topic in TOPICS if topic.is_open}
        specs = [
            replace(spec, config=(*spec.config, BROKERS_CLOCK)) if spec.name in open_topics else spec for spec in specs
        ]
    for stage in stages:
        changelog = names.changelog_topic(settings.namespace, stage.name)
        specs.append(_add_compaction_lag(_spec(changelog, stage.input, "compact", settings)))
    ticker = names.changelog_topic(settings.namespace, names.TICKER)
    specs.append(TopicSpec(ticker, 1, "compact", _config("compact", settings)))
    specs.append(_add_compaction_lag(_spec(HEARTBEATS.full_name(settings.namespace), HEARTBEATS, "compact", settings)))
    return specs


def _add_compaction_lag(spec: TopicSpec) -> TopicSpec:
    return replace(spec, wished=(*spec.wished, ("max.compaction.lag.ms", str(COMPACTION_LAG_MS))))


def partitions_of(topic: Topic, settings: StreamSettings) -> int:
    """Return how many partitions a topic has."""
    return 1 if topic.partitions == "one" else settings.event_partitions


def _spec(name: str, topic: Topic, retention: Retention, settings: StreamSettings) -> TopicSpec:
    return TopicSpec(name, partitions_of(topic, settings), retention, _config(retention, settings))


def _config(retention: Retention, settings: StreamSettings) -> tuple[tuple[str, str], ...]:
    limit = ("max.message.bytes", str(settings.kafka.max_message_bytes))
    if retention == "compact":
        return (limit, ("cleanup.policy", "compact"), ("segment.ms", str(SEGMENT_MS)))
    kept_ms = settings.retention_hours * HOUR_MS if retention == "time" else -1
    return (limit, ("cleanup.policy", "delete"), ("retention.ms", str(kept_ms)))


def find_mistakes(
    specs: Sequence[TopicSpec], partitions: Mapping[str, int], configs: Mapping[str, dict[str, str]]
) -> list[str]:
    """Describe what is wrong with the topics, a line for all that do not exist and each other mistake."""
    missing = [spec.name for spec in specs if spec.name not in partitions]
    first_missing, more = ", ".join(missing[:MOST_NAMED]), len(missing) - MOST_NAMED
    first_missing += f" and {more} more" if more > 0 else ""
    verb = "does" if len(missing) == 1 else "do"
    wrong = [f"{first_missing} {verb} not exist; run `rollbus topics create`"] if missing else []
    for spec in specs:
        if spec.name in partitions:
            wrong += mismatches(spec, partitions=partitions[spec.name], config=configs.get(spec.name, {}))
    return wrong


def mismatches(spec: TopicSpec, *, partitions: int, config: dict[str, str]) -> list[str]:
    """Describe what is wrong with a topic that exists; empty if all is right."""
    wrong = []
    if partitions != spec.partitions:
        wrong.append(
            f"{spec.name} has {partitions} partitions, not {spec.partitions}: keys of topics that belong together "
            "would not meet; set `event_partitions` to the first number, or use a new namespace"
        )
    for key, expected_value in spec.config:
        actual = config.get(key)
        if actual is None or _satisfies(key, actual, expected_value):
            continue
        wrong.append(
            f"{spec.name} has {key}={actual}, not {expected_value}; change it with your Kafka tools or the settings"
        )
    return wrong


def _satisfies(key: str, actual: str, expected_value: str) -> bool:
    """Say whether a setting is good enough: a larger limit is, and segments may have any length."""
    if key == "max.message.bytes":
        return int(actual) >= int(expected_value)
    return key == "segment.ms" or actual == expected_value


def topology_mermaid() -> str:
    """Return the flow as a mermaid flowchart: programs round, topics square."""
    lines = ["flowchart LR"]
    programs: set[str] = set()
    for topic in TOPICS:
        lines.append(f'  {_id(topic.name)}["{topic.name}<br/>by {topic.key}"]')
        for program in (*topic.written_by, *topic.read_by):
            if program not in programs:
                programs.add(program)
                lines.append(f'  {_id(program)}_("{program}")')
        lines += [f"  {_id(writer)}_ --> {_id(topic.name)}" for writer in topic.written_by if writer != "ticker"]
        lines += [f"  {_id(topic.name)} --> {_id(reader)}_" for reader in topic.read_by]
    lines += [f"  ticker_ -.-> {_id(topic.name)}" for topic in STAGE_INPUTS.values() if "ticker" in topic.written_by]
    return "\n".join(lines) + "\n"


def _id(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)
