"""The toolkit's configuration over production traffic: the episodes of the log train, as they were sampled."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from nat.data_models.finetuning import FinetuneRunConfig
from openai import OpenAI

from rollbus.nemo.checks import FinetuneOptions, describe
from rollbus.nemo.components import LogTrajectoryBuilderConfig
from rollbus.nemo.production.log_builder import BusLogBuilder, attempts_at, choose_episodes, copied
from rollbus.producers import MemorySink, init
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.events import EpisodeStarted, Event, Excluded, TurnRecorded, WriterClosed
from tests.nemo.world import Endpoint, document, memory_bus, opened, read, run_epochs

LOG = {"_type": "rollbus_log_builder", "source": "log", "tasks": ["shop"]}


def record_traffic(*, model: str = "agent", unfinished: bool = False) -> list[Event]:
    """Two attempts at each of three examples, four tickets that come once, and another task's; verdicts come later."""
    sink, endpoint = MemorySink(), Endpoint()
    rb = init(sink=sink, namespace="t.", producer="shop", logprob_mode="raw")
    worth: dict[str, float] = {}
    with endpoint.served() as address, OpenAI(base_url=address, api_key="none") as plain:
        client = rb.wrap(plain, function="<workflow>")

        def ask(question: str, **fields: Any) -> None:
            with rb.episode(**fields) as episode:
                messages: Any = [{"role": "user", "content": question}]
                answer = client.chat.completions.create(model=model, messages=messages, temperature=1.0)
            worth[episode.id] = float(int(answer.choices[0].message.content or "0") % 2 == 0)

        for number in range(6):
            ask(f"question {number // 2}", task="shop", example_id=f"e{number // 2}")
        for number in range(4):
            ask(f"ticket {number % 2}", task="shop")
        ask("what else?", task="other")
        for episode_id, reward in worth.items():
            rb.feedback(episode_id, reward=reward, name="good")
        if unfinished:
            rb.start(task="shop")
    rb.close()
    return [event for event in sink.records("episode-events") if isinstance(event, Event)]


def log_document(tmp_path: Path, **builder: Any) -> dict[str, Any]:
    """A configuration without a dataset and without an evaluator: the reward is one of the log."""
    plain = document(tmp_path)
    plain["trajectory_builders"]["b"] = {**LOG, **builder}
    del plain["eval"]
    return plain


async def test_two_epochs_train_on_the_episodes_of_the_log(tmp_path: Path) -> None:
    events = record_traffic(unfinished=True)
    plan = read(tmp_path, log_document(tmp_path))
    async with opened(plan, memory_bus(plan), endpoint := Endpoint()) as components:
        assert isinstance(components.builder, BusLogBuilder)

        async def read_events(config: LogTrajectoryBuilderConfig) -> list[Event]:
            return events

        components.builder.read = read_events
        statuses = await run_epochs(components, 2)
        view = components.run.log.view
    assert [status.status.value for status in statuses] == ["completed"] * 2
    assert endpoint.requests == [], "nothing is played again"
    assert len(view.trajectories) == 20
    first = [record for record in view.trajectories.values() if record.labels["epoch"] == "0"]
    assert {record.labels["task"] for record in first} == {"shop"}
    sampled = Counter(history.token_ids for record in first for history in record.histories)
    turns = [event for event in events if isinstance(event, TurnRecorded)]
    shop = [turn for turn in turns if turn.added_messages[-1].content != "what else?"]
    expected = Counter((turn.prompt_token_ids or b"") + (turn.completion_token_ids or b"") for turn in shop)
    assert sampled == expected, "the ids that were sampled"
    ids = {record.trajectory_id for record in first}
    groups = [group for group in view.groups.values() if group.members[0].trajectory_id in ids]
    assert sorted(len(group.members) for group in groups) == [1, 1, 1, 1, 2, 2, 2]
    assert all(step.trained for step in view.completed.values())
    assert len(view.completed) == 2


