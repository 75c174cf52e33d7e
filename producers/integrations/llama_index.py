"""LlamaIndex: handlers on its dispatcher for structure, and an OpenAI LLM whose calls are recorded token by token.

    install(rb)                                        # once per process
    llm = record_llm(OpenAI(model="agent"), rb)
    agent = FunctionAgent(tools=tools, llm=llm, name="keeper")
    async with rb.episode(task="stock"):
        await agent.run("How many bolts?")

Spans say which agent works and which tool runs; the chat events enclose the model's call in its own context.
"""

import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar, Unpack, cast

from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.instrumentation.events import BaseEvent
from llama_index.core.instrumentation.events.llm import LLMChatEndEvent, LLMChatStartEvent
from llama_index.core.instrumentation.span import BaseSpan
from llama_index.core.instrumentation.span_handlers import BaseSpanHandler
from llama_index.core.tools import BaseTool, ToolOutput
from llama_index.llms.openai.utils import to_openai_message_dicts
from llama_index_instrumentation import get_dispatcher
from pydantic import PrivateAttr

from rollbus.producers.episode.episode import ToolFields
from rollbus.producers.integrations.structure import Structure, guard_hooks
from rollbus.producers.recorder import Recorder, WrapOptions
from rollbus.producers.turns.answer import AnswerChoice, ServerAnswer
from rollbus.producers.turns.turn_record import NOT_CAPTURED, Exchange

Model = TypeVar("Model")
AGENT_OF_STEP = ("current_agent_name", "agent_name")
"""Where the events that workflow steps are given name the agent."""


def record_llm(llm: Model, recorder: Recorder, **options: Unpack[WrapOptions]) -> Model:
    """Return a copy of an OpenAI LLM (or a class built on it) on wrapped clients; `options` are those of `wrap`.

    Raises TypeError where there is no OpenAI client beneath: such a model's turns have no tokens.
    """
    if not hasattr(llm, "_get_client") or not hasattr(llm, "_get_aclient"):
        raise TypeError(f"{type(llm).__name__} has no OpenAI client; use OpenAI or OpenAILike, or `rollbus proxy run`")
    copied: Any = llm.model_copy(update={"reuse_client": True})  # type: ignore[attr-defined]
    copied._client = recorder.wrap(llm._get_client(), **options)
    copied._aclient = recorder.wrap(llm._get_aclient(), **options)
    return cast(Model, copied)


def install(recorder: Recorder, *, task: str | None = None, child_agents: Collection[str] = ()) -> Callable[[], None]:
    """Record what LlamaIndex does in this process, into the current episode; return a function that stops it.

    With `task`, an outermost run without an episode is one of its own; agents named in `child_agents` are child
    episodes.
    """
    structure = Structure(recorder, "llama-index", task=task, child_agents=child_agents)
    spans, events = _Spans(structure), _Events(structure)
    dispatcher = get_dispatcher()
    dispatcher.add_span_handler(spans)
    dispatcher.add_event_handler(events)

    def uninstall() -> None:
        dispatcher.span_handlers = [
            span_handler for span_handler in dispatcher.span_handlers if span_handler is not spans
        ]
        dispatcher.event_handlers = [
            event_handler for event_handler in dispatcher.event_handlers if event_handler is not events
        ]

    return uninstall


@guard_hooks
class _Spans(BaseSpanHandler[BaseSpan]):
    """Agents, their steps and tools."""

    _structure: Structure = PrivateAttr()
    _calls: dict[str | None, tuple[str | None, Any]] = PrivateAttr(default_factory=dict)
    """By the step that runs a tool: the call's id, and its arguments as the model wrote them."""

    def __init__(self, structure: Structure) -> None:
        super().__init__()
        self._structure = structure

    @classmethod
    def class_name(cls) -> str:
        return "RollbusSpans"

    def new_span(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any | None = None,
        parent_span_id: str | None = None,
        tags: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> BaseSpan:
        if isinstance(instance, BaseTool):
            name, (call_id, written_arguments) = instance.metadata.name, self._calls.get(parent_span_id, (None, None))
            given_arguments = bound_args.arguments.get("kwargs") or bound_args.arguments.get("input") or {}
            arguments = given_arguments if written_arguments is None else written_arguments
            self._structure.tool_started(
                id_, parent_span_id, name=name or type(instance).__name__, arguments=arguments, tool_call_id=call_id
            )
        else:
            event = bound_args.arguments.get("ev")
            if isinstance(call_id := getattr(event, "tool_id", None), str):
                self._calls[id_] = call_id, getattr(event, "tool_kwargs", None)
            agent = getattr(instance, "name", None)
            is_agent = isinstance(agent, str)
            name = str(agent) if is_agent else _agent_of_step(bound_args)
            self._structure.run_started(id_, parent_span_id, name, is_agent=is_agent)
        return BaseSpan(id_=id_, parent_id=parent_span_id)

    def prepare_to_exit_span(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any | None = None,
        result: Any | None = None,
        **kwargs: Any,
    ) -> BaseSpan | None:
        if isinstance(instance, BaseTool):
            has_failed = isinstance(result, ToolOutput) and result.is_error
            text = result.content if isinstance(result, ToolOutput) else result
            fields: ToolFields = {"error": text} if has_failed else {"result": text}
            self._structure.tool_ended(id_, **fields)
        else:
            self._calls.pop(id_, None)
            self._structure.run_ended(id_)
        return self.open_spans.get(id_)

    def prepare_to_drop_span(
        self,
        id_: str,
        bound_args: inspect.BoundArguments,
        instance: Any | None = None,
        err: BaseException | None = None,
        **kwargs: Any,
    ) -> BaseSpan | None:
        if isinstance(instance, BaseTool):
            self._structure.tool_failed(id_, err)
        else:
            self._structure.model_ended(("model", id_))  # a chat that fails has no end event
            self._calls.pop(id_, None)
            self._structure.run_ended(id_, err)
        return self.open_spans.get(id_)


@guard_hooks
class _Events(BaseEventHandler):
    """Calls of chat models."""

    _structure: Structure = PrivateAttr()

    def __init__(self, structure: Structure) -> None:
        super().__init__()
        self._structure = structure

    @classmethod
    def class_name(cls) -> str:
        return "RollbusEvents"

    def handle(self, event: BaseEvent, **kwargs: Any) -> Any:
        if isinstance(event, LLMChatStartEvent):
            self._structure.model_started(("model", event.span_id), event.span_id)
        elif isinstance(event, LLMChatEndEvent):
            self._structure.model_ended(("model", event.span_id), lambda: _exchange(event))


def _agent_of_step(bound_args: inspect.BoundArguments) -> str:
    event = bound_args.arguments.get("ev")
    for field in AGENT_OF_STEP:
        if isinstance(name := getattr(event, field, None), str):
            return name
    return ""


def _exchange(event: LLMChatEndEvent) -> Exchange | None:
    """Return what LlamaIndex saw of a call: texts, no tokens."""
    if event.response is None:
        return None
    raw, message = event.response.raw, event.response.message
    answer = ServerAnswer(
        model=str(getattr(raw, "model", None) or ""),
        response_id=getattr(raw, "id", None),
        choices=(
            AnswerChoice(content=message.content, tool_calls=tuple(message.additional_kwargs.get("tool_calls") or ())),
        ),
    )
    request = {"messages": to_openai_message_dicts(event.messages)}
    return Exchange(request=request, answer=answer, withheld=NOT_CAPTURED)
