"""Chat messages of any tool → the OpenAI form.

Reads OpenAI's own, OpenTelemetry's and Google's `parts`, Anthropic's content blocks, those of Vercel's AI SDK,
LangChain's objects (dumped or serialised), and JSON text of all of these. What has no such form stays a part of the
content, as it came.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rollbus.producers.turns.answer import json_of
from rollbus.schemas.ids import parse_json

ROLES = {
    "human": "user",
    "humanmessage": "user",
    "ai": "assistant",
    "aimessage": "assistant",
    "aimessagechunk": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "systemmessage": "system",
    "toolmessage": "tool",
    "functionmessage": "function",
    "humanmessagechunk": "user",
}
"""Other names of OpenAI's roles, in small letters."""
CARRIED = ("name", "tool_call_id", "refusal", "reasoning_content", "reasoning", "finish_reason")
"""Fields of a message that have the same name everywhere."""
RESULTS = ("tool_result", "tool_call_response", "tool-result")
CALLS = ("tool_use", "tool_call", "tool-call")
REASONING = ("reasoning", "thinking", "redacted_thinking")
GOOGLE_CALLS, GOOGLE_RESULTS = ("functionCall", "function_call"), ("functionResponse", "function_response")
"""Fields of Google's parts: as its API writes them, and as its Python package does."""
Message = dict[str, Any]


def read_json(value: Any) -> Any:
    """Return what a text holds where it is JSON of an object or a list; anything else as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return parse_json(value)
    except ValueError:
        return value


def read_messages(value: Any, role: str = "user") -> list[Message]:
    """Return the messages that a value holds; `role` is that of a text that names none."""
    value = read_json(value)
    if _holds_nothing(value):
        return []
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, Mapping):
        if is_message(value):
            return list(_messages_of(value, role))
        for name in ("messages", "message", "input", "prompt", "output", "content", "text", "question", "query"):
            if value.get(name):
                return read_messages(value[name], role)
        return [{"role": role, "content": json_of(value)}]
    if isinstance(value, Sequence):
        return [message for element in value for message in read_messages(element, role)]
    return [{"role": role, "content": str(value)}]


def _holds_nothing(value: Any) -> bool:
    if isinstance(value, Mapping):  # such as the output of a call that failed
        return all(content in (None, "", [], {}) for content in value.values())
    return value is None or value == ""


def read_result(value: Any) -> tuple[Any, str | None]:
    """Return what a tool has answered and the id of its call, where these came as a message, as of LangChain's tools;
    else the value as it came, and None.
    """
    result = read_json(value)
    if isinstance(result, Mapping) and isinstance(result.get("output"), str | Mapping):
        result = read_json(result["output"])
    messages = read_messages(result) if is_message(result) else []
    if len(messages) == 1 and messages[0]["role"] == "tool":
        return messages[0]["content"], messages[0].get("tool_call_id")
    return value, None


def is_message(value: Any) -> bool:
    """Say whether a value is one message, in any of the known forms."""
    if not isinstance(value, Mapping):
        return False
    has_parts = isinstance(value.get("parts"), list)
    return (
        "role" in value
        or has_parts
        or _is_langchain(value)
        or (value.get("type") == "constructor" and "kwargs" in value)
    )


def _is_langchain(value: Mapping[str, Any]) -> bool:
    kind = value.get("type")
    has_role = isinstance(kind, str) and (kind.lower() in ROLES or kind in ("system", "tool", "function"))
    return has_role and ("content" in value or "data" in value)


def _messages_of(value: Mapping[str, Any], role: str) -> Iterable[Message]:
    if value.get("type") == "constructor":
        path = value.get("id")
        kind = path[-1] if isinstance(path, list) and path else ""
        value = {"type": kind, **value["kwargs"]} if isinstance(value["kwargs"], Mapping) else {"type": kind}
        value = {**value, "type": kind}
    elif isinstance(value.get("data"), Mapping) and "role" not in value:
        value = {**value["data"], "type": value.get("type")}
    extra = value.get("additional_kwargs")
    if isinstance(extra, Mapping):
        value = {**extra, **value}
    role_name = str(value.get("role") or value.get("type") or role)
    message: Message = {"role": ROLES.get(role_name.lower(), role_name)}
    message |= {name: value[name] for name in CARRIED if value.get(name)}
    calls = [tool_call(call) for call in _list_or_empty(value.get("tool_calls"))]
    blocks = value.get("parts") if value.get("parts") is not None else read_blocks(value.get("content"))
    if not isinstance(blocks, list):
        return [_finish_message(message, blocks, calls)]
    return _of_blocks(message, blocks, calls)


def read_blocks(content: Any) -> Any:
    """Return content that is a JSON list of blocks as this list; any other content as it is."""
    blocks = read_json(content)
    is_blocks = (
        isinstance(blocks, list) and blocks and all(isinstance(block, Mapping) and "type" in block for block in blocks)
    )
    return blocks if is_blocks else content


def _of_blocks(message: Message, blocks: list[Any], calls: list[Message]) -> Iterable[Message]:
    """Yield tool results as messages of their own, then the message with what is left."""
    content_blocks: list[Any] = []
    results: list[Message] = []
    called = bool(calls)
    for block in map(_typed_block, blocks):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind in RESULTS:
            results.append(_result(block))
        elif kind in CALLS:
            calls = calls if called else [*calls, tool_call(block)]
        elif kind in REASONING:
            text = block.get("content") or block.get("thinking") or block.get("text") or block.get("reasoning") or ""
            message["reasoning_content"] = message.get("reasoning_content", "") + str(text)
        else:
            content_blocks.append(_content_block(block))
    texts = [block.get("text") for block in content_blocks if block.get("type") == "text"]
    content: Any = content_blocks if len(texts) < len(content_blocks) else "".join(map(str, texts)) or None
    if content is None and not calls and results:
        return results
    return [*results, _finish_message(message, content, calls)]


def _typed_block(part: Any) -> Any:
    """Return a part of a message of Google's as a block that says what it is; anything else as it came."""
    if not isinstance(part, Mapping) or "type" in part:
        return part
    if call := next((part[name] for name in GOOGLE_CALLS if part.get(name)), None):
        return {**call, "type": "tool_call", "args": json.dumps(call.get("args") or {})}
    if result := next((part[name] for name in GOOGLE_RESULTS if part.get(name)), None):
        return {**result, "type": "tool_call_response"}
    return {"type": "reasoning" if part.get("thought") else "text", **part} if "text" in part else part


