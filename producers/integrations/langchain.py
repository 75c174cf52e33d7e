"""LangChain and LangGraph: a callback handler for structure, and chat models whose calls are recorded token by token.

    model = record_model(ChatOpenAI(model="agent"), rb)
    graph = create_react_agent(model, tools)
    with rb.episode(task="refund"):
        graph.invoke(inputs, config={"callbacks": [RollbusHandler(rb)]})

The handler runs in line with the framework's own code (also in async graphs), so that what it makes current is current
where the model is called.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, Unpack, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, LLMResult

from rollbus.producers.episode.episode import ToolFields
from rollbus.producers.integrations.structure import Structure, guard_hooks
from rollbus.producers.recorder import Recorder, WrapOptions
from rollbus.producers.turns.answer import AnswerChoice, ServerAnswer
from rollbus.producers.turns.foreign_messages import read_messages
from rollbus.producers.turns.sampled_message import choice_of
from rollbus.producers.turns.turn_record import NOT_CAPTURED, Exchange

Model = TypeVar("Model")
NAMES = ("lc_agent_name", "langgraph_node")
"""Where a run's metadata names the agent that asks; where it has no name, its node does: all agents' is `model`."""
NO_ERROR, PAUSE = "GraphBubbleUp", "GraphInterrupt"
"""LangGraph's exceptions that are not errors, such as where a graph above goes on; of them, those that ask a person."""
RESUME = "Command"
"""What a run is given in place of its input to go on with what an earlier one has paused."""
_CLIENTS = (("root_client", "client"), ("root_async_client", "async_client"))


class _HandlerClass(type):
    """Of a class that has the handlers of its `recorder` as its objects."""

    def __instancecheck__(cls, handler: object) -> bool:
        return isinstance(handler, RollbusHandler) and handler.recorder is vars(cls)["recorder"]


def handler_class_of(recorder: Recorder) -> Any:
    """Return the class by which LangChain sees that a run has a handler of this recorder already."""
    return _HandlerClass("HandlerOfRecorder", (), {"recorder": recorder})


def record_model(model: Model, recorder: Recorder, **options: Unpack[WrapOptions]) -> Model:
    """Return a copy of a `ChatOpenAI` (or a class built on it) on wrapped clients; `options` are those of `wrap`.

    Raises TypeError where the model has no OpenAI client beneath it: such a model's turns have no tokens.
    """
    if not all(hasattr(model, root) for root, _ in _CLIENTS):
        raise TypeError(f"{type(model).__name__} has no OpenAI client; use a ChatOpenAI, or `rollbus proxy run`")
    copied: Any = model.model_copy()  # type: ignore[attr-defined]
    record_clients(copied, recorder, **options)
    return cast(Model, copied)


def record_clients(model: Any, recorder: Recorder, **options: Unpack[WrapOptions]) -> None:
    """Put wrapped clients in place of the OpenAI clients of a model; one without any stays as it is."""
    for root, resource in _CLIENTS:
        if (client := getattr(model, root, None)) is not None:
            wrapped = recorder.wrap(client, **options)
            setattr(model, root, wrapped)
            setattr(model, resource, wrapped.chat.completions)


