"""OpenTelemetry's GenAI conventions, old and new → a call, a tool or a score.

Messages were written in four ways, all of which are read: attributes with JSON (`gen_ai.input.messages`), flattened
attributes (`gen_ai.prompt.0.content`), two events with JSON (`gen_ai.content.prompt`), and an event per message
(`gen_ai.user.message`, `gen_ai.choice`). Events come within the span, or as log records that name it. Vercel's AI SDK
has the conventions' names for models, settings and counts, and names of its own (`ai.…`) for all that is said.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rollbus.producers.imports.formats.answers import read_answer, read_request
from rollbus.producers.imports.formats.attributes import nest
from rollbus.producers.imports.formats.trace import NO_CONTENT, Fields, ImportedCall, ImportedTool
from rollbus.producers.turns.answer import AnswerChoice, ServerAnswer
from rollbus.producers.turns.foreign_messages import Message, read_json, read_messages, read_result, read_tools
from rollbus.producers.turns.sampled_message import choice_of

CALLS = ("chat", "text_completion", "generate_content")
TOOLS = ("execute_tool",)
AGENTS = ("invoke_agent", "create_agent", "invoke_workflow")
DETAILS = "gen_ai.client.inference.operation.details"
ADK_EVENT = "gcp.vertex.agent.event_id"
"""Is in the spans of Google's ADK, which has each piece of a stream as a message, and all of it as the last one, unless
the stream was left.
"""
EVALUATION = "gen_ai.evaluation.result"
CHOICE = "gen_ai.choice"
MESSAGE_EVENTS = {
    "gen_ai.system.message": "system",
    "gen_ai.user.message": "user",
    "gen_ai.assistant.message": "assistant",
    "gen_ai.tool.message": "tool",
}
SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "frequency_penalty", "presence_penalty", "seed")
OTHER_TOOLS = {
    "name": ("haystack.tool.name", "ai.toolCall.name"),
    "input": ("haystack.agent.step.tool.input", "ai.toolCall.args"),
    "output": ("haystack.agent.step.tool.output", "ai.toolCall.result"),
}
"""Names that Haystack and Vercel's AI SDK have for a tool."""
Event = tuple[str, Mapping[str, Any]]
"""Name and fields: the attributes, and those of the body of a log record."""


def is_call(operation: str | None, fields: Fields) -> bool:
    """Say whether a span with these attributes is a call of a model."""
    if operation is not None:
        return operation in CALLS
    return fields.take("gen_ai.request.model", "gen_ai.response.model", "llm.request.type") is not None


