"""Requests of a workflow of Google ADK are episodes; the toolkit's ADK part wants another litellm than openpipe-art."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.adk.agents import Agent
from google.adk.runners import InMemoryRunner
from google.genai import types
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
from rollbus.schemas.records.events import EpisodeEnded, EpisodeStarted, Event, ToolCalled, TurnRecorded
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from tests.nemo.telemetry_parts import SINK, ask, serve_model
from tests.producers.integrations.agent_server import TOKENS, AgentServer

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks


class KeeperConfig(FunctionBaseConfig, name="test_keeper"):
    llm: str = "policy"


def stock(item: str) -> str:
    """Count what is in stock."""
    return f"{item}: 7"


@register_function(config_type=KeeperConfig, framework_wrappers=[LLMFrameworkEnum.ADK])
async def keeper_workflow(config: KeeperConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    llm: Any = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.ADK)
    runner = InMemoryRunner(Agent(name="keeper", model=llm, tools=[stock]), app_name="keeper")

    async def run(question: str) -> str:
        session = await runner.session_service.create_session(app_name="keeper", user_id="user")
        message = types.Content(role="user", parts=[types.Part(text=question)])
        texts: list[str] = []
        async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
            parts = event.content.parts if event.content is not None else None
            texts += [part.text for part in parts or () if part.text]
        return texts[-1]

    yield FunctionInfo.from_fn(run)


async def test_two_requests_of_an_adk_agent_are_two_episodes_of_two_turns() -> None:
    discover_and_register_plugins(PluginTypes.CONFIG_OBJECT)
    SINK.append(sink := MemorySink())
    with serve_model(AgentServer(tool="stock", arguments={"item": "bolts"})) as url:
        model = {"_type": "openai", "model_name": "openai/agent", "base_url": url, "api_key": "none"}
        config = Config.model_validate(
            {
                "general": {"telemetry": {"tracing": {"rollbus": {"_type": "test_rollbus"}}}},
                "llms": {"policy": model},
                "workflow": {"_type": "test_keeper"},
            }
        )
        async with WorkflowBuilder.from_config(config) as builder:
            manager = await SessionManager.create(config, shared_builder=builder)
            answers = await asyncio.gather(*(ask(manager, f"How many, {name}?") for name in ("ada", "bob")))
            await manager.shutdown()
    assert answers == ["There are 7."] * 2
    events = [event for event in sink.records("episode-events") if isinstance(event, Event)]
    starts = [event.episode_id for event in events if isinstance(event, EpisodeStarted)]
    assert len(starts) == 2, json.dumps(starts)
    for episode_id in starts:
        of_episode = [event for event in events if event.episode_id == episode_id]
        turns = [event for event in of_episode if isinstance(event, TurnRecorded)]
        assert [turn.untrainable_reason for turn in turns] == [None, None]
        sampled = [
            (list(decode_token_ids(turn.completion_token_ids or b"")), list(decode_logprobs(turn.logprobs or b"")))
            for turn in turns
        ]
        assert sampled == [TOKENS["tool"], TOKENS["final"]]
        assert [event.name for event in of_episode if isinstance(event, ToolCalled)] == ["stock"]
        assert [event.stop_reason for event in of_episode if isinstance(event, EpisodeEnded)] == ["completed"]
