"""Requests of a workflow are episodes, through the models that the toolkit makes for the framework installed here."""

import asyncio
import json
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Any

import pytest
from nat.builder.builder import Builder
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.builder.workflow_builder import WorkflowBuilder
from nat.cli.register_workflow import register_function
from nat.data_models.config import Config
from nat.data_models.function import FunctionBaseConfig
from nat.runtime.loader import PluginTypes, discover_and_register_plugins
from nat.runtime.session import SessionManager

from rollbus.producers import MemorySink
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, Event, TurnRecorded
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from tests.nemo.telemetry_parts import SINK, ask, serve_model
from tests.producers.integrations.agent_server import TOKENS, AgentServer

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks


class KeeperConfig(FunctionBaseConfig, name="test_keeper"):
    llm: str = "policy"
    framework: LLMFrameworkEnum
    streamed: bool = False


async def ask_agno(llm: Any, tools: list[Any], question: str, *, streamed: bool) -> str:
    from agno.agent import Agent

    agent = Agent(model=llm, tools=tools)
    if not streamed:
        return str((await agent.arun(question)).content)
    return "".join([event.content or "" async for event in agent.arun(question, stream=True)])


async def ask_strands(llm: Any, tools: list[Any], question: str, *, streamed: bool) -> str:
    from strands import Agent

    agent = Agent(model=llm, tools=tools, callback_handler=None)
    if not streamed:
        return str(await agent.invoke_async(question))
    return "".join([event.get("data", "") async for event in agent.stream_async(question)])


async def ask_autogen(llm: Any, tools: list[Any], question: str, *, streamed: bool) -> str:
    from autogen_agentchat.agents import AssistantAgent

    agent = AssistantAgent(
        "keeper", llm, tools=tools, model_client_stream=streamed, reflect_on_tool_use=True, max_tool_iterations=2
    )
    if not streamed:
        return str((await agent.run(task=question)).messages[-1].content)
    *_, result = [event async for event in agent.run_stream(task=question)]
    return str(result.messages[-1].content)


async def ask_semantic_kernel(llm: Any, tools: list[Any], question: str, *, streamed: bool) -> str:
    from semantic_kernel.agents import ChatCompletionAgent

    agent = ChatCompletionAgent(service=llm, name="keeper", plugins=tools)
    if not streamed:
        return str((await agent.get_response(messages=question)).content)
    return "".join([str(chunk.content) async for chunk in agent.invoke_stream(messages=question)])


async def ask_crewai(llm: Any, tools: list[Any], question: str, *, streamed: bool) -> str:
    from crewai import Agent

    llm.stream = streamed
    agent = Agent(role="keeper", goal="Answer.", backstory="A keeper.", llm=llm, tools=tools)
    return str((await agent.kickoff_async(question)).raw)


ASKING = {
    "agno": ask_agno,
    "autogen": ask_autogen,
    "crewai": ask_crewai,
    "semantic_kernel": ask_semantic_kernel,
    "strands": ask_strands,
}
INSTALLED = [name for name in ASKING if find_spec(f"nat.plugins.{name}") is not None]
WATCHED: list[LLMFrameworkEnum | str] = [
    LLMFrameworkEnum(name) for name in INSTALLED if name not in ("crewai", "semantic_kernel")
]
"""What the toolkit's own callbacks see, too: those for the other two break streams."""


@register_function(config_type=KeeperConfig, framework_wrappers=WATCHED)
async def keeper_workflow(config: KeeperConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    llm: Any = await builder.get_llm(config.llm, wrapper_type=config.framework)
    tools: Any = await builder.get_tools(["stock"], wrapper_type=config.framework)

    async def run(question: str) -> str:
        return await ASKING[config.framework](llm, tools, question, streamed=config.streamed)

    yield FunctionInfo.from_fn(run)


class Policy(AgentServer):
    """Answers at once, in CrewAI's own form, where it is offered no tools."""

    had_tools = False

    def _make_answer(self, body: dict[str, Any]) -> Any:
        if body.get("tools"):
            self.had_tools = True
            return super()._make_answer(body)
        self.final = "Thought: I know.\nFinal Answer: There are 7."
        return super()._make_answer({**body, "messages": [*body["messages"], {"role": "tool"}]})


MODELS = [
    (name, kind) for name in INSTALLED for kind in ("openai", "nim") if (name, kind) != ("semantic_kernel", "nim")
]
"""For Semantic Kernel the toolkit makes no model of NIM."""


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("framework", "kind"), MODELS)
async def test_two_requests_of_an_agent_are_two_episodes_with_their_turns(
    framework: str, kind: str, streamed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CREWAI_DISABLE_TELEMETRY", "true")
    discover_and_register_plugins(PluginTypes.CONFIG_OBJECT)
    SINK.append(sink := MemorySink())
    with serve_model(model := Policy(tool="stock", arguments={"item": "bolts"})) as url:
        config = Config.model_validate(
            {
                "general": {"telemetry": {"tracing": {"rollbus": {"_type": "test_rollbus"}}}},
                "llms": {"policy": {"_type": kind, "model_name": "gpt-4o", "base_url": url, "api_key": "none"}},
                "functions": {"stock": {"_type": "test_stock"}},
                "workflow": {"_type": "test_keeper", "framework": framework, "streamed": streamed},
            }
        )
        async with WorkflowBuilder.from_config(config) as builder:
            manager = await SessionManager.create(config, shared_builder=builder)
            answers = await asyncio.gather(*(ask(manager, f"How many, {name}?") for name in ("ada", "bob")))
            await manager.shutdown()
    expected = [TOKENS["tool"], TOKENS["final"]] if model.had_tools else [TOKENS["final"]]
    assert [answer.strip() for answer in answers] == ["There are 7."] * 2
    events = [event for event in sink.records("episode-events") if isinstance(event, Event)]
    starts = [event.episode_id for event in events if isinstance(event, EpisodeStarted)]
    assert len(starts) == 2, json.dumps(starts)
    asked = set()
    for episode_id in starts:
        of_episode = [event for event in events if event.episode_id == episode_id]
        turns = [event for event in of_episode if isinstance(event, TurnRecorded)]
        assert [turn.untrainable_reason for turn in turns] == [None] * len(expected)
        sampled = [
            (list(decode_token_ids(turn.completion_token_ids or b"")), list(decode_logprobs(turn.logprobs or b"")))
            for turn in turns
        ]
        assert sampled == expected
        assert {turn.streamed for turn in turns} == {streamed or framework == "strands"}, "Strands streams always"
        said = [str(turn.added_messages) for turn in turns]
        assert len(said) == 1 or "bolts: 7" in said[1], "what the tool gave is a message of the next turn"
        asked.add(tuple(name for name in ("ada", "bob") if name in "".join(said)))
        assert [event.stop_reason for event in of_episode if isinstance(event, EpisodeEnded)] == ["completed"]
    assert asked == {("ada",), ("bob",)}, "no turn is in the other's episode"