def read_call(fields: Fields, events: Sequence[Event]) -> ImportedCall | None:
    """Return the call of a span and its events, which may have got no answer; None where nothing says that it asked."""
    sampling: dict[str, Any] = {name: fields.take(f"gen_ai.request.{name}") for name in SAMPLING}
    sampling["seed"] = fields.take("gen_ai.request.seed", "gen_ai.openai.request.seed")
    model = fields.text("gen_ai.request.model")
    finish = read_json(fields.take("gen_ai.response.finish_reasons"))
    usage = {
        "prompt_tokens": fields.take("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
        "completion_tokens": fields.take("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
    }
    for name in ("system", "provider.name", "openai.response.service_tier", "request.encoding_formats"):
        fields.take(f"gen_ai.{name}")
    fields.below("gen_ai.usage.")
    tools = fields.take("gen_ai.tool.definitions", "gen_ai.request.tools", "ai.prompt.tools")
    flat_tools = nest(fields.below("llm.request.functions."))
    messages, outputs = _read_messages(fields, events)
    if fields.take(ADK_EVENT) and len(outputs) > 1 and not outputs[-1].get("finish_reason"):
        outputs = [{**outputs[0], "content": "".join(output.get("content") or "" for output in outputs)}]
    request = read_request({"messages": messages}, model=model, **sampling)
    request["tools"] = read_tools(tools) or read_tools(flat_tools) or None
    reasons = [None if reason is None else str(reason) for reason in finish] if isinstance(finish, list) else []
    answer = read_answer(
        _choices_of(outputs, reasons, usage),
        model=fields.text("gen_ai.response.model") or model,
        response_id=fields.text("gen_ai.response.id"),
        finish_reason=reasons[0] if reasons else None,
        usage=usage,
    )
    is_stream = (fields.text("ai.operationId") or "").endswith("doStream")
    is_stream = is_stream or "time_to_first_chunk" in fields.below("gen_ai.client.operation.")
    streamed = is_stream or fields.take("llm.is_streaming", "gen_ai.is_streaming") is True
    if answer is None and model is None:
        return None
    return ImportedCall(request=request, answer=answer or ServerAnswer(model=model or ""), streamed=streamed)


def _choices_of(outputs: list[Message], reasons: list[str | None], usage: Mapping[str, Any]) -> Any:
    """Return the choices of an answer: the messages, if there is a reason for the end of each; a choice without content
    where only a reason, or the count of its tokens, was recorded.
    """
    if not outputs and (reasons or usage["completion_tokens"]):
        return ServerAnswer(choices=tuple(AnswerChoice(index=i) for i in range(len(reasons) or 1)), problem=NO_CONTENT)
    if len(outputs) < 2 or (
        len(reasons) != len(outputs) and not all(output.get("finish_reason") for output in outputs)
    ):
        return outputs
    reason_by_index: dict[int, str | None] = dict(enumerate(reasons if len(reasons) == len(outputs) else ()))
    choices = [
        choice_of({"finish_reason": reason_by_index.get(index), **message}, index)
        for index, message in enumerate(outputs)
    ]
    return ServerAnswer(choices=tuple(choices))


def read_tool(fields: Fields, name: str, events: Sequence[Event]) -> ImportedTool:
    """Return the tool of a span; what it has no attribute for, its events may have, as those of Strands do."""
    fields.take("gen_ai.tool.type", "gen_ai.tool.description")
    by_event = dict(events)
    arguments = fields.take("gen_ai.tool.call.arguments", "traceloop.entity.input", *OTHER_TOOLS["input"])
    result = fields.take("gen_ai.tool.call.result", "traceloop.entity.output", *OTHER_TOOLS["output"])
    if arguments is None:
        arguments = by_event.get("gen_ai.tool.message", {}).get("content")
    callback = read_json(arguments)
    if isinstance(callback, Mapping) and {"input_str", "inputs"} <= callback.keys():  # OpenLLMetry's, of LangChain
        arguments = callback["inputs"]
    result, call_id = read_result(by_event.get(CHOICE, {}).get("message") if result is None else result)
    return ImportedTool(
        name=fields.text("gen_ai.tool.name", "traceloop.entity.name", *OTHER_TOOLS["name"]) or name,
        arguments="" if arguments is None else arguments,
        result=result,
        call_id=fields.text("gen_ai.tool.call.id", "ai.toolCall.id") or call_id,
    )


def _read_messages(fields: Fields, events: Sequence[Event]) -> tuple[list[Message], list[Message]]:
    if inputs := read_messages(fields.take("ai.prompt.messages")):
        return inputs, _read_vercel_answer(fields)
    details = [Fields(event_fields) for name, event_fields in events if name == DETAILS]
    for source in (fields, *details):
        inputs = read_messages(source.take("gen_ai.input.messages"))
        outputs = read_messages(source.take("gen_ai.output.messages"), "assistant")
        system = read_json(source.take("gen_ai.system_instructions"))
        if inputs or outputs:
            return [*_system(system), *inputs], outputs
    flat = [nest(fields.below(f"gen_ai.{side}.")) for side in ("prompt", "completion")]
    whole = [fields.take(f"gen_ai.{side}") for side in ("prompt", "completion")]
    for name, event_fields in events:
        for index, side in enumerate(("prompt", "completion")):
            if name == f"gen_ai.content.{side}":
                whole[index] = event_fields.get(f"gen_ai.{side}") or event_fields.get("gen_ai.event.content")
    inputs = read_messages(flat[0]) or read_messages(whole[0])
    outputs = read_messages(flat[1], "assistant") or read_messages(whole[1], "assistant")
    event_inputs, event_outputs = _of_events(events)
    return inputs or event_inputs, outputs or event_outputs


def _read_vercel_answer(fields: Fields) -> list[Message]:
    """Return the answer of a span of Vercel's AI SDK; none where it has neither a text nor a call."""
    text, calls = fields.take("ai.response.text"), read_json(fields.take("ai.response.toolCalls"))
    message = {"content": text or None, "tool_calls": calls, "reasoning": fields.take("ai.response.reasoning")}
    return read_messages([{"role": "assistant", **message}]) if text or calls else []


def _system(instructions: Any) -> list[Message]:
    if isinstance(instructions, list) and all(
        isinstance(instruction, Mapping) and "role" not in instruction for instruction in instructions
    ):
        return read_messages([{"role": "system", "parts": instructions}]) if instructions else []
    return read_messages(instructions, "system")


def _of_events(events: Sequence[Event]) -> tuple[list[Message], list[Message]]:
    """Return the messages asked and answered of an event per message."""
    inputs: list[Message] = []
    outputs: list[Message] = []
    for name, event_fields in events:
        content = read_json(event_fields.get("gen_ai.event.content"))
        body = {**event_fields, **content} if isinstance(content, Mapping) else dict(event_fields)
        if name == CHOICE:
            inner = read_json(body.get("message"))
            message = dict(inner) if isinstance(inner, Mapping) else {"content": inner or body.get("content")}
            message.setdefault("tool_calls", read_json(body.get("tool_calls")))
            message.setdefault("finish_reason", body.get("finish_reason"))
            outputs += read_messages([{"role": "assistant", **message}])
        elif name in MESSAGE_EVENTS:
            called = {"tool_call_id": body.get("id")} if name == "gen_ai.tool.message" else {}
            fields = {key: read_json(body[key]) for key in ("content", "tool_calls", "name", "parts") if key in body}
            inputs += read_messages([{"role": body.get("role") or MESSAGE_EVENTS[name], **fields, **called}])
    return inputs, outputs
