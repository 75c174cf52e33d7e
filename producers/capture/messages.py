"""Anthropic's Messages API: `POST …/v1/messages`, and its streams. It gives no token ids: turns are for analytics."""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from rollbus.producers.capture.surface import StreamReader, Wishes
from rollbus.producers.turns.answer import AnswerChoice, ServerAnswer, canonical, count_of, text_of

FINISH = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}
"""Why an answer ended, in the words of chat completions."""
NO_TOKEN_IDS = "no_token_ids"
Block = Mapping[str, Any]


class MessagesSurface:
    """See `Surface`."""

    empty_logprobs = b"null"

    def is_recorded(self, request: Mapping[str, Any]) -> bool:
        """All are."""
        return isinstance(request.get("messages"), list)

    def read_wishes(self, request: Mapping[str, Any]) -> Wishes:
        """There is nothing that it does not ask for."""
        return Wishes(logprobs=True, ids=True, usage=True)

    def add_wishes(self, request: Mapping[str, Any], *, force: bool, refused: Collection[str] = ()) -> dict[str, Any]:
        """Ask for nothing: the API has no tokens to give."""
        return {}

    def convert_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Results of tools become messages of their own, and calls of tools have the form of chat completions."""
        system = _text(_blocks(request.get("system")))
        messages = [{"role": "system", "content": system}] if system else []
        for message in request["messages"]:
            messages += _messages(message)
        return {**{name: value for name, value in request.items() if name != "system"}, "messages": messages}

    def read_response(self, response: Any) -> ServerAnswer:
        """Read a message."""
        usage = response.get("usage") or {}
        return ServerAnswer(
            model=text_of(response.get("model")) or "",
            response_id=text_of(response.get("id")),
            prompt_tokens=count_of(usage.get("input_tokens")),
            completion_tokens=count_of(usage.get("output_tokens")),
            choices=(_choice(response.get("content") or (), text_of(response.get("stop_reason"))),),
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
                block[field] = block.get(field, "") + (delta.get(source) or "")
        elif kind == "message_delta":
            usage = {**(self._message.get("usage") or {}), **(chunk.get("usage") or {})}
            self._message |= {"stop_reason": delta.get("stop_reason"), "usage": usage}

    def answer(self, *, complete: bool = True) -> ServerAnswer:
        blocks = [{**block, "input": block["json"] or block.get("input")} for _, block in sorted(self._blocks.items())]
        return MESSAGES.read_response({**self._message, "content": blocks})


def _blocks(content: Any) -> list[Block]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content or () if isinstance(block, Mapping)]


def _text(blocks: Iterable[Block]) -> str | None:
    return "".join(str(block.get("text") or "") for block in blocks if block.get("type") == "text") or None


def _calls(blocks: Iterable[Block]) -> list[dict[str, Any]]:
    return [
        {"id": block.get("id"), "type": "function", "function": {"name": block.get("name"), "arguments": _json(block)}}
        for block in blocks
        if block.get("type") == "tool_use"
    ]


def _json(block: Block) -> str:
    """Return a call's arguments as the model wrote them, or as JSON."""
    given = block.get("input")
    return given if isinstance(given, str) else json.dumps(given or {})


def _messages(message: Any) -> list[dict[str, Any]]:
    blocks = _blocks(message.get("content"))
    results = [block for block in blocks if block.get("type") == "tool_result"]
    rest = [block for block in blocks if block.get("type") not in ("tool_result", "tool_use")]
    messages: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _result(block.get("content"))}
        for block in results
    ]
    if rest or not results:
        is_text = all(block.get("type") in ("text", "thinking", "redacted_thinking") for block in rest)
        thoughts = "".join(str(block.get("thinking") or "") for block in rest)
        content = _text(rest) if is_text else [dict(block) for block in rest]
        fields: dict[str, Any] = {
            "role": message.get("role"),
            "content": content,
            "reasoning_content": thoughts or None,
        }
        calls = _calls(blocks)
        messages.append({**fields, "tool_calls": calls} if calls else fields)
    return messages


def _result(content: Any) -> str:
    return content if isinstance(content, str) else _text(_blocks(content)) or canonical(content)


def _choice(content: Iterable[Block], stop_reason: str | None) -> AnswerChoice:
    blocks = list(content)
    return AnswerChoice(
        content=_text(blocks),
        reasoning="".join(str(block.get("thinking") or "") for block in blocks) or None,
        tool_calls=tuple(_calls(blocks)),
        finish_reason=FINISH.get(stop_reason or "", stop_reason),
    )


MESSAGES = MessagesSurface()
