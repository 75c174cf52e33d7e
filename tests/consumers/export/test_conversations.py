"""Whole prompts come back from what each turn added."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollbus.consumers.clickhouse.rows.events import message_json
from rollbus.consumers.export.conversations import chat_message, restore_prompts, whole_conversations
from rollbus.schemas.records.events import Message
from tests.readers.cases import stored_turns


def user(text: str) -> Message:
    return Message(role="user", content=text)


def plain(prompt: list[Message]) -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(message_json(message)) for message in prompt)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.sampled_from("abc"), max_size=3), st.sampled_from("xy")), max_size=8
    )
)
def test_every_prompt_comes_back_as_it_was_sent(steps: list[tuple[int, list[str], str]]) -> None:
    exchanges_so_far: list[tuple[list[Message], Message]] = []
    for back, added, answer in steps:
        before = (
            [*exchanges_so_far[back % len(exchanges_so_far)][0], exchanges_so_far[back % len(exchanges_so_far)][1]]
            if exchanges_so_far and back
            else []
        )
        prompt = [*before, *(user(text) for text in added)]
        exchanges_so_far.append((prompt, Message(role="assistant", content=answer)))
    exchanges, incomplete = restore_prompts(stored_turns(exchanges_so_far))
    assert incomplete == []
    assert [exchange.prompt for exchange in exchanges] == [plain(prompt) for prompt, _ in exchanges_so_far]


def test_a_prompt_whose_beginning_was_lost_is_named() -> None:
    first, second = user("1"), user("2")
    answer = Message(role="assistant", content="a")
    turns = stored_turns([([first], answer), ([first, answer, second], answer)])
    exchanges, incomplete = restore_prompts(turns[1:])
    assert (exchanges, incomplete) == ([], ["w1"])


def test_the_longest_conversation_stands_for_those_it_continues() -> None:
    first, answer = user("1"), Message(role="assistant", content="a")
    other = user("elsewhere")
    exchanges, _ = restore_prompts(
        stored_turns([([first], answer), ([first, answer, user("2")], answer), ([other], answer)])
    )
    assert [exchange.event_id for exchange in whole_conversations(exchanges)] == ["w1", "w2"]


def test_a_conversation_continues_after_a_framework_respaced_a_call() -> None:
    asking = user("Pay 7.")
    answer = Message(role="assistant", tool_calls=call_with('{"order": 7, "amount": 2}'))
    echo = Message(role="assistant", content="", tool_calls=call_with('{"order":7,"amount":2}'))
    result = Message(role="tool", content="ok", tool_call_id="c")
    done = Message(role="assistant", content="Done.")
    exchanges, incomplete = restore_prompts(stored_turns([([asking], answer), ([asking, echo, result], done)]))
    assert incomplete == []
    (whole,) = whole_conversations(exchanges)
    assert json.loads(whole.messages[1]["tool_calls"]) == json.loads(answer.tool_calls or ""), "as it was sampled"


def call_with(arguments: str) -> str:
    return json.dumps([{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}])


def test_messages_take_the_form_that_trainers_read() -> None:
    stored = {"role": "assistant", "tool_calls": '[{"id":"c1","type":"function"}]', "reasoning": "hm"}
    assert chat_message(stored) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function"}],
        "reasoning_content": "hm",
    }
    assert chat_message({"role": "user", "parts": '[{"type":"text","text":"a"},{"type":"text","text":"b"}]'}) == {
        "role": "user",
        "content": "ab",
    }
    assert chat_message({"role": "assistant", "parts": '[{"type":"refusal","refusal":"No."}]'}) == {
        "role": "assistant",
        "content": "No.",
    }
    assert chat_message({"role": "user", "parts": '[{"type":"image_url"}]'}) is None
    assert chat_message({"role": "user", "parts": "[withheld 9f2c]"}) is None
    assert chat_message({"role": "assistant", "tool_calls": "[withheld 9f2c]"}) is None


def test_a_message_that_no_reader_takes_ends_no_export() -> None:
    assert chat_message({"role": "user", "parts": json.dumps([{"type": "text", "text": 5}])}) is None
    assert chat_message({"role": "user", "parts": "[" * 100_000}) is None
    assert chat_message({"role": "assistant", "tool_calls": "[" * 100_000}) is None
