"""OpenInference's attributes of a span → a call, a tool or an agent.

An LLM span often has the whole request and response of OpenAI's API as `input.value` and `output.value`; these say more
than the flattened messages, so they are read first.
"""

from collections.abc import Mapping
from typing import Any

from rollbus.producers.imports.formats.answers import read_answer, read_request
from rollbus.producers.imports.formats.attributes import nest
from rollbus.producers.imports.formats.trace import Fields, ImportedCall, ImportedTool
from rollbus.producers.turns.answer import ServerAnswer
from rollbus.producers.turns.foreign_messages import read_json, read_messages, read_result, read_tools

KIND = "openinference.span.kind"
CALLS = ("LLM",)
TOOLS = ("TOOL",)
AGENTS = ("AGENT",)


def read_call(fields: Fields) -> ImportedCall:
    """Return the call of an LLM span, which may have got no answer."""
    parameters = read_json(fields.take("llm.invocation_parameters"))
    model = fields.text("llm.model_name", "llm.response.model_name")
    fields.take("llm.system", "llm.provider", "input.mime_type", "output.mime_type", "llm.token_count.total")
    input_value, output_value = read_json(fields.take("input.value")), read_json(fields.take("output.value"))
    inputs, outputs = (_messages(nest(fields.below(f"llm.{side}_messages."))) for side in ("input", "output"))
    inputs = inputs or read_messages(fields.take("llm.prompts"))
    tools = [tool.get("tool", {}).get("json_schema") for tool in _objects(nest(fields.below("llm.tools.")))]
    more = {**parameters, "model": model} if isinstance(parameters, Mapping) else {"model": model}
    is_request = isinstance(input_value, Mapping) and isinstance(input_value.get("messages"), list)
    request = read_request(input_value if is_request or not inputs else {"messages": inputs}, **more)
    request |= {"tools": read_tools(tools)} if any(tools) and not request.get("tools") else {}
    if isinstance(output_value, list) and len(output_value) == 1:  # a stream of OpenAI Agents
        (output_value,) = output_value
    is_response = isinstance(output_value, Mapping) and any(
        isinstance(output_value.get(name), list) for name in ("choices", "generations", "output")
    )
    usage = {
        "prompt_tokens": fields.take("llm.token_count.prompt"),
        "completion_tokens": fields.take("llm.token_count.completion"),
    }
    fields.below("llm.token_count.")
    finish = fields.text("llm.finish_reason")
    whole = output_value if is_response or not outputs else outputs
    answer = read_answer(whole, model=model, finish_reason=finish, usage=usage)
    answer = answer or ServerAnswer(model=model or "")
    return ImportedCall(request=request, answer=answer, streamed=more.get("stream") is True)


def read_tool(fields: Fields, name: str) -> ImportedTool:
    """Return the tool of a TOOL span."""
    fields.take("tool.description", "tool.json_schema", "input.mime_type", "output.mime_type")
    arguments = fields.take("input.value", "tool_call.function.arguments", "tool.parameters")
    result, call_id = read_result(fields.take("output.value"))
    return ImportedTool(
        name=fields.text("tool.name", "tool_call.function.name") or name.removesuffix(".__call__"),  # as DSPy's is
        arguments=arguments if arguments is not None else "",
        result=result,
        call_id=fields.text("tool_call.id", "tool.id") or call_id,
    )


def _messages(listed: Any) -> list[dict[str, Any]]:
    """Return messages out of `message.role`, `message.contents.0.message_content.text` and the like."""
    return [message for entry in _objects(listed) for message in read_messages([_message(entry.get("message"))])]


def _message(flat: Any) -> dict[str, Any]:
    message = dict(flat) if isinstance(flat, Mapping) else {}
    calls = [entry.get("tool_call") for entry in _objects(message.pop("tool_calls", None))]
    contents = [part.get("message_content") for part in _objects(message.pop("contents", None))]
    name = message.pop("function_call_name", None)
    if name is not None:
        calls.append({"function": {"name": name, "arguments": message.pop("function_call_arguments_json", "")}})
    if calls := [call for call in calls if isinstance(call, Mapping)]:
        message["tool_calls"] = [dict(call) for call in calls]
    if contents := [dict(content) for content in contents if isinstance(content, Mapping)]:
        message["content"] = contents
    return {"role": "assistant", **message}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
