"""Whole prompts come back from what each turn added."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollbus.consumers.export.conversations import StoredTurn, chat_message, restore_prompts, whole_conversations
from rollbus.producers.turns.prompt_log import PromptLog
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.messages import message_fields


def user(text: str) -> Message:
    return Message(role="user", content=text)


def recorded(asked: list[tuple[list[Message], Message]], writer: str = "w") -> list[StoredTurn]:
    """Turns as a producer sends them."""
    log, turns = PromptLog(), []
    for index, (prompt, completion) in enumerate(asked):
        split = log.send(prompt, completion)
        turns.append(
            StoredTurn(
                event_id=f"{writer}{index}",
                writer_id=writer,
                prefix_count=split.prefix_count,
                prefix_hash=split.prefix_hash,
                added_messages=tuple(message_fields(message) for message in split.added),
                completion=message_fields(completion),
            )
        )
    return turns


def plain(prompt: list[Message]) -> tuple[dict[str, Any], ...]:
    return tuple(message_fields(message) for message in prompt)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.lists(st.sampled_from("abc"), max_size=3), st.sampled_from("xy")), max_size=8
    )
)
def test_every_prompt_comes_back_as_it_was_sent(steps: list[tuple[int, list[str], str]]) -> None:
    asked: list[tuple[list[Message], Message]] = []
    for back, added, answer in steps:
        before = [*asked[back % len(asked)][0], asked[back % len(asked)][1]] if asked and back else []
        prompt = [*before, *(user(text) for text in added)]
        asked.append((prompt, Message(role="assistant", content=answer)))
    found, broken = restore_prompts(recorded(asked))
    assert broken == []
    assert [each.prompt for each in found] == [plain(prompt) for prompt, _ in asked]


def test_a_prompt_whose_beginning_was_lost_is_named() -> None:
    first, second = user("1"), user("2")
    answer = Message(role="assistant", content="a")
    turns = recorded([([first], answer), ([first, answer, second], answer)])
    found, broken = restore_prompts(turns[1:])
    assert (found, broken) == ([], ["w1"])


def test_the_longest_conversation_stands_for_those_it_continues() -> None:
    first, answer = user("1"), Message(role="assistant", content="a")
    other = user("elsewhere")
    found, _ = restore_prompts(recorded([([first], answer), ([first, answer, user("2")], answer), ([other], answer)]))
    assert [each.event_id for each in whole_conversations(found)] == ["w1", "w2"]


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
    assert chat_message({"role": "user", "parts": '[{"type":"image_url"}]'}) is None
    assert chat_message({"role": "user", "parts": "[withheld 9f2c]"}) is None
    assert chat_message({"role": "assistant", "tool_calls": "[withheld 9f2c]"}) is None
