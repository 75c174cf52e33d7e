"""Who is forgotten: episodes by label or id, with their sub-agents."""

from collections.abc import AsyncIterator

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.ids import trajectory_id
from rollbus.schemas.topics import Topic
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.operate import forget_on_log as forget_kafka
from rollbus.streams.operate.forget import RootedEpisode, Search, exclusions
from tests.builders import make_started
from tests.streams.exactly_once.test_transaction_parts import Raw


def search(**labels: str) -> Search:
    matching = Search(labels)
    matching.add_start(make_started("a", labels={"user": "ann", "team": "x"}))
    matching.add_start(make_started("b", labels={"user": "bob", "team": "x"}))
    matching.add_start(make_started("a-sub", root="a"))
    return matching


def test_a_label_finds_the_episode_and_what_belongs_to_it() -> None:
    assert search(user="ann").matching_episodes() == [RootedEpisode("a", "a"), RootedEpisode("a-sub", "a")]
    assert search(user="ann", team="y").matching_episodes() == []
    assert [episode.episode_id for episode in search(team="x").matching_episodes()] == ["a", "a-sub", "b"]


def test_an_empty_search_finds_episodes_by_id_alone() -> None:
    matching = Search({}, frozenset({"b"}))
    matching.add_start(make_started("a"))
    matching.add_start(make_started("b"))
    assert matching.matching_episodes() == [RootedEpisode("b", "b")]


def test_attempts_that_repeat_a_persons_opening_are_found_with_it() -> None:
    matching = Search({}, frozenset({"a"}))
    matching.add_start(make_started("a"))
    for attempt, origin in (("again", "a"), ("other", "b")):
        matching.add_start(make_started(attempt, labels={"resampled_from": trajectory_id(origin)}))
    matching.add_start(make_started("again-sub", root="again"))
    assert matching.matching_episodes() == [RootedEpisode("a", "a")]
    assert matching.attempts_at(["a"]) == [RootedEpisode("again", "again"), RootedEpisode("again-sub", "again")]
    assert matching.attempts_at(["again"]) == []


def test_forgetting_twice_says_the_same() -> None:
    first_exclusions, second_exclusions = (
        exclusions([RootedEpisode("a", "a")], reason="asked", now_ms=now) for now in (1, 2)
    )
    assert first_exclusions[0].event_id == second_exclusions[0].event_id


async def test_the_log_is_searched_for_episode_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [None, b"not ours", *(encode(make_started(name, labels={"user": "ann"})) for name in "ab")]

    async def read_whole(settings: StreamSettings, topic: Topic) -> AsyncIterator[Raw]:
        for offset, value in enumerate(values):
            yield Raw(offset, value)

    monkeypatch.setattr(forget_kafka, "read_whole", read_whole)
    matching = Search({"user": "ann"})
    await forget_kafka.search_log(StreamSettings(), matching, lambda count: None)
    assert [episode.episode_id for episode in matching.matching_episodes()] == ["a", "b"]
