"""Workflows that need no registration: a Python callable, a LangGraph graph, an endpoint, a LlamaIndex or ADK agent.

Each yields an async function from an example's input to its output.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from pydantic import Field

from rollbus.harness.builder import Builder
from rollbus.harness.calling import accepted, call, find
from rollbus.harness.registry import register_function
from rollbus.harness.typed import FunctionConfig

Workflow = Callable[[Any], Awaitable[Any]]


class PythonWorkflowConfig(FunctionConfig, name="python"):
    """A function of yours: of the input, and of `llm`, `entry` and `options` where it has such parameters."""

    function: str = Field(description="module:name")
    llm: str | None = Field(default=None, description="Entry under `llms`.")
    options: dict[str, Any] = Field(default_factory=dict)


class LangGraphConfig(FunctionConfig, name="langgraph"):
    """A graph, or a function from a chat model to one."""

    graph: str = Field(description="module:name")
    llm: str | None = None
    input_key: str = "messages"
    output_key: str = "messages"


class LlamaIndexConfig(FunctionConfig, name="llama_index"):
    """A function from a model to an agent whose `run` takes `user_msg`."""

    agent: str = Field(description="module:name")
    llm: str


class ADKConfig(FunctionConfig, name="adk"):
    """A function from a model to an agent of the Agent Development Kit."""

    agent: str = Field(description="module:name")
    llm: str


class HTTPWorkflowConfig(FunctionConfig, name="http"):
    """A workflow behind an address: the input is posted, the answer's JSON holds the output."""

    endpoint: str
    timeout_s: float = Field(default=300.0, gt=0)
    result_json_path: str = "$"


@register_function(config_type=PythonWorkflowConfig)
async def python_workflow(config: PythonWorkflowConfig, builder: Builder) -> AsyncIterator[Workflow]:
    """Yield a user's function."""
    function = find(config.function, what="workflow")
    offered: dict[str, Any] = {"options": config.options, "builder": builder}
    if config.llm is not None:
        offered["llm"] = await builder.get_llm(config.llm)

    async def run(value: Any) -> Any:
        return await call(function, value, **accepted(function, offered))

    yield run


@register_function(config_type=LangGraphConfig)
async def langgraph_workflow(config: LangGraphConfig, builder: Builder) -> AsyncIterator[Workflow]:
    """Yield a graph's `ainvoke`."""
    graph = await _made(config.graph, builder, config.llm, "langchain", has="ainvoke")

    async def run(value: Any) -> Any:
        given = value if isinstance(value, dict) else {config.input_key: _as_messages(config.input_key, value)}
        result = await graph.ainvoke(given)
        found = result.get(config.output_key, result) if isinstance(result, dict) else result
        last = found[-1] if isinstance(found, list) and found else found
        return getattr(last, "content", last)

    yield run


@register_function(config_type=LlamaIndexConfig)
async def llama_index_workflow(config: LlamaIndexConfig, builder: Builder) -> AsyncIterator[Workflow]:
    """Yield an agent's `run`."""
    agent = await _made(config.agent, builder, config.llm, "llama_index", has="run")

    async def run(value: Any) -> Any:
        return str(await agent.run(user_msg=str(value)))

    yield run


@register_function(config_type=ADKConfig)
async def adk_workflow(config: ADKConfig, builder: Builder) -> AsyncIterator[Workflow]:
    """Yield a run of the agent in a session of its own."""
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    agent = await _made(config.agent, builder, config.llm, "adk", has="run_async")
    runner = InMemoryRunner(agent=agent, app_name="finetune")

    async def run(value: Any) -> Any:
        session = await runner.session_service.create_session(app_name="finetune", user_id="finetune")
        said = ""
        message = types.Content(role="user", parts=[types.Part(text=str(value))])
        async for event in runner.run_async(user_id="finetune", session_id=session.id, new_message=message):
            if event.is_final_response() and event.content and event.content.parts:
                said = "".join(part.text or "" for part in event.content.parts)
        return said

    try:
        yield run
    finally:
        await runner.close()


@register_function(config_type=HTTPWorkflowConfig)
async def http_workflow(config: HTTPWorkflowConfig, builder: Builder) -> AsyncIterator[Workflow]:
    """Yield a call of the endpoint."""
    from rollbus.harness.endpoint import endpoint_workflow

    async with endpoint_workflow(config.endpoint, config.timeout_s, config.result_json_path, builder) as run:
        yield run


async def _made(path: str, builder: Builder, llm: str | None, wrapper: str, *, has: str) -> Any:
    """Return the object at a path, or what the function there makes of a model."""
    found = find(path, what="workflow")
    if hasattr(found, has):
        return found
    model = await builder.get_llm(llm, wrapper) if llm is not None else None
    return await call(found, model) if model is not None else await call(found)


def _as_messages(key: str, value: Any) -> Any:
    return [("user", str(value))] if key == "messages" else value
