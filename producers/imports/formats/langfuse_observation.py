"""What an observation of Langfuse is: a call of a model, a tool, an agent, or only a place in the tree.

The fields have the names of its API; its exports have them, and so do the spans of its SDK.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollbus.producers.imports.formats.answers import read_answer, read_count, read_request
from rollbus.producers.imports.formats.trace import Fields, ImportedCall, ImportedTool
from rollbus.producers.turns.answer import AnswerChoice, ServerAnswer
from rollbus.producers.turns.foreign_messages import read_json, read_result

AGENTS = ("AGENT",)
CALLS = ("GENERATION",)
TOOLS = ("TOOL",)
FINISH_REASON = "finish_reason"
"""In the metadata of a streamed call that Langfuse's own client for OpenAI has seen."""

MIXED_CHOICES, MAX_CHOICES = "mixed_choices", 128
"""The reason of turns whose texts are lost: of several choices, Langfuse's own client keeps the first, or of a stream
all in one text.
"""


def read_observation(
    kind: str, name: str, fields: Fields, finish_reason: str | None
) -> ImportedCall | ImportedTool | None:
    """Return the call or the tool that an observation is."""
    inputs, outputs = fields.take("input"), fields.take("output")
    is_stream = fields.take("completion_start_time") is not None
    model = fields.text("model", "provided_model_name")
    parameters = read_json(fields.take("model_parameters"))
    usage = read_json(fields.take("usage_details", "provided_usage_details", "usage"))
    if kind in CALLS:
        more = parameters if isinstance(parameters, Mapping) else {}
        answer = read_answer(outputs, model=model, usage=usage, finish_reason=finish_reason)
        choices = read_count(more, ("n",)) or 0
        if answer is not None and len(answer.choices) < choices <= MAX_CHOICES:
            empty = tuple(AnswerChoice(index=index) for index in range(choices))
            answer = replace(answer, choices=empty, problem=MIXED_CHOICES)
        inputs, tools = _split_tools(read_json(inputs))
        request = read_request(inputs, **{**more, "model": model})
        definitions = _read_definitions(read_json(fields.take("tool_definitions")))
        if tools := tools or definitions:
            request.setdefault("tools", tools)
        fields.take("tool_calls", "tool_call_names")  # they are in the output
        return ImportedCall(request=request, answer=answer or ServerAnswer(model=model or ""), streamed=is_stream)
    if kind in TOOLS:
        result, call_id = read_result(read_json(outputs))
        return ImportedTool(
            name=name, arguments=read_json(inputs) if inputs is not None else "", result=result, call_id=call_id
        )
    return None


def _split_tools(inputs: Any) -> tuple[Any, list[Any]]:
    """Return what was asked, and the schemas of tools that Langfuse's callback for LangChain has among the messages."""
    if not isinstance(inputs, list):
        return inputs, []
    schemas = [message["content"] for message in inputs if _is_schema(message)]
    return [message for message in inputs if not _is_schema(message)], schemas


def _read_definitions(definitions: Any) -> list[Any]:
    """Return the schemas of tools, which an export has by their names, each as JSON text with JSON text within it."""
    if not isinstance(definitions, Mapping):
        return definitions if isinstance(definitions, list) else []
    functions = []
    for name, definition in definitions.items():
        schema = read_json(definition)
        schema = schema if isinstance(schema, Mapping) else {}
        functions.append({**schema, "name": str(name), "parameters": read_json(schema.get("parameters"))})
    return [{"type": "function", "function": function} for function in functions]


def _is_schema(message: Any) -> bool:
    content = message.get("content") if isinstance(message, Mapping) else None
    return isinstance(content, Mapping) and content.get("type") == "function" and message.get("role") == "tool"
