"""The agents' traffic: groups of whole games, recorded with tokens, through the ordinary OpenAI client."""

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

import rollbus.producers
from rollbus.demo.game.agents import Agents, AgentSettings, attempts
from rollbus.demo.game.evaluation import evaluate, schedule
from rollbus.demo.game.game import EMPTY, free_cells, held_out_openings
from rollbus.demo.game.prompt import messages
from rollbus.demo.show.comparison import BeforeAndAfter, rate_of
from rollbus.producers import MemorySink
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, RewardReported, TurnRecorded

SETTINGS = AgentSettings(
    model_url="http://model/v1",
    bootstrap_servers="unused:9092",
    namespace="t.",
    group_size=3,
    episodes_per_s=1e6,
)

OF: dict[str, Any] = {"run": "demo", "seed": 0}


class FirstFreeCell:
    """A model that takes the first free cell; counts what it was asked."""

    def __init__(self) -> None:
        self.requests: list[dict[str, object]] = []
        self.when_asked: Callable[[], None] = lambda: None

    def __call__(self, request: httpx.Request) -> httpx.Response:
        chat_request = json.loads(request.content)
        self.requests.append(chat_request)
        self.when_asked()
        board = chat_request["messages"][-1]["content"].replace("\n", "")
        cell = free_cells(board)[0]
        entries: list[dict[str, object]] = [
            {"token": f"token_id:{t}", "logprob": -0.5, "bytes": None, "top_logprobs": []} for t in (cell, 99)
        ]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": str(cell)},
            "finish_reason": "stop",
            "logprobs": {"content": entries, "refusal": None},
            "token_ids": [cell, 99],
        }
        answer = {
            "id": f"c-{len(self.requests)}",
            "object": "chat.completion",
            "created": 1,
            "model": "agent@3",
            "choices": [choice],
            "prompt_token_ids": [1, 2, 3],
            "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        }
        return httpx.Response(200, json=answer)


def make_client(model: FirstFreeCell) -> AsyncOpenAI:
    http = httpx.AsyncClient(transport=httpx.MockTransport(model))
    return AsyncOpenAI(base_url="http://model/v1", api_key="none", http_client=http)


async def play(model: FirstFreeCell, *, episodes: int, stop: bool = False) -> tuple[Agents, list[Any]]:
    """Let agents play as they do in the demo, and return them with what they recorded."""
    sink = MemorySink()
    recorder = rollbus.producers.init(sink=sink, namespace="t.", logprob_mode="raw")
    async with make_client(model) as client:
        agents = Agents(replace(SETTINGS, episodes=episodes), recorder, client)
        if stop:
            model.when_asked = agents.stop
        await agents.run()
    assert recorder.close()
    return agents, list(sink.records("episode-events"))


async def test_a_group_is_whole_games_from_one_opening() -> None:
    model = FirstFreeCell()
    agents, events = await play(model, episodes=6)
    starts = [event for event in events if isinstance(event, EpisodeStarted)]
    assert agents.played == len(starts) == 6
    assert {(event.group_size, event.task) for event in starts} == {(3, "tictactoe")}
    assert len({(event.group_id, event.example_id) for event in starts}) == 2
    assert sum(isinstance(event, EpisodeEnded) for event in events) == 6
    assert sum(isinstance(event, RewardReported) for event in events) == 6
    turns = [event for event in events if isinstance(event, TurnRecorded)]
    assert all(turn.trainable and turn.policy_version == 3 for turn in turns)
    assert len(turns) == len(model.requests)
    assert all(len(request["messages"]) == len(messages(EMPTY)) for request in model.requests)  # type: ignore[arg-type]


async def test_stopped_agents_finish_the_games_they_have_begun() -> None:
    agents, events = await play(FirstFreeCell(), episodes=600, stop=True)
    assert 0 < agents.played < 600
    for kind in (EpisodeStarted, EpisodeEnded):
        assert sum(isinstance(event, kind) for event in events) == agents.played


def test_a_seed_gives_the_same_groups_without_held_out_openings() -> None:
    first, again, other = (list(islice(attempts(seed), 300)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len({group.group_id for group in first}) == 300
    assert not {group.opening.id for group in first} & {opening.id for opening in held_out_openings()}


async def test_repeated_evaluations_of_a_version_give_the_same_rates() -> None:
    model = FirstFreeCell()
    async with make_client(model) as client:
        runs = [(0, 1), (0, 2), (1, 1)]
        before, after, other = [
            await evaluate(client, "agent", 3, schedule(seed, 29), now_ms=now, **OF) for seed, now in runs
        ]
    assert {request["model"] for request in model.requests} == {"agent@3"}
    assert (before.metrics, before.evaluation_id) == (after.metrics, after.evaluation_id)
    assert not BeforeAndAfter(before, after, "win").is_real
    assert all("seed" in request for request in model.requests)
    assert rate_of(before, "win").low < before.metrics["win"] < rate_of(before, "win").high
    assert sum(before.metrics[name] for name in ("win", "draw", "loss", "illegal")) == pytest.approx(1)
    assert (before.policy_version, before.episodes, before.run_id) == (3, 29, "demo")
    assert before.set_hash != other.set_hash
