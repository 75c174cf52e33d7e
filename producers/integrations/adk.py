"""Google ADK: a plugin for structure; tokens come from the OpenAI client that LiteLLM is given to use.

    model = LiteLlm(model="openai/agent", client=rb.wrap(AsyncOpenAI(base_url=...)))
    runner = Runner(app=App(name="shop", root_agent=agent, plugins=[RollbusPlugin(rb)]), ...)
    async with rb.episode(task="refund"):
        async for event in runner.run_async(...): ...

Every callback returns None: a value would take the place of the model's, the tool's or the agent's own answer.
"""

from collections.abc import Collection, Hashable
from typing import Any

from google.adk.agents.base_agent import BaseAgent
from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.invocation_context import InvocationContext
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from rollbus.producers.integrations.structure import Structure, guard_hooks
from rollbus.producers.recorder import Recorder
from rollbus.producers.turns.answer import AnswerChoice, ServerAnswer
from rollbus.producers.turns.foreign_messages import read_messages
from rollbus.producers.turns.sampled_message import choice_of
from rollbus.producers.turns.turn_record import NOT_CAPTURED, Exchange


@guard_hooks
class RollbusPlugin(BasePlugin):
    """Reports to the recorder what agents, models and tools of a runner do."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        task: str | None = None,
        child_agents: Collection[str] = (),
        name: str = "rollbus",
    ) -> None:
        """Record into the current episode; with `task`, a run without one is an episode of its own.

        Agents named in `child_agents` become child episodes. A runner takes one plugin of a name.
        """
        super().__init__(name=name)
        self.recorder = recorder
        self._structure = Structure(recorder, "google-adk", task=task, child_agents=child_agents)

    async def before_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """A runner begins on a user's message."""
        session = invocation_context.session.id
        self._structure.run_started(_run(invocation_context.invocation_id), None, "", conversation=session)

    async def after_run_callback(self, *, invocation_context: InvocationContext) -> None:
        """It is done."""
        self._structure.all_ended(_run(invocation_context.invocation_id))

    async def on_run_error_callback(self, *, invocation_context: InvocationContext, error: Exception) -> None:
        """It has failed."""
        self._structure.all_ended(_run(invocation_context.invocation_id), error)

    async def before_agent_callback(self, *, agent: BaseAgent, callback_context: CallbackContext) -> None:
        """An agent begins."""
        invocation, above = callback_context.invocation_id, agent.parent_agent
        parent = _agent(invocation, above.name) if above is not None else _run(invocation)
        key = _agent(invocation, agent.name)
        self._structure.run_started(key, parent if self._structure.is_open(parent) else _run(invocation), agent.name)

    async def after_agent_callback(self, *, agent: BaseAgent, callback_context: CallbackContext) -> None:
        """It is done."""
        self._structure.run_ended(_agent(callback_context.invocation_id, agent.name))

    async def on_agent_error_callback(
        self, *, agent: BaseAgent, callback_context: CallbackContext, error: Exception
    ) -> None:
        """It has failed."""
        self._structure.run_ended(_agent(callback_context.invocation_id, agent.name), error)

    async def before_model_callback(self, *, callback_context: CallbackContext, llm_request: LlmRequest) -> None:
        """A model is about to be called."""
        agent = _agent(callback_context.invocation_id, callback_context.agent_name)
        self._structure.model_started(_model(callback_context), agent, callback_context.agent_name)

    async def after_model_callback(self, *, callback_context: CallbackContext, llm_response: LlmResponse) -> None:
        """It has answered, or a part of its stream has come."""
        if not llm_response.partial:
            self._structure.model_ended(_model(callback_context), lambda: _exchange(callback_context, llm_response))

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> None:
        """It has failed."""
        self._structure.model_ended(_model(callback_context))

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> None:
        """A tool is about to run."""
        self._structure.tool_started(
            _tool(tool_context),
            _agent(tool_context.invocation_id, tool_context.agent_name),
            name=tool.name,
            arguments=tool_args,
            tool_call_id=tool_context.function_call_id,
        )

    async def after_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, result: Any
    ) -> None:
        """It has a result."""
        self._structure.tool_ended(_tool(tool_context), result=result)

    async def on_tool_error_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext, error: Exception
    ) -> None:
        """It has failed."""
        self._structure.tool_failed(_tool(tool_context), error)


def _run(invocation_id: str) -> Hashable:
    return "run", invocation_id


def _agent(invocation_id: str, name: str) -> Hashable:
    return "agent", invocation_id, name


def _model(context: CallbackContext) -> Hashable:
    return "model", context.invocation_id, context.agent_name


def _tool(context: ToolContext) -> Hashable:
    return "tool", context.invocation_id, context.function_call_id


def _exchange(context: CallbackContext, response: LlmResponse) -> Exchange:
    """Return what ADK saw of a call: texts and counts, no tokens."""
    usage = response.usage_metadata
    answer_messages = read_messages([_fields_of(response.content)]) if response.content else []
    answer = ServerAnswer(
        model=response.model_version or "",
        prompt_tokens=usage.prompt_token_count if usage else None,
        completion_tokens=usage.candidates_token_count if usage else None,
        choices=(choice_of(answer_messages[-1]) if answer_messages else AnswerChoice(),),
    )
    events = context.session.events
    contents = [_fields_of(event.content) for event in events if event.content is not None and not event.partial]
    return Exchange(request={"messages": read_messages(contents)}, answer=answer, withheld=NOT_CAPTURED)


def _fields_of(content: types.Content) -> dict[str, Any]:
    return dict(content.model_dump(mode="json", exclude_none=True))
