"""Agents that need no framework, after OpenAI's guides: function calling, streams, structured output, retries."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.agents.conftest import SEED, World
from tests.agents.model_server import Faults, ModelServer

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Look it up.",
            "parameters": {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
        },
    }
    for name in ("stock", "price")
]


class Count(BaseModel):
    """What the shop has."""

    item: str
    number: int


@pytest.fixture
def client(server: ModelServer) -> Iterator[openai.OpenAI]:
    """A client that repeats nothing by itself."""
    with openai.OpenAI(api_key="k", base_url=server.url, max_retries=0) as client:
        yield client


async def test_tools_called_from_a_stream(world: World, client: openai.OpenAI) -> None:
    async def play(question: str) -> None:
        messages: list[Any] = [{"role": "user", "content": question}]
        for _ in range(3):
            calls: dict[int, Any] = {}
            text = ""
            for chunk in client.chat.completions.create(model="agent", messages=messages, tools=TOOLS, stream=True):
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    for call in choice.delta.tool_calls or []:
                        call_so_far = calls.setdefault(call.index, {"id": call.id, "name": "", "arguments": ""})
                        call_so_far["name"] += (call.function and call.function.name) or ""
                        call_so_far["arguments"] += (call.function and call.function.arguments) or ""
            if not calls:
                assert question[-4:] in text
                return
            tool_calls = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in calls.values()
            ]
            messages.append({"role": "assistant", "content": None, "tool_calls": tool_calls})
            messages += [{"role": "tool", "tool_call_id": call["id"], "content": "7"} for call in calls.values()]

    await world.play(play)
    turns = world.compare()
    assert all(turn.streamed for turn in turns)
    assert world.failure_count or len(turns) == 6


async def test_structured_output(world: World, client: openai.OpenAI) -> None:
    async def play(question: str) -> None:
        messages: Any = [{"role": "user", "content": question}]
        answer = client.chat.completions.parse(model="agent", messages=messages, response_format=Count)
        assert answer.choices[0].message.parsed == Count(item=f"item of {question[-4:]}", number=7)
        with client.chat.completions.stream(model="agent", messages=messages, response_format=Count) as stream:
            assert stream.get_final_completion().choices[0].message.parsed is not None

    await world.play(play)
    assert world.failure_count or len(world.compare()) == 6
    world.compare()


@pytest.mark.parametrize("server", [SEED], indirect=True)
async def test_retries_of_the_client_and_of_the_agent_with_a_time_out(world: World, server: ModelServer) -> None:
    server.faults.stalls = 1
    async with openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=2, timeout=4.0) as client:

        async def play(question: str) -> None:
            for _ in range(3):
                try:
                    await client.chat.completions.create(
                        model="agent", messages=[{"role": "user", "content": question}]
                    )
                    return
                except openai.APIError:
                    continue

        await world.play(play)
    world.compare(retried=True)


@pytest.mark.parametrize("server", [None], indirect=True)
async def test_an_agents_own_time_out_leaves_a_turn_with_its_reason(world: World, server: ModelServer) -> None:
    server.faults = Faults(1, share=1.0, stalls=3)
    async with openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=0) as client:

        async def play(question: str) -> None:
            asking = asyncio.create_task(_ask_until_answered(client, question))
            while "stalled" not in [answered.fate for answered in server.answers]:  # noqa: ASYNC110 - another thread
                await asyncio.sleep(0.01)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asking, 0.01)

        await world.play(play, episodes=1)
    assert world.recorder.flush(120)
    reasons = [event.untrainable_reason for event in world.sink.records("episode-events") if hasattr(event, "model")]
    assert reasons[-1] == "call_cancelled"
    assert len(reasons) == len(server.answers)


async def _ask_until_answered(client: openai.AsyncOpenAI, question: str) -> None:
    while True:
        with suppress(openai.APIError):
            await client.chat.completions.create(model="agent", messages=[{"role": "user", "content": question}])
            return


async def test_background_threads_and_executors(world: World, client: openai.OpenAI) -> None:
    def ask(text: str) -> None:
        with suppress(openai.APIError):
            client.chat.completions.create(model="agent", messages=[{"role": "user", "content": text}])

    with ThreadPoolExecutor(2) as executor:

        async def play(question: str) -> None:
            notes = threading.Thread(target=ask, args=(f"Take a note. {question}",))
            notes.start()
            list(executor.map(ask, [f"{part}: {question}" for part in ("left", "right", "rest")]))
            await asyncio.gather(
                asyncio.to_thread(ask, question), asyncio.get_running_loop().run_in_executor(None, ask, question)
            )
            notes.join()

        await world.play(play)
    assert len(world.compare()) == 18


async def test_branches_side_by_side_in_episodes_side_by_side(world: World, server: ModelServer) -> None:
    async with openai.AsyncOpenAI(api_key="k", base_url=server.url, max_retries=0) as client:

        async def branch(question: str) -> None:
            stream = await client.chat.completions.create(
                model="agent", messages=[{"role": "user", "content": question}], stream=True
            )
            async for _ in stream:
                await asyncio.sleep(0)

        async def episode(number: int) -> None:
            async with world.recorder.episode(task="stock", episode_id=f"e{number}"):
                await asyncio.gather(*(branch(f"{part} <e{number}>") for part in range(4)), return_exceptions=True)

        await asyncio.gather(*map(episode, range(1, 5)))
    assert len(world.compare()) == 16