@guard_hooks
class RollbusHandler(BaseCallbackHandler):
    """Reports to the recorder what LangChain and LangGraph do; one handler serves any number of runs at once."""

    run_inline = True
    raise_error = False

    def __init__(self, recorder: Recorder, *, task: str | None = None, child_agents: Collection[str] = ()) -> None:
        """Record into the current episode; with `task`, an outermost run without one is an episode of its own.

        Sub-graphs and agents named in `child_agents` become child episodes.
        """
        self.recorder = recorder
        self._structure = Structure(recorder, "langchain", task=task, child_agents=child_agents)
        self._prompts: dict[UUID, tuple[list[BaseMessage], Mapping[str, Any]]] = {}

    def on_chain_start(
        self,
        serialized: dict[str, Any] | None,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A chain, graph or node begins."""
        thread = (metadata or {}).get("thread_id")
        conversation = None if thread is None else str(thread)
        name = str(kwargs.get("name") or _name_of(metadata))
        resumes = type(inputs).__name__ == RESUME and getattr(inputs, "resume", None) is not None
        self._structure.run_started(run_id, parent_run_id, name, conversation=conversation, resumes=resumes)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """It is over."""
        self._structure.run_ended(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """It has failed, or waits for a person."""
        names = _class_names(error)
        if PAUSE in names:
            self._structure.run_paused(run_id)
        else:
            self._structure.run_ended(run_id, None if NO_ERROR in names else error)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any] | None,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A chat model is about to be called."""
        self._model_started(messages[0] if messages else [], run_id, parent_run_id, metadata, kwargs)

    def on_llm_start(
        self,
        serialized: dict[str, Any] | None,
        prompts: list[str],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A model of text is about to be called."""
        self._model_started([HumanMessage(prompt) for prompt in prompts], run_id, parent_run_id, metadata, kwargs)

    def _model_started(
        self,
        prompt: list[BaseMessage],
        run_id: UUID,
        parent_run_id: UUID | None,
        metadata: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> None:
        self._prompts[run_id] = (prompt, options.get("invocation_params") or {})
        self._structure.model_started(run_id, parent_run_id, _name_of(metadata))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """It has answered."""
        prompt, parameters = self._prompts.pop(run_id, ([], {}))
        self._structure.model_ended(run_id, lambda: _exchange(prompt, parameters, response))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """It has failed, or its stream was left."""
        self._prompts.pop(run_id, None)
        self._structure.model_ended(run_id)

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        inputs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """A tool is about to run."""
        name = str(kwargs.get("name") or (serialized or {}).get("name") or "")
        arguments = inputs if inputs is not None else input_str
        self._structure.tool_started(
            run_id, parent_run_id, name=name, arguments=arguments, tool_call_id=kwargs.get("tool_call_id")
        )

    def on_tool_end(self, output: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """It has a result."""
        fields: ToolFields = {"result": getattr(output, "content", output)}
        if getattr(output, "tool_call_id", None):
            fields["tool_call_id"] = output.tool_call_id
        self._structure.tool_ended(run_id, **fields)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """It has failed, or waits: `interrupt` of LangGraph leaves it by an exception, and runs it again later."""
        if NO_ERROR in _class_names(error):
            self._structure.tool_withdrawn(run_id)
        else:
            self._structure.tool_failed(run_id, error)


def _class_names(error: BaseException) -> list[str]:
    """Return the names of an error's classes: LangGraph's own module is not imported here."""
    return [cls.__name__ for cls in type(error).__mro__]


def _name_of(metadata: Mapping[str, Any] | None) -> str:
    return next((str(name) for key in NAMES if (name := (metadata or {}).get(key))), "")


def _exchange(prompt: Sequence[BaseMessage], parameters: Mapping[str, Any], response: LLMResult) -> Exchange | None:
    """Return what LangChain saw of a call: texts and counts, no tokens."""
    generations = response.generations[0] if response.generations else []
    messages = [_message(generation) for generation in generations]
    if not messages:
        return None
    response_metadata = messages[0].response_metadata
    usage = messages[0].usage_metadata if isinstance(messages[0], AIMessage) else None
    answer = ServerAnswer(
        model=str(response_metadata.get("model_name") or ""),
        response_id=response_metadata.get("id") or (response.llm_output or {}).get("id"),
        prompt_tokens=usage["input_tokens"] if usage else None,
        completion_tokens=usage["output_tokens"] if usage else None,
        choices=tuple(_choice(index, message) for index, message in enumerate(messages)),
    )
    request = {**parameters, "messages": convert_to_openai_messages(list(prompt))}
    return Exchange(request=request, answer=answer, withheld=NOT_CAPTURED)


def _message(generation: Any) -> BaseMessage:
    if isinstance(generation, ChatGeneration):
        return generation.message
    return AIMessage(generation.text, response_metadata=generation.generation_info or {})


def _choice(index: int, message: BaseMessage) -> AnswerChoice:
    fields: Any = convert_to_openai_messages(message)
    if not isinstance(fields.get("content"), str):  # blocks; a text stays as it is, also one that is JSON
        *_, fields = read_messages(fields) or [fields]
    return replace(choice_of(fields, index), finish_reason=message.response_metadata.get("finish_reason"))
