"""Tool calls out of sampled text: whole or in any portions, and whatever the model wrote instead."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.trainer.art_server.endpoint.tool_calls import (
    Piece,
    ToolCall,
    ToolCallReader,
    read_tool_calls,
    with_parsed_arguments,
)

CALL = '<tool_call>\n{"name": "look", "arguments": {"at": 3}}\n</tool_call>'
LOOK = ToolCall("look", '{"at": 3}')


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("plain", "plain", []),
        ("", "", []),
        (CALL, None, [LOOK]),
        (f"I look.\n{CALL}", "I look.", [LOOK]),
        (f"{CALL}\n{CALL}\n", None, [LOOK, LOOK]),
        (f"{CALL}\nand now?", "and now?", [LOOK]),
        (CALL.removesuffix("</tool_call>"), None, [LOOK]),
        ('<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', None, [ToolCall("f", "{}")]),
        ('<tool_call>{"name": "f"}</tool_call>', None, [ToolCall("f", "{}")]),
        ("<tool_call>not json</tool_call>", "<tool_call>not json</tool_call>", []),
        ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
        ('a <tool_call>{"name"', 'a <tool_call>{"name"', []),
        ("ends with <tool", "ends with <tool", []),
        ("ends with newline\n", "ends with newline\n", []),
        (f"<tool_call>[]</tool_call>{CALL}", "<tool_call>[]</tool_call>", [LOOK]),
    ],
)
def test_calls_are_taken_out_and_everything_else_stays_text(
    text: str, content: str | None, calls: list[ToolCall]
) -> None:
    assert read_tool_calls(text) == (content, calls)


@given(
    parts=st.lists(
        st.sampled_from([CALL, "\n", "text", "<", "<tool_call>", "</tool_call>", "<tool_call>[]</tool_call>", " "]),
        max_size=8,
    ),
    cuts=st.lists(st.integers(0, 200), max_size=12),
)
def test_the_portions_of_streamed_text_change_nothing(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    reader = ToolCallReader()
    pieces: list[Piece] = []
    for start, end in pairwise(bounds):
        pieces += reader.add(text[start:end])
    pieces += reader.end()
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    calls = [piece for piece in pieces if isinstance(piece, ToolCall)]
    assert (content or (None if calls else ""), calls) == read_tool_calls(text)


def test_arguments_are_objects_for_the_template_if_they_parse() -> None:
    def message(arguments: Any) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
        }

    messages = [message('{"a": 1}'), message("{broken"), message(""), {"role": "user", "content": "x"}]
    parsed_messages = with_parsed_arguments(messages)
    parsed_arguments = [call_message["tool_calls"][0]["function"]["arguments"] for call_message in parsed_messages[:3]]
    assert parsed_arguments == [{"a": 1}, "{broken", {}]
    assert parsed_messages[3] == messages[3]
