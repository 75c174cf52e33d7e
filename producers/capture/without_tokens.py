"""Anthropic's Messages API (`POST …/v1/messages`) and Google's GenAI (`…:generateContent`), and their streams.

They give no token ids: turns are for analytics, judging and export. `foreign_messages` reads what is said in them.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from rollbus.producers.capture.surface import StreamReader, Wishes
from rollbus.producers.turns.answer import ServerAnswer, count_of, text_of
from rollbus.producers.turns.foreign_messages import read_messages
from rollbus.producers.turns.sampled_message import choice_of, spell_finish_reason

NO_TOKEN_IDS = "no_token_ids"


class _WithoutTokens:
    """What both do; see `Surface`."""

    empty_logprobs = b"null"
    field = ""
    """Where a request has its messages."""

    def is_recorded(self, request: Mapping[str, Any]) -> bool:
        """All are."""
        return isinstance(request.get(self.field), list)

    def read_wishes(self, request: Mapping[str, Any]) -> Wishes:
        """There is nothing that it does not ask for."""
        return Wishes(logprobs=True, ids=True, usage=True)

    def add_wishes(self, request: Mapping[str, Any], *, force: bool, refused: Collection[str] = ()) -> dict[str, Any]:
        """Ask for nothing: the API has no tokens to give."""
        return {}


class MessagesSurface(_WithoutTokens):
    """Anthropic's."""

    field = "messages"

    def convert_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Results of tools become messages of their own, and calls of tools have the form of chat completions."""
        system = [{"role": "system", "content": request["system"]}] if request.get("system") else []
        messages = [_with_blocks(message) for message in (*system, *request["messages"])]
        fields = {name: value for name, value in request.items() if name != "system"}
        return {**fields, "messages": read_messages(messages)}

    def read_response(self, response: Any) -> ServerAnswer:
        """Read a message."""
        usage = response.get("usage") or {}
        *_, message = read_messages(_with_blocks({"role": "assistant", "content": response.get("content")}))
        message["finish_reason"] = spell_finish_reason(text_of(response.get("stop_reason")))
        return ServerAnswer(
            model=text_of(response.get("model")) or "",
            response_id=text_of(response.get("id")),
            prompt_tokens=count_of(usage.get("input_tokens")),
            completion_tokens=count_of(usage.get("output_tokens")),
            choices=(choice_of(message),),
            problem=NO_TOKEN_IDS,
        )

    def make_reader(self) -> StreamReader:
        """Read its events."""
        return _MessageReader()


class _MessageReader:
    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}

    def read(self, chunk: Any) -> None:
        kind, delta = chunk.get("type"), chunk.get("delta") or {}
        if kind == "message_start":
            self._message = dict(chunk["message"])
        elif kind == "content_block_start":
            self._blocks[chunk["index"]] = {**chunk["content_block"], "json": ""}
        elif kind == "content_block_delta":
            block = self._blocks[chunk["index"]]
            for source, field in (("text", "text"), ("thinking", "thinking"), ("partial_json", "json")):
                block[field] = (block.get(field) or "") + (delta.get(source) or "")
        elif kind == "message_delta":  # what it says nothing of stays as it was
            counts = {name: count for name, count in (chunk.get("usage") or {}).items() if count is not None}
            reason = delta.get("stop_reason") or self._message.get("stop_reason")
            self._message |= {"stop_reason": reason, "usage": {**(self._message.get("usage") or {}), **counts}}

    def answer(self, *, complete: bool = True) -> ServerAnswer:
        blocks = [{**block, "input": block["json"] or block.get("input")} for _, block in sorted(self._blocks.items())]
        return MESSAGES.read_response({**self._message, "content": blocks})


def _with_blocks(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message whose text is a block, however it begins, and whose calls have arguments as they were written,
    or as JSON.
    """
    content = message.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    for place, block in enumerate(blocks):
        if block.get("type") == "tool_use" and not isinstance(block.get("input"), str):
            blocks[place] = {**block, "input": json.dumps(block.get("input") or {})}
    return {**message, "content": blocks}


class ContentsSurface(_WithoutTokens):
    """Google's."""

    field = "contents"

    def convert_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Contents become messages; the settings are named as those of chat completions."""
        settings, system = google_field(request, "generationConfig") or {}, google_field(request, "systemInstruction")
        contents = [{**system, "role": "system"}, *request["contents"]] if system else request["contents"]
        sampling = {"temperature": settings.get("temperature"), "top_p": google_field(settings, "topP")}
        sampling |= {"top_k": google_field(settings, "topK"), "max_tokens": google_field(settings, "maxOutputTokens")}
        return {"messages": read_messages(contents), "tools": request.get("tools"), **sampling}

    def read_response(self, response: Any) -> ServerAnswer:
        """Read a response."""
        reader = _ContentsReader()
        reader.read(response)
        return reader.answer()

    def make_reader(self) -> StreamReader:
        """Read its chunks, which have the form of whole responses."""
        return _ContentsReader()


def google_field(fields: Mapping[str, Any], name: str) -> Any:
    """Return a field of Google's, whose API takes `topP` and `top_p` alike; None without it."""
    snake_case = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
    return fields.get(name, fields.get(snake_case))


class _ContentsReader:
    def __init__(self) -> None:
        self._last: Mapping[str, Any] = {}
        self._usage: Mapping[str, Any] = {}
        self._parts: dict[int, list[Any]] = {}
        self._finish: dict[int, str] = {}

    def read(self, chunk: Any) -> None:
        self._last, self._usage = chunk, chunk.get("usageMetadata") or self._usage
        for candidate in chunk.get("candidates") or ():
            index = count_of(candidate.get("index")) or 0
            parts = self._parts.setdefault(index, [])
            parts += (candidate.get("content") or {}).get("parts") or ()
            if reason := text_of(candidate.get("finishReason")):
                self._finish[index] = reason.lower()

    def answer(self, *, complete: bool = True) -> ServerAnswer:
        messages = {
            index: read_messages({"role": "model", "parts": parts})[-1] for index, parts in sorted(self._parts.items())
        }
        for index, message in messages.items():
            reason = spell_finish_reason(self._finish.get(index))
            message["finish_reason"] = "tool_calls" if message.get("tool_calls") and reason == "stop" else reason
        return ServerAnswer(
            model=text_of(self._last.get("modelVersion")) or "",
            response_id=text_of(self._last.get("responseId")),
            prompt_tokens=count_of(self._usage.get("promptTokenCount")),
            completion_tokens=count_of(self._usage.get("candidatesTokenCount")),
            choices=tuple(choice_of(message, index) for index, message in messages.items()),
            problem=NO_TOKEN_IDS,
        )


MESSAGES, CONTENTS = MessagesSurface(), ContentsSurface()
