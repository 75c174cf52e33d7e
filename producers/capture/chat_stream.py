"""The chunks of a streamed chat completion to the same `ServerAnswer` that an unstreamed one gives.

Pure: chunks go in, one answer comes out, whichever way the server cut it. Choices and tool calls are distinguished
by their `index`; ids and names come once, arguments in pieces.
"""

from array import array
from dataclasses import dataclass, field
from typing import Any

from rollbus.producers.turns.answer import (
    AnswerChoice,
    ServerAnswer,
    count_of,
    fields_of,
    ids_of,
    logprobs_of,
    plain,
    reasoning_of,
    text_of,
)


@dataclass(slots=True)
class _ToolCall:
    """A call of a tool as far as it has come."""

    fields: dict[str, Any] = field(default_factory=dict)
    function: dict[str, Any] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    """Pieces of its JSON."""
    has_function: bool = False


@dataclass(slots=True)
class _Choice:
    """A choice as far as it has come: texts in pieces, and tokens with their log-probs."""

    role: str | None = None
    content: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    tool_calls: dict[int, _ToolCall] = field(default_factory=dict)
    finish_reason: str | None = None
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    refusal_tokens: list[str] = field(default_factory=list)
    refusal_logprobs: list[float | None] = field(default_factory=list)
    token_ids: "array[int] | None" = None

    def add_token_ids(self, token_ids: Any) -> None:
        ids = ids_of(token_ids)
        if self.token_ids is None:
            self.token_ids = ids
        elif ids is not None:
            self.token_ids.extend(ids)


class ChunkReader:
    """Puts the chunks of a stream together."""

    def __init__(self) -> None:
        """Start before the first chunk."""
        self._model = ""
        self._response_id: str | None = None
        self._prompt_token_ids: array[int] | None = None
        self._prompt_tokens: int | None = None
        self._completion_tokens: int | None = None
        self._choices: dict[int, _Choice] = {}

    def read(self, chunk: Any) -> None:
        """Take the next chunk."""
        field = fields_of(chunk)
        self._model = text_of(field("model")) or self._model
        self._response_id = text_of(field("id")) or self._response_id
        self._keep_prompt_ids(field("prompt_token_ids"))
        if (usage := field("usage")) is not None:
            usage_field = fields_of(usage)
            self._prompt_tokens = count_of(usage_field("prompt_tokens"))
            self._completion_tokens = count_of(usage_field("completion_tokens"))
        for choice in field("choices") or ():
            self._keep_prompt_ids(fields_of(choice)("prompt_token_ids"))
            self._add_choice(choice)

    def _keep_prompt_ids(self, prompt_token_ids: Any) -> None:
        if self._prompt_token_ids is None:
            self._prompt_token_ids = ids_of(prompt_token_ids)

    def _add_choice(self, choice: Any) -> None:
        field = fields_of(choice)
        draft = self._choice(count_of(field("index")) or 0)
        delta = field("delta")
        delta_field = fields_of(delta)
        draft.role = draft.role or text_of(delta_field("role"))
        draft.finish_reason = text_of(field("finish_reason")) or draft.finish_reason
        _append(draft.content, text_of(delta_field("content")))
        _append(draft.refusal, text_of(delta_field("refusal")))
        _append(draft.reasoning, reasoning_of(delta))
        for position, call in enumerate(delta_field("tool_calls") or ()):
            _add_tool_call(draft, position, call)
        if (logprobs := field("logprobs")) is not None:
            _add_logprobs(draft, logprobs)
        draft.add_token_ids(field("token_ids"))

    def _choice(self, index: int) -> _Choice:
        return self._choices.setdefault(index, _Choice())

    def answer(self, *, complete: bool = True) -> ServerAnswer:
        """Return what has come so far; it is `complete` only if, besides, each choice has said why it ended."""
        has_ended = bool(self._choices) and all(choice.finish_reason for choice in self._choices.values())
        return ServerAnswer(
            model=self._model,
            response_id=self._response_id,
            prompt_token_ids=self._prompt_token_ids,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            choices=tuple(_make_choice(index, choice) for index, choice in sorted(self._choices.items())),
            complete=complete and has_ended,
        )


def _append(pieces: list[str], text: str | None) -> None:
    if text is not None:
        pieces.append(text)


def _add_logprobs(draft: _Choice, logprobs: Any) -> None:
    tokens, values = logprobs_of(logprobs)
    content_count = len(fields_of(logprobs)("content") or ())  # those of a refusal follow
    draft.tokens.extend(tokens[:content_count])
    draft.logprobs.extend(values[:content_count])
    draft.refusal_tokens.extend(tokens[content_count:])
    draft.refusal_logprobs.extend(values[content_count:])


def _add_tool_call(draft: _Choice, position: int, delta: Any) -> None:
    index = count_of(fields_of(delta)("index"))
    call = draft.tool_calls.setdefault(position if index is None else index, _ToolCall())
    for name, value in plain(delta).items():
        if name == "function" and isinstance(value, dict):
            call.has_function = True
            _append(call.arguments, value.pop("arguments", None))
            call.function.update({key: item for key, item in value.items() if item is not None})
        elif name != "index" and value is not None:
            call.fields[name] = value


def _make_choice(index: int, choice: _Choice) -> AnswerChoice:
    calls = []
    for _, call in sorted(choice.tool_calls.items()):
        function = {**call.function, "arguments": "".join(call.arguments)}
        calls.append({**call.fields, "function": function} if call.has_function else call.fields)
    return AnswerChoice(
        index=index,
        role=choice.role or "assistant",
        content=_join(choice.content, empty_is_none=bool(calls or choice.refusal)),
        refusal=_join(choice.refusal),
        reasoning=_join(choice.reasoning),
        tool_calls=tuple(calls),
        finish_reason=choice.finish_reason,
        tokens=(*choice.tokens, *choice.refusal_tokens),
        logprobs=(*choice.logprobs, *choice.refusal_logprobs),
        token_ids=choice.token_ids,
    )


def _join(pieces: list[str], *, empty_is_none: bool = False) -> str | None:
    """Return the text of the pieces; None where none came.

    Some servers begin with an empty piece of content also where only tool calls or a refusal follow. An unstreamed
    answer has no content there: `empty_is_none`.
    """
    text = "".join(pieces)
    return None if not pieces or (not text and empty_is_none) else text
