"""Messages in OpenAI's form → messages as a reader takes them. Pure.

A chat template prints what it is given: arguments that are JSON text are encoded a second time, and a key that is null
is printed as "None" or raises. So templates get objects and no null keys. What a form has no place for is never dropped
from a message: the row raises UnfitRowError, and the export counts it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollbus.consumers.export.numbers import HALF_CHARACTER, UnfitRowError, is_unicode
from rollbus.schemas.ids import parse_json

ChatMessage = Mapping[str, Any]
"""OpenAI's form: role, content, and tool calls if any, with their arguments as the text that the model wrote."""
Form = Callable[[Sequence[ChatMessage]], list[dict[str, Any]]]
_NEMO_ROLES = frozenset({"system", "user", "assistant", "tool"})


def for_templates(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages whose arguments are objects; a message without content has an empty one."""
    return [_without_nulls(message) | _calls(message, _as_object) for message in messages]


def for_axolotl(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages for Axolotl, which reads arguments of text itself; of objects it drops what is null."""
    return [_without_nulls(message) | _calls(message, _as_json) for message in messages]


def for_nemo(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages for NeMo AutoModel, which writes arguments as text whatever they were."""
    for message in messages:
        if message["role"] not in _NEMO_ROLES:
            raise UnfitRowError(f"with a message of role {message['role']!r}, which NeMo refuses")
        if message["role"] == "tool" and not message.get("tool_call_id"):
            raise UnfitRowError("with a tool's result that names no call, which NeMo refuses")
    return for_axolotl(messages)


def for_openai(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages for OpenAI's API, which takes arguments as text and has no field for thinking."""
    if any(message.get("reasoning_content") for message in messages):
        raise UnfitRowError("with thinking, for which OpenAI's form has no field")
    return [_of_openai(message) for message in messages]


def only_text(reader: str) -> Form:
    """Return the form of a reader that passes nothing but role and content to the template."""

    def convert(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
        for message in messages:
            if message.get("tool_calls") or message["role"] == "tool":
                raise UnfitRowError(f"with tool calls, which {reader} does not pass on as they are")
            if message.get("reasoning_content"):
                raise UnfitRowError(f"with thinking, which {reader} does not pass on as it is")
        return [{"role": message["role"], "content": message.get("content") or ""} for message in messages]

    return convert


def tool_schemas(tools: str) -> list[Any] | None:
    """Return the schemas of the tools that a turn was offered; None without any."""
    try:
        schemas = parse_json(tools) if tools else None
    except ValueError:  # withheld or masked
        schemas = ()
    if schemas is not None and not isinstance(schemas, list):
        raise UnfitRowError("with tool schemas that are not a JSON list")
    return schemas or None


def _of_openai(message: ChatMessage) -> dict[str, Any]:
    chat = _without_nulls(message) | _calls(message, _as_json)
    if chat.get("tool_calls") and not chat["content"]:
        chat["content"] = None
    if message["role"] == "tool":
        chat.pop("name", None)  # the call that it answers has the name
    return chat


def _without_nulls(message: ChatMessage) -> dict[str, Any]:
    fields = {name: value for name, value in message.items() if value is not None and name != "tool_calls"}
    return fields | {"content": message.get("content") or ""}


def _calls(message: ChatMessage, convert: Callable[[Any], Any]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return {}
    return {"tool_calls": [_call(call, convert) for call in message["tool_calls"]]}


def _call(call: Mapping[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, Mapping) or not function.get("name"):
        raise UnfitRowError("with a tool call that is not a function's")
    fields = {name: value for name, value in call.items() if value is not None and name != "index"}
    kind = {} if fields.get("type") else {"type": "function"}
    return kind | fields | {"function": {**function, "arguments": convert(function.get("arguments"))}}


def _as_object(arguments: Any) -> dict[str, Any]:
    try:
        text = isinstance(arguments, str) and arguments
        value = parse_json(arguments, is_strict=True) if text else arguments or {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UnfitRowError("with arguments that are not a JSON object")
    if not is_unicode(json.dumps(value, ensure_ascii=False)):
        raise UnfitRowError(HALF_CHARACTER)
    return value


def _as_json(arguments: Any) -> str:
    """Return arguments as the model wrote them, if they are an object."""
    value = _as_object(arguments)
    return arguments if isinstance(arguments, str) and arguments else json.dumps(value)
