"""The Responses API: `responses.create`, `parse`, and their streams of typed events.

Its log-probs come with the output texts; ids of the prompt do not come at all, those of the completion only where the
server writes tokens as `token_id:N`: such turns are for analytics. The server keeps what a
`previous_response_id` or a `conversation` refers to; the record has its id instead.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rollbus.producers.capture.surface import StreamReader, Wishes
from rollbus.producers.turns.answer import (
    AnswerChoice,
    ServerAnswer,
    canonical,
    count_of,
    fields_of,
    plain,
    read_entries,
    text_of,
)

LOGPROBS = "message.output_text.logprobs"
FINISH = {"max_output_tokens": "length", "content_filter": "content_filter"}
"""Why an answer is incomplete, in the words of chat completions."""
EARLIER = ("previous_response_id", "conversation")
"""Fields that name messages which only the server has: the record shows their id where they would be."""
LAST_EVENTS = ("response.completed", "response.incomplete", "response.failed")


class ResponsesSurface:
    """See `Surface`."""

    empty_logprobs = b"[]"

    def is_recorded(self, request: Mapping[str, Any]) -> bool:
        """All are."""
        return True

    def read_wishes(self, request: Mapping[str, Any]) -> Wishes:
        """Log-probs are asked for in `include`; usage always comes."""
        return Wishes(logprobs=LOGPROBS in _list_included(request), ids=True, usage=True)

    def add_wishes(self, request: Mapping[str, Any], *, force: bool, refused: Collection[str] = ()) -> dict[str, Any]:
        """Ask for log-probs."""
        included = _list_included(request)
        return {} if LOGPROBS in included or "logprobs" in refused else {"include": [*included, LOGPROBS]}

    def convert_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Instructions and input items become messages."""
        instructions = text_of(request.get("instructions"))
        system = [{"role": "system", "content": instructions}] if instructions else []
        input_value = request.get("input")
        items = (
            [{"content": input_value}]
            if isinstance(input_value, str)
            else [plain(entry) for entry in input_value or ()]
        )
        copy = {name: value for name, value in request.items() if name not in ("input", "instructions")}
        earlier = [
            {"role": name, "content": name_of}
            for name in EARLIER
            if (name_of := _name_of(request.get(name))) is not None
        ]
        messages = [*earlier, *system, *(_message(item) for item in items)]
        return {**copy, "messages": messages, "max_tokens": request.get("max_output_tokens")}

    def read_response(self, response: Any) -> ServerAnswer:
        """Read a response."""
        usage = getattr(response, "usage", None)
        output = list(getattr(response, "output", None) or ())
        return ServerAnswer(
            model=text_of(getattr(response, "model", None)) or "",
            response_id=text_of(getattr(response, "id", None)),
            prompt_tokens=count_of(getattr(usage, "input_tokens", None)),
            completion_tokens=count_of(getattr(usage, "output_tokens", None)),
            choices=(_choice_of(output, _finish_of(response, output)),) if output else (),
        )

    def make_reader(self) -> StreamReader:
        """Read its events."""
        return _ResponsesReader(self)


class _ResponsesReader:
    def __init__(self, surface: ResponsesSurface) -> None:
        self._surface = surface
        self._begun: ServerAnswer | None = None
        self._whole: ServerAnswer | None = None
        self._texts: list[str] = []
        self._entries: list[Any] = []

    def read(self, chunk: Any) -> None:
        field = fields_of(chunk)
        kind = field("type")
        if kind == "response.output_text.delta":
            self._texts.append(text_of(field("delta")) or "")
            self._entries += field("logprobs") or ()
        elif (response := field("response")) is not None:
            answer = self._surface.read_response(response)
            self._begun = answer
            self._whole = answer if kind in LAST_EVENTS else self._whole

    def answer(self, *, complete: bool = True) -> ServerAnswer:
        if self._whole is not None:
            return self._whole
        begun = self._begun or ServerAnswer()
        tokens, logprobs = read_entries(self._entries)
        choice = AnswerChoice(content="".join(self._texts) or None, tokens=tokens, logprobs=logprobs)
        return ServerAnswer(model=begun.model, response_id=begun.response_id, choices=(choice,), complete=False)


def _name_of(value: Any) -> str | None:
    """Return the id of a response or a conversation, which is given as text or as an object."""
    return text_of(value.get("id") if isinstance(value, Mapping) else value)


def _list_included(request: Mapping[str, Any]) -> list[Any]:
    include_value = request.get("include")
    return list(include_value) if isinstance(include_value, list | tuple) else []


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an input item as a chat message."""
    kind = item.get("type") or "message"
    if kind == "function_call":
        return {"role": "assistant", "tool_calls": [_tool_call(item)]}
    if kind == "function_call_output":
        output = item.get("output")
        content = output if isinstance(output, str) else canonical(output)
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
    if kind == "message":
        return {"role": item.get("role") or "user", "content": item.get("content")}
    return {"role": str(kind), "content": [dict(item)]}


def _tool_call(item: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": item.get("name"), "arguments": item.get("arguments")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _texts(output: Iterable[Any]) -> list[Any]:
    return [part for item in output for part in getattr(item, "content", None) or () if hasattr(part, "text")]


def _choice_of(output: list[Any], finish_reason: str | None) -> AnswerChoice:
    messages = [item for item in output if getattr(item, "type", "") == "message"]
    texts = _texts(messages)
    tokens, logprobs = read_entries([entry for text in texts for entry in getattr(text, "logprobs", None) or ()])
    refusals = [part.refusal or "" for item in messages for part in item.content or () if hasattr(part, "refusal")]
    reasoning = [
        summary.text or ""
        for item in output
        if getattr(item, "type", "") == "reasoning"
        for summary in getattr(item, "summary", None) or ()
    ]
    return AnswerChoice(
        content="".join(text.text or "" for text in texts) or None,
        refusal="".join(refusals) or None,
        reasoning="".join(reasoning) or None,
        tool_calls=tuple(_tool_call(plain(item)) for item in output if getattr(item, "type", "") == "function_call"),
        finish_reason=finish_reason,
        tokens=tokens,
        logprobs=logprobs,
    )


def _finish_of(response: Any, output: list[Any]) -> str | None:
    if (details := getattr(response, "incomplete_details", None)) is not None:
        reason = text_of(getattr(details, "reason", None))
        return FINISH.get(reason or "", reason)
    if getattr(response, "status", None) != "completed":
        return text_of(getattr(response, "status", None))
    return "tool_calls" if any(getattr(item, "type", "") == "function_call" for item in output) else "stop"


RESPONSES = ResponsesSurface()
