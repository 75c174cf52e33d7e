"""OpenAI Agents: run hooks for structure, and agents whose models are recorded token by token.

    agent = record_agent(Agent(name="keeper", tools=tools), rb, client=AsyncOpenAI(base_url=...), model="agent")
    async with rb.episode(task="stock"):
        await Runner.run(agent, "How many bolts?", hooks=RollbusHooks(rb))

The SDK calls each hook in its own task, so a hook cannot set a context for the call of the model. Instead each agent
has a client of its own, wrapped under the agent's name.
"""

import weakref
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from agents import (
    Agent,
    FunctionToolResult,
    Model,
    ModelResponse,
    OpenAIChatCompletionsModel,
    RunContextWrapper,
    RunHooks,
    Tool,
)
from agents.handoffs import Handoff
from agents.tool_context import ToolContext
from agents.tracing import AgentSpanData, FunctionSpanData, Span, Trace, TracingProcessor, get_current_span
from openai import AsyncOpenAI

from rollbus.producers.capture.responses import RESPONSES
from rollbus.producers.episode.episode import ToolFields
from rollbus.producers.integrations.structure import Structure, guard_hooks
from rollbus.producers.recorder import Recorder
from rollbus.producers.turns.turn_record import NOT_CAPTURED, Exchange

Context = TypeVar("Context")


class RecordedModel(OpenAIChatCompletionsModel):
    """A chat-completions model on a wrapped client."""


def record_agent(
    agent: Agent[Context], recorder: Recorder, *, client: AsyncOpenAI | None = None, model: str | None = None
) -> Agent[Context]:
    """Set recorded models in the agent and all agents that it hands off to or uses as tools; returns the same agent.

    `client` and `model` serve agents that have no chat-completions model of their own. Raises TypeError where an agent
    then has neither: its turns would have no tokens.
    """
    for reached_agent in _reachable(agent, set()):
        reached_agent.model = _make_recorded_model(reached_agent, recorder, client, model)
    return agent


def _make_recorded_model(
    agent: Agent[Any], recorder: Recorder, client: AsyncOpenAI | None, model: str | None
) -> RecordedModel:
    agent_model = agent.model
    if isinstance(agent_model, RecordedModel):
        return agent_model
    if isinstance(agent_model, OpenAIChatCompletionsModel):
        client, name = agent_model._client, str(agent_model.model)
    else:
        name = (agent_model if isinstance(agent_model, str) else None) or model or ""
    if (
        client is None
        or not name
        or (isinstance(agent_model, Model) and not isinstance(agent_model, OpenAIChatCompletionsModel))
    ):
        raise TypeError(
            f"agent {agent.name!r} has model {agent_model!r}: give it an OpenAIChatCompletionsModel, "
            "or pass client and model"
        )
    return RecordedModel(name, recorder.wrap(client, function=agent.name))


def _reachable(agent: Agent[Any], seen_ids: set[int]) -> Iterator[Agent[Any]]:
    if id(agent) in seen_ids:
        return
    seen_ids.add(id(agent))
    yield agent
    for handoff in agent.handoffs:
        target = handoff if isinstance(handoff, Agent) else _agent_of_handoff(handoff)
        if target is not None:
            yield from _reachable(target, seen_ids)
    for tool in agent.tools:
        if isinstance(target := getattr(tool, "_agent_instance", None), Agent):
            yield from _reachable(target, seen_ids)


def _agent_of_handoff(handoff: Handoff[Any, Any]) -> Agent[Any] | None:
    reference = handoff._agent_ref
    target = reference() if reference is not None else None
    return target if isinstance(target, Agent) else None


_WITH_HOOKS: "weakref.WeakSet[Recorder]" = weakref.WeakSet()
"""Recorders whose hooks report tools, so that the trace processor need not."""


def _count_captured(recorder: Recorder) -> int:
    """Return how many calls of the current episode a wrapped client has captured."""
    episode = recorder.current_episode()
    return 0 if episode is None else episode.calls_captured


