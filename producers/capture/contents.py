"""Google's GenAI API: `…:generateContent`, and its streams. It gives no token ids: turns are for analytics."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rollbus.producers.capture.surface import StreamReader, Wishes
from rollbus.producers.turns.answer import AnswerChoice, ServerAnswer, count_of, text_of

FINISH = {"STOP": "stop", "MAX_TOKENS": "length", "SAFETY": "content_filter"}
"""Why an answer ended, in the words of chat completions."""
NO_TOKEN_IDS = "no_token_ids"
Part = Mapping[str, Any]


class ContentsSurface:
    """See `Surface`."""

    empty_logprobs = b"null"

    def is_recorded(self, request: Mapping[str, Any]) -> bool:
        """All are."""
        return isinstance(request.get("contents"), list)

    def read_wishes(self, request: Mapping[str, Any]) -> Wishes:
        """There is nothing that it does not ask for."""
        return Wishes(logprobs=True, ids=True, usage=True)

    def add_wishes(self, request: Mapping[str, Any], *, force: bool, refused: Collection[str] = ()) -> dict[str, Any]:
        """Ask for nothing: the API has no tokens to give."""
        return {}

    def convert_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Contents become messages; the settings are named as those of chat completions."""
        settings = request.get("generationConfig") or {}
        system = _text((request.get("systemInstruction") or {}).get("parts") or ())
        messages = [{"role": "system", "content": system}] if system else []
        for content in request["contents"]:
            messages += _messages(content)
        sampling = {"temperature": settings.get("temperature"), "top_p": settings.get("topP")}
        sampling |= {"top_k": settings.get("topK"), "max_tokens": settings.get("maxOutputTokens")}
        return {"messages": messages, "tools": request.get("tools"), **sampling}

    def read_response(self, response: Any) -> ServerAnswer:
        """Read a response."""
        reader = _ContentsReader()
        reader.read(response)
        return reader.answer()

    def make_reader(self) -> StreamReader:
        """Read its chunks, which have the form of whole responses."""
        return _ContentsReader()


class _ContentsReader:
    def __init__(self) -> None:
        self._last: Mapping[str, Any] = {}
        self._usage: Mapping[str, Any] = {}
        self._parts: dict[int, list[Part]] = {}
        self._finish: dict[int, str] = {}

    def read(self, chunk: Any) -> None:
        self._last, self._usage = chunk, chunk.get("usageMetadata") or self._usage
        for candidate in chunk.get("candidates") or ():
            index = count_of(candidate.get("index")) or 0
            parts = self._parts.setdefault(index, [])
            parts += (candidate.get("content") or {}).get("parts") or ()
            if reason := text_of(candidate.get("finishReason")):
                self._finish[index] = FINISH.get(reason, reason.lower())

    def answer(self, *, complete: bool = True) -> ServerAnswer:
        return ServerAnswer(
            model=text_of(self._last.get("modelVersion")) or "",
            response_id=text_of(self._last.get("responseId")),
            prompt_tokens=count_of(self._usage.get("promptTokenCount")),
            completion_tokens=count_of(self._usage.get("candidatesTokenCount")),
            choices=tuple(
                _choice(index, parts, self._finish.get(index)) for index, parts in sorted(self._parts.items())
            ),
            problem=NO_TOKEN_IDS,
        )


def _text(parts: Iterable[Part], *, thought: bool = False) -> str | None:
    return "".join(str(part.get("text") or "") for part in parts if bool(part.get("thought")) is thought) or None


def _calls(parts: Iterable[Part]) -> list[dict[str, Any]]:
    calls = [call for part in parts if isinstance(call := part.get("functionCall"), Mapping)]
    return [
        {
            "id": call.get("id"),
            "type": "function",
            "function": {"name": call.get("name"), "arguments": json.dumps(call.get("args") or {})},
        }
        for call in calls
    ]


def _messages(content: Any) -> list[dict[str, Any]]:
    parts = [part for part in content.get("parts") or () if isinstance(part, Mapping)]
    results = [result for part in parts if isinstance(result := part.get("functionResponse"), Mapping)]
    messages: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": result.get("id"), "content": json.dumps(result.get("response"))}
        for result in results
    ]
    rest = [part for part in parts if "functionResponse" not in part]
    if rest:
        role = "assistant" if content.get("role") == "model" else "user"
        is_text = all(part.keys() & {"text", "functionCall"} for part in rest)
        visible = _text(rest) if is_text else [{"type": "content", **part} for part in rest]
        calls = _calls(rest)
        messages.append({"role": role, "content": visible, **({"tool_calls": calls} if calls else {})})
    return messages


def _choice(index: int, parts: list[Part], finish_reason: str | None) -> AnswerChoice:
    return AnswerChoice(
        index=index,
        content=_text(parts),
        reasoning=_text(parts, thought=True),
        tool_calls=tuple(_calls(parts)),
        finish_reason="tool_calls" if _calls(parts) and finish_reason == "stop" else finish_reason,
    )


CONTENTS = ContentsSurface()