def test_turns_of_the_base_model_have_version_zero_of_the_trained_one() -> None:
    events = [
        replace(event, model="base", policy_version=None) if isinstance(event, TurnRecorded) else event
        for event in record_traffic()
    ]
    episodes, _ = choose_episodes(events, LogTrajectoryBuilderConfig(tasks=("shop",)))
    attempt, episode, group = next(attempts_at(episodes, "run", 0, 8))
    copies = list(copied(episode, attempt, group, ("base", "agent")))
    (turn,) = (event for event in copies if isinstance(event, TurnRecorded))
    assert (turn.model, turn.policy_version) == ("agent@0", 0)
    assert isinstance(copies[-1], WriterClosed), "rewards that came later are in before the end"


@pytest.mark.parametrize("ids", [("support", "refund:17", "support:refund", "17"), ("shop", "17", "support", "17")])
def test_examples_of_two_tasks_are_not_compared(ids: tuple[str, str, str, str]) -> None:
    (first_task, first_example, second_task, second_example), events = ids, record_traffic()
    named = {"e0": (first_task, first_example), "e1": (second_task, second_example)}
    for place, event in enumerate(events):
        if isinstance(event, EpisodeStarted) and event.example_id in named:
            task, example_id = named[event.example_id]
            events[place] = replace(event, task=task, example_id=example_id)
    episodes, _ = choose_episodes(events, LogTrajectoryBuilderConfig(tasks=(first_task, second_task)))
    copies = [
        copied(episode, attempt, group, ("base", "agent"))
        for attempt, episode, group in attempts_at(episodes, "run", 0, 8)
        if episode.start.example_id in (first_example, second_example)
    ]
    starts = [event for copy in copies for event in copy if isinstance(event, EpisodeStarted)]
    assert Counter(start.group_size for start in starts) == {2: 4}
    assert len({start.group_id for start in starts}) == len({start.example_id for start in starts}) == 2


@pytest.mark.parametrize(
    ("chosen", "number"),
    [
        ({}, 11),
        ({"tasks": ("other",)}, 1),
        ({"labels": {"tenant": "acme"}}, 0),
        ({"since": datetime.now(UTC) + timedelta(days=1)}, 0),
        ({"until": datetime.now(UTC) + timedelta(days=1), "tasks": ("shop",)}, 10),
        ({"until": datetime(2020, 1, 1, tzinfo=UTC)}, 0),
    ],
)
def test_a_range_and_filters_choose_the_episodes(chosen: dict[str, Any], number: int) -> None:
    episodes, _ = choose_episodes(record_traffic(), LogTrajectoryBuilderConfig(**chosen))
    assert len(episodes) == number


def test_an_incomplete_episode_is_left_out_and_counted() -> None:
    events = record_traffic(unfinished=True)
    lost = next(event for event in events if isinstance(event, TurnRecorded))
    events.remove(lost)
    episodes, left_out = choose_episodes(events, LogTrajectoryBuilderConfig(tasks=("shop",)))
    assert len(episodes) == 9
    assert left_out == {"not ended": 1, "events are missing": 1}


def test_a_forgotten_episode_is_not_played() -> None:
    events = record_traffic()
    first = next(event for event in events if isinstance(event, EpisodeStarted))
    names = ("episode_id", "root_episode_id", "writer_id", "occurred_at_ms", "episode_started_at_ms")
    envelope = {name: getattr(first, name) for name in names}
    forgotten = Excluded(**envelope, event_id="forget-1", sequence=-1, reason="asked to")
    episodes, left_out = choose_episodes([*events, forgotten], LogTrajectoryBuilderConfig(tasks=("shop",)))
    assert first.episode_id not in {episode.start.episode_id for episode in episodes}
    assert left_out == {"excluded": 1}


def test_a_time_without_a_zone_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"trajectory_builders\.b\.since: Input should have timezone info"):
        read(tmp_path, log_document(tmp_path, since="2026-11-01T00:00:00"))


def test_a_check_needs_no_dataset(tmp_path: Path) -> None:
    plan = read(tmp_path, log_document(tmp_path))
    assert "builder rollbus_log_builder: episodes of the log" in describe(FinetuneOptions(plan, FinetuneRunConfig()))