def _content_block(block: Any) -> Message:
    if isinstance(block, str):
        return {"type": "text", "text": block}
    if not isinstance(block, Mapping):
        return {"type": "text", "text": json_of(block)}
    if block.get("type") in ("text", "input_text", "output_text"):
        return {"type": "text", "text": block.get("text") or block.get("content") or ""}
    return dict(block)


def _result(block: Mapping[str, Any]) -> Message:
    result = next(
        (block[name] for name in ("response", "result", "content", "output") if block.get(name) is not None), ""
    )
    if block.get("type") == "tool-result" and isinstance(result, Mapping) and "value" in result:
        result = result["value"]
    result = read_blocks(result)
    if isinstance(result, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in result):
        result = "".join(str(part.get("text") or "") for part in result)
    content = result if isinstance(result, str) else json_of(result)
    return {"role": "tool", "tool_call_id": block.get("tool_use_id") or _call_id(block), "content": content}


def _call_id(call: Mapping[str, Any]) -> Any:
    return call.get("id") or call.get("toolCallId")


def _finish_message(message: Message, content: Any, calls: list[Message]) -> Message:
    if isinstance(content, Mapping):
        content = json_of(content)
    message["content"] = content
    if calls:
        message["tool_calls"] = calls
    return message


def tool_call(call: Any) -> Message:
    """Return a tool call in the OpenAI form, from OpenAI's own, LangChain's, Anthropic's or OpenTelemetry's."""
    if not isinstance(call, Mapping):
        return {"type": "function", "function": {"name": "", "arguments": json_of(call)}}
    function = call.get("function")
    source: Mapping[str, Any] = function if isinstance(function, Mapping) else call
    arguments = next((source[key] for key in ("arguments", "args", "input") if source.get(key) is not None), "")
    return {
        "id": _call_id(call),
        "type": "function",
        "function": {
            "name": source.get("name") or source.get("toolName") or "",
            "arguments": arguments if isinstance(arguments, str) else json_of(arguments),
        },
    }


def read_tools(value: Any) -> list[Any]:
    """Return tool schemas in the OpenAI form, where they are a list of objects; none for anything else."""
    tools = []
    for tool in _list_or_empty(read_json(value)):
        tool = read_json(tool)
        if isinstance(tool, Mapping):
            is_openai = isinstance(tool.get("function"), Mapping)
            tools.append(
                dict(tool) if is_openai or "name" not in tool else {"type": "function", "function": _schema(tool)}
            )
    return tools


def _schema(tool: Mapping[str, Any]) -> Message:
    parameters = tool.get("parameters") or tool.get("input_schema") or tool.get("inputSchema")
    fields = {"name": tool.get("name"), "description": tool.get("description"), "parameters": parameters}
    return {name: value for name, value in fields.items() if value is not None}


def _list_or_empty(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
