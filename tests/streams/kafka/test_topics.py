"""The topics that a namespace needs, what is wrong with those there are, and their picture."""

from dataclasses import dataclass

import pytest

from rollbus.schemas.topics import EPISODE_EVENTS, RUN_LOG, STAGE_INPUTS, TOPICS, Topic
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import TopicSpec, find_mistakes, mismatches, topic_specs, topology_mermaid

SETTINGS = StreamSettings(namespace="n.", event_partitions=6)


@dataclass
class Named:
    name: str
    input: Topic


def specs() -> dict[str, TopicSpec]:
    stages = [Named("assembly", EPISODE_EVENTS), Named("curriculum.main", RUN_LOG)]
    return {spec.name: spec for spec in topic_specs(SETTINGS, stages)}


def test_every_topic_of_the_table_and_a_changelog_per_stage_are_wanted() -> None:
    assert {topic.full_name("n.") for topic in TOPICS} < specs().keys()
    assert specs()["n.assembly.changelog"].partitions == 6
    assert specs()["n.curriculum.main.changelog"].partitions == 1
    assert specs()["n.ticker.changelog"].partitions == 1


def test_only_changelogs_and_heartbeats_are_compacted() -> None:
    for spec in specs().values():
        is_compact = spec.name.endswith((".changelog", ".heartbeats"))
        assert (dict(spec.config)["cleanup.policy"] == "compact") == is_compact


def test_a_topic_as_specified_is_right_and_larger_limits_are_too() -> None:
    spec = specs()["n.episode-events"]
    config = {**dict(spec.config), "max.message.bytes": "99999999"}
    assert mismatches(spec, partitions=6, config=config) == []


def test_a_topic_without_the_limit_of_clocks_ahead_is_right_too() -> None:
    spec = specs()["n.episode-events"]
    assert dict(spec.wished) == {"message.timestamp.type": "LogAppendTime"}
    assert mismatches(spec, partitions=6, config={**dict(spec.config), **dict.fromkeys(dict(spec.wished), "1")}) == []


@pytest.mark.parametrize(
    ("partitions", "change", "word"),
    [
        (5, {}, "has 5 partitions, not 6"),
        (6, {"cleanup.policy": "compact"}, "cleanup.policy=compact, not delete"),
        (6, {"max.message.bytes": "1000"}, "max.message.bytes=1000"),
        (6, {"retention.ms": "1"}, "retention.ms=1"),
    ],
)
def test_a_wrong_topic_setting_is_named(partitions: int, change: dict[str, str], word: str) -> None:
    spec = specs()["n.episode-events"]
    (line,) = mismatches(spec, partitions=partitions, config={**dict(spec.config), **change})
    assert line.startswith("n.episode-events")
    assert word in line


def test_any_number_of_missing_topics_is_one_mistake() -> None:
    every = list(specs().values())
    counts = {spec.name: spec.partitions for spec in every}
    configs = {spec.name: dict(spec.config) for spec in every}
    assert find_mistakes(every, counts, configs) == []
    there = {name: count for name, count in counts.items() if name != "n.scores"}
    assert find_mistakes(every, there, configs) == ["n.scores does not exist; run `rollbus topics create`"]
    named = f"n.episode-events, n.aliases, n.trajectories and {len(every) - 3} more"
    assert find_mistakes(every, {}, {}) == [f"{named} do not exist; run `rollbus topics create`"]
    assert len(find_mistakes(every, {**there, "n.drops": 1}, configs)) == 2


def test_the_picture_shows_every_topic_and_every_stage() -> None:
    picture = topology_mermaid()
    assert picture.startswith("flowchart LR\n")
    for name in [topic.name for topic in TOPICS] + list(STAGE_INPUTS):
        assert f'"{name}' in picture
