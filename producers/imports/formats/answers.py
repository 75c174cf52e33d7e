"""What a tool stored as input and output of a call → a request and an answer.

An answer that is a whole response of OpenAI's API is read as the capture reads it, so token ids and log-probs that a
server added are kept. Anything else becomes messages; a call without an answer is not a turn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rollbus.producers.capture.attributes import Attributes
from rollbus.producers.capture.completions import COMPLETIONS
from rollbus.producers.capture.responses import RESPONSES
from rollbus.producers.turns.answer import AnswerChoice, ServerAnswer, answer_of, count_of, read, text_of
from rollbus.producers.turns.foreign_messages import Message, read_json, read_messages, read_tools
from rollbus.producers.turns.sampled_message import choice_of, spell_finish_reason

INPUT_TOKENS = ("prompt_tokens", "input_tokens", "input", "promptTokens", "inputTokens")
OUTPUT_TOKENS = ("completion_tokens", "output_tokens", "output", "completionTokens", "outputTokens")

MAX_DIGITS = 20
"""Of a number of 64 bits."""


def read_request(value: Any, /, **more: Any) -> dict[str, Any]:
    """Return a request with its messages in the OpenAI form; `more` are fields that are known from elsewhere."""
    value = read_json(value)
    request: dict[str, Any] = {}
    if isinstance(value, Mapping) and ("messages" in value or "input" in value or "prompt" in value):
        request = {name: field for name, field in value.items() if name not in ("messages", "input", "prompt")}
        if "input" in value and "messages" not in value and isinstance(value["input"], str | list):
            converted = RESPONSES.convert_request(value)
            value, request = (
                converted["messages"],
                {key: field for key, field in converted.items() if key != "messages"},
            )
    request |= {name: field for name, field in more.items() if field is not None}
    if tools := read_tools(request.get("tools") or request.get("functions")):
        request["tools"] = tools
    request.pop("functions", None)
    return request | {"messages": read_messages(value)}


def read_answer(
    value: Any,
    *,
    model: str | None = None,
    response_id: str | None = None,
    finish_reason: str | None = None,
    usage: Any = None,
) -> ServerAnswer | None:
    """Return the answer that a value holds, None where it holds none; the named fields fill what it does not say."""
    answer = value if isinstance(value, ServerAnswer) else _whole_answer(read_json(value)) or _of_messages(value)
    if answer is None:
        return None
    counts = usage if isinstance(usage, Mapping) else {}
    prompt, completion = read_count(counts, INPUT_TOKENS), read_count(counts, OUTPUT_TOKENS)
    choices = tuple(
        replace(
            choice,
            finish_reason=spell_finish_reason(choice.finish_reason or finish_reason),
            tool_calls=tuple(  # a place in a stream is none of a call's own fields
                {field: content for field, content in call.items() if field != "index"} for call in choice.tool_calls
            ),
        )
        for choice in answer.choices
    )
    return replace(
        answer,
        model=answer.model or model or "",
        response_id=answer.response_id or response_id,
        prompt_tokens=answer.prompt_tokens if answer.prompt_tokens is not None else prompt,
        completion_tokens=answer.completion_tokens if answer.completion_tokens is not None else completion,
        choices=choices,
    )


def read_count(counts: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """Return the first of these fields that is a count, as a number or as text."""
    for name in names:
        value = counts.get(name)
        if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_DIGITS:  # as ClickHouse writes 64 bits
            value = int(value)
        if (count := count_of(value)) is not None:
            return count
    return None


def _whole_answer(value: Any) -> ServerAnswer | None:
    """Return a response of OpenAI's API, or LangChain's generations; None for anything else."""
    if not isinstance(value, Mapping):
        return None
    choices = value.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        if "message" in choices[0]:
            return read(answer_of(_as_attributes(value)))
        return read(COMPLETIONS.read_response(_as_attributes(value))) if "text" in choices[0] else None
    if value.get("object") == "response" and isinstance(value.get("output"), list):
        return read(RESPONSES.read_response(_as_attributes(value)))
    generations = value.get("generations")
    return _of_generations(generations, value.get("llm_output")) if isinstance(generations, list) else None


def _of_generations(generations: list[Any], llm_output: Any) -> ServerAnswer:
    """Return LangChain's result: a list of choices for each prompt, of which a run has one; none if it failed."""
    first = generations[0] if generations and isinstance(generations[0], list) else generations
    choices: list[AnswerChoice] = []
    for index, generation in enumerate(generation for generation in first if isinstance(generation, Mapping)):
        (message, *_) = read_messages(generation.get("message") or generation.get("text"), "assistant") or [
            {"role": "assistant"}
        ]
        info = generation.get("generation_info")
        if not info and _is_empty(message):  # of a call that failed
            continue
        finish = text_of(info.get("finish_reason")) if isinstance(info, Mapping) else None
        choices.append(replace(choice_of(message, index), finish_reason=finish))
    details = llm_output if isinstance(llm_output, Mapping) else {}
    usage = details.get("token_usage") if isinstance(details.get("token_usage"), Mapping) else {}
    return ServerAnswer(
        model=text_of(details.get("model_name")) or "",
        prompt_tokens=read_count(usage or {}, INPUT_TOKENS),
        completion_tokens=read_count(usage or {}, OUTPUT_TOKENS),
        choices=tuple(choices),
    )


def _of_messages(value: Any) -> ServerAnswer | None:
    """Return the last message that a value holds as the answer; those before it are not of the model."""
    messages: list[Message] = [message for message in read_messages(value, "assistant") if not _is_empty(message)]
    return ServerAnswer(choices=(choice_of(messages[-1]),)) if messages else None


def _is_empty(message: Mapping[str, Any]) -> bool:
    return not any(message.get(name) for name in ("content", "tool_calls", "refusal", "reasoning_content", "reasoning"))


def _as_attributes(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Attributes({str(name): _as_attributes(item) for name, item in value.items()})
    return [_as_attributes(item) for item in value] if isinstance(value, list) else value
