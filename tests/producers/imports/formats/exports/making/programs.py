"""The same calls through a client, a chat model and the agents of frameworks, by the names of `server.CASES`."""

# It runs beside the newest releases, in environments of their own.
# mypy: ignore-errors

import asyncio
import gc
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from server import STOCK

ASK = "Say hello"
MESSAGES = [{"role": "user", "content": ASK}]
Cases = Mapping[str, Callable[[], object]]


def stock(item: str) -> str:
    """Say how many of an item are in stock."""
    return f"{item}: 7"


def client_cases(client: Any) -> Cases:
    """The calls of an `openai` client."""

    def create(**options: Any) -> Any:
        more = {"stream_options": {"include_usage": True}} if options.get("stream") else {}
        return client.chat.completions.create(model="agent", messages=MESSAGES, temperature=0.5, **more, **options)

    def leave() -> None:
        stream = create(stream=True)
        next(iter(stream))
        stream.close()
        del stream
        gc.collect()

    tools = [{"type": "function", "function": STOCK}]
    return {
        "plain": create,
        "streamed": lambda: list(create(stream=True)),
        "two": lambda: create(n=2),
        "two streamed": lambda: list(create(n=2, stream=True)),
        "tools": lambda: create(tools=tools),
        "tools streamed": lambda: list(create(tools=tools, stream=True)),
        "left early": leave,
        "cut off": lambda: list(create(stream=True)),
        "failed": create,
    }


def langchain_cases(url: str, callbacks: Sequence[Any] = ()) -> Cases:
    """The calls of a chat model of LangChain, and of an agent."""
    from langchain.agents import create_agent
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    def model(**options: Any) -> Any:
        return ChatOpenAI(
            model="agent",
            base_url=url,
            api_key="k",
            temperature=0.5,
            max_retries=0,
            stream_usage=True,
            **options,
        )

    config = {"callbacks": list(callbacks)}

    def run(streaming: bool) -> None:
        agent = create_agent(model(streaming=streaming), [tool(stock)], name="keeper")
        inputs = {"messages": [{"role": "user", "content": ASK}]}
        list(agent.stream(inputs, config, stream_mode="messages")) if streaming else agent.invoke(inputs, config)

    def leave() -> None:
        stream = model().stream(ASK, config)
        next(stream)
        stream.close()

    return {
        "plain": lambda: model().invoke(ASK, config),
        "streamed": lambda: list(model().stream(ASK, config)),
        "two": lambda: model(n=2).generate([[HumanMessage(ASK)]], **config),
        "tools": lambda: run(False),
        "tools streamed": lambda: run(True),
        "left early": leave,
        "cut off": lambda: list(model().stream(ASK, config)),
        "failed": lambda: model().invoke(ASK, config),
    }


def pydantic_cases(url: str) -> Cases:
    """The runs of an agent of pydantic-ai."""
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(base_url=url, api_key="k", max_retries=0)
    model = OpenAIChatModel("agent", provider=OpenAIProvider(openai_client=client))
    plain = Agent(model, name="keeper", model_settings={"temperature": 0.5})
    keeper = Agent(model, name="keeper", model_settings={"temperature": 0.5}, tools=[stock])

    async def stream(agent: Any, *, leave: bool = False) -> None:
        async with agent.run_stream(ASK) as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                if leave:
                    break

    return {
        "plain": lambda: plain.run_sync(ASK),
        "streamed": lambda: asyncio.run(stream(plain)),
        "tools": lambda: keeper.run_sync(ASK),
        "tools streamed": lambda: asyncio.run(stream(keeper)),
        "left early": lambda: asyncio.run(stream(plain, leave=True)),
        "cut off": lambda: asyncio.run(stream(plain)),
        "failed": lambda: plain.run_sync(ASK),
    }


def agents_cases(url: str) -> Cases:
    """The runs of an agent of OpenAI Agents."""
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    model = OpenAIChatCompletionsModel("agent", AsyncOpenAI(base_url=url, api_key="k", max_retries=0))
    settings = ModelSettings(temperature=0.5, include_usage=True)
    plain = Agent(name="keeper", model=model, model_settings=settings)
    keeper = Agent(name="keeper", model=model, model_settings=settings, tools=[function_tool(stock)])

    async def stream(agent: Any, *, leave: bool = False) -> None:
        result = Runner.run_streamed(agent, ASK)
        async for event in result.stream_events():
            if leave and event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
                result.cancel()

    return {
        "plain": lambda: asyncio.run(Runner.run(plain, ASK)),
        "streamed": lambda: asyncio.run(stream(plain)),
        "tools": lambda: asyncio.run(Runner.run(keeper, ASK)),
        "tools streamed": lambda: asyncio.run(stream(keeper)),
        "left early": lambda: asyncio.run(stream(plain, leave=True)),
        "cut off": lambda: asyncio.run(stream(plain)),
        "failed": lambda: asyncio.run(Runner.run(plain, ASK)),
    }


def adk_cases(url: str) -> Cases:
    """The runs of an agent of Google's ADK."""
    from google.adk.agents import LlmAgent
    from google.adk.agents.run_config import RunConfig, StreamingMode
    from google.adk.models.lite_llm import LiteLlm
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    async def run(*tools: Any, mode: StreamingMode = StreamingMode.NONE, leave: bool = False) -> None:
        model = LiteLlm(model="openai/agent", api_base=url, api_key="k", num_retries=0)
        settings = types.GenerateContentConfig(temperature=0.5)
        keeper = LlmAgent(name="keeper", model=model, tools=list(tools), generate_content_config=settings)
        runner = InMemoryRunner(agent=keeper, app_name="shop")
        session = await runner.session_service.create_session(app_name="shop", user_id="u")
        message = types.Content(role="user", parts=[types.Part(text=ASK)])
        config = RunConfig(streaming_mode=mode)
        events = runner.run_async(user_id="u", session_id=session.id, new_message=message, run_config=config)
        async for _ in events:
            if leave:
                break
        await events.aclose()
        await runner.close()

    streamed = {"mode": StreamingMode.SSE}
    return {
        "plain": lambda: asyncio.run(run()),
        "streamed": lambda: asyncio.run(run(**streamed)),
        "tools": lambda: asyncio.run(run(stock)),
        "tools streamed": lambda: asyncio.run(run(stock, **streamed)),
        "left early": lambda: asyncio.run(run(**streamed, leave=True)),
        "cut off": lambda: asyncio.run(run(**streamed)),
        "failed": lambda: asyncio.run(run()),
    }
