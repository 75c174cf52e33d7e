"""Tool calls in the chat format of Qwen and Hermes, out of sampled text as it grows.

A call is written as `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. A block without such an object stays text,
so nothing that was sampled is lost.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.ids import parse_json

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: str
    """JSON, as the model wrote it."""

    def to_openai(self, call_id: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


Piece = str | ToolCall


class ToolCallReader:
    """Takes text in any portions and returns what is final: text between calls, and whole calls."""

    def __init__(self) -> None:
        self._pending = ""
        self._after_call = False

    def add(self, text: str) -> list[Piece]:
        self._pending += text
        pieces: list[Piece] = []
        while True:
            before, parsed, inside = self._pending.partition(OPEN)
            if not parsed:
                break
            body, closed, rest = inside.partition(CLOSE)
            if not closed:
                break
            self._add_piece(pieces, before.removesuffix("\n"))  # the template puts it before the tag
            call = _parse_call(body)
            self._add_piece(pieces, f"{OPEN}{body}{CLOSE}" if call is None else call)
            self._pending = rest
        if OPEN not in self._pending:
            settled = len(self._pending) - _possible_start(self._pending)
            self._add_piece(pieces, self._pending[:settled])
            self._pending = self._pending[settled:]
        return pieces

    def end(self) -> list[Piece]:
        """Settle the rest; a last call may lack its closing tag, which models leave out before they stop."""
        pieces: list[Piece] = []
        before, parsed, body = self._pending.partition(OPEN)
        call = _parse_call(body) if parsed else None
        if call is None:
            self._add_piece(pieces, self._pending)
        else:
            self._add_piece(pieces, before.removesuffix("\n"))
            self._add_piece(pieces, call)
        self._pending = ""
        return pieces

    def _add_piece(self, pieces: list[Piece], piece: Piece) -> None:
        """Keep a piece; blanks right after a call only separate it from the next."""
        if isinstance(piece, ToolCall):
            self._after_call = True
        elif self._after_call:
            piece = piece.lstrip()
            self._after_call = not piece
        if piece:
            pieces.append(piece)


def read_tool_calls(text: str) -> tuple[str | None, list[ToolCall]]:
    """The content and the calls of a whole answer; None as content if there are only calls."""
    reader = ToolCallReader()
    pieces: Sequence[Piece] = [*reader.add(text), *reader.end()]
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    return content or (None if calls else ""), calls


def with_parsed_arguments(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages as chat templates expect them: the arguments of a call as an object, where OpenAI has a JSON string."""
    return [
        {**message, "tool_calls": [_parse_arguments(call) for call in message["tool_calls"]]}
        if message.get("tool_calls")
        else message
        for message in messages
    ]


def _parse_arguments(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments) if arguments else {}
        except ValueError:
            return call
    return {**call, "function": {**function, "arguments": arguments}}


def _parse_call(body: str) -> ToolCall | None:
    """Return the call in a block, if it holds one."""
    try:
        parsed = parse_json(body)
    except ValueError:
        return None
    if not isinstance(parsed, dict) or not isinstance(name := parsed.get("name"), str) or not name:
        return None
    arguments = parsed.get("arguments", {})
    return ToolCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))


def _possible_start(text: str) -> int:
    """Length of the ending that may yet become a newline and an opening tag."""
    start = f"\n{OPEN}"
    for length in range(min(len(start), len(text)), 0, -1):
        if text.endswith((start[:length], OPEN[:length])):
            return length
    return 0