@guard_hooks
class RollbusProcessor(TracingProcessor):
    """Reports which agent asks and which tools run, for `instrument`: from the SDK's own traces."""

    def __init__(self, recorder: Recorder, *, task: str | None = None, child_agents: Collection[str] = ()) -> None:
        """Record into the current episode; with `task`, a trace without one is an episode of its own.

        Agents named in `child_agents` become child episodes.
        """
        self._recorder = recorder
        self._structure = Structure(recorder, "openai-agents", task=task, child_agents=child_agents)
        self._stopped = False

    def on_trace_start(self, trace: Trace) -> None:
        """A run begins, or the program's own block of several."""
        if not self._stopped:
            conversation = getattr(trace, "group_id", None)  # its documentation: a chat's thread, for instance
            self._structure.run_started(trace.trace_id, None, "", conversation=conversation)

    def on_trace_end(self, trace: Trace) -> None:
        """The run has ended, and with it all of its spans."""
        self._structure.all_ended(trace.trace_id)

    def on_span_start(self, span: Span[Any]) -> None:
        """An agent or a tool begins, in this very context."""
        data, parent = span.span_data, span.parent_id or span.trace_id
        if self._stopped:
            return
        if isinstance(data, FunctionSpanData):
            if self._recorder not in _WITH_HOOKS:
                self._structure.tool_started(span.span_id, parent, name=data.name)
        else:
            name = data.name if isinstance(data, AgentSpanData) else ""
            self._structure.run_started(span.span_id, parent, name, is_agent=bool(name), enter=bool(name))

    def on_span_end(self, span: Span[Any]) -> None:
        """An agent or a tool has ended."""
        if not self._structure.is_open(span.span_id):
            return
        data, error = span.span_data, span.error
        if isinstance(data, FunctionSpanData):
            if isinstance(data.output, FunctionToolResult):  # it did not run: a person is to approve it, or refused
                self._structure.tool_withdrawn(span.span_id)
                return
            text = None if error is None else str(error.get("message"))
            fields: ToolFields = {"result": data.output, "error": text}
            if data.input:
                fields["arguments"] = data.input
            self._structure.tool_ended(span.span_id, **fields)
        else:
            self._structure.run_ended(span.span_id)

    def on_tool_context(self, tool: ToolContext[Any]) -> None:
        """The tool of the current span is about to run: its trace does not say which call of the model it is."""
        span = get_current_span()
        if span is not None and isinstance(span.span_data, FunctionSpanData):
            self._structure.describe_tool(
                span.span_id, tool_call_id=tool.tool_call_id, arguments=tool.tool_arguments or ""
            )

    def shutdown(self) -> None:
        """Report no more; the SDK has no way to take a processor away."""
        self._stopped = True

    def force_flush(self) -> None:
        """Nothing waits here."""


@guard_hooks
class RollbusHooks(RunHooks[Context]):
    """Reports to the recorder which tools run, and the calls whose model is not recorded."""

    def __init__(self, recorder: Recorder) -> None:
        """Record into the current episode."""
        self._recorder, self._structure = recorder, Structure(recorder, "openai-agents")
        self._prompts: dict[Hashable, tuple[int, Mapping[str, Any]]] = {}
        _WITH_HOOKS.add(recorder)

    async def on_llm_start(
        self,
        context: RunContextWrapper[Context],
        agent: Agent[Context],
        system_prompt: str | None,
        input_items: list[Any],
    ) -> None:
        """A model is about to be called."""
        if not isinstance(agent.model, RecordedModel):
            prompt = {"instructions": system_prompt, "input": list(input_items)}
            self._prompts[(id(context), agent.name)] = (_count_captured(self._recorder), prompt)

    async def on_llm_end(
        self, context: RunContextWrapper[Context], agent: Agent[Context], response: ModelResponse
    ) -> None:
        """The model has answered; a call that no wrapped client captured is recorded without tokens."""
        before, prompt = self._prompts.pop((id(context), agent.name), (0, None))
        episode = self._recorder.current_episode()
        if prompt is not None and episode is not None and _count_captured(self._recorder) == before:
            self._recorder.counts.add("calls_not_captured")
            episode.record(_exchange(prompt, response), agent.name)

    async def on_tool_start(self, context: RunContextWrapper[Context], agent: Agent[Context], tool: Tool) -> None:
        """A tool is about to run."""
        fields: ToolFields = {}
        if isinstance(context, ToolContext):
            fields = {"arguments": context.tool_arguments, "tool_call_id": context.tool_call_id}
        self._structure.tool_started(_tool_key(context, tool), None, name=tool.name, **fields)

    async def on_tool_end(
        self, context: RunContextWrapper[Context], agent: Agent[Context], tool: Tool, result: object
    ) -> None:
        """A tool has a result; that of a failing tool is the error's text, as the model sees it."""
        self._structure.tool_ended(_tool_key(context, tool), result=result)


def _tool_key(context: RunContextWrapper[Any], tool: Tool) -> Hashable:
    return "tool", id(context) if not isinstance(context, ToolContext) else context.tool_call_id, tool.name


def _exchange(prompt: Mapping[str, Any], response: ModelResponse) -> Exchange:
    """Return what the SDK saw of a call: texts and counts, no tokens."""
    answer = replace(RESPONSES.read_response(response), response_id=response.response_id)
    request = RESPONSES.convert_request(prompt)
    return Exchange(request=request, answer=answer, withheld=NOT_CAPTURED, hook="openai-agents")
