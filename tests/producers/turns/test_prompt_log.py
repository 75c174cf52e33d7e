"""What a turn sends is what no earlier turn carried, and the prefix hash proves it."""

import json

from hypothesis import given
from hypothesis import strategies as st

from rollbus.producers.turns.prompt_log import MAX_HISTORIES, PromptLog
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.messages import history_hash

MESSAGES = st.builds(Message, role=st.sampled_from(["user", "assistant"]), content=st.sampled_from("abc"))


@given(st.lists(st.tuples(st.lists(MESSAGES, max_size=4), MESSAGES), max_size=8))
def test_prefix_and_added_messages_give_the_prompt_again(turns: list[tuple[list[Message], Message]]) -> None:
    log = PromptLog()
    carried: set[tuple[Message, ...]] = {()}
    for prompt, completion in turns:
        split = log.send(prompt, completion)
        prefix = prompt[: split.prefix_count]
        assert list(split.added) == prompt[split.prefix_count :]
        assert split.prefix_hash == (history_hash(prefix) if prefix else "")
        assert tuple(prefix) in carried
        carried |= {(*prompt, completion)[:length] for length in range(len(prompt) + 2)}


def test_the_histories_kept_are_bounded() -> None:
    log = PromptLog()
    for number in range(3 * MAX_HISTORIES):
        log.send([Message(role="user", content=str(number))], Message(role="assistant"))
    assert len(log._histories) == MAX_HISTORIES


def test_tool_calls_that_are_nested_without_end_are_hashed_as_they_are() -> None:
    arguments = "[" * 100_000 + "]" * 100_000
    tool_calls = json.dumps([{"function": {"name": "f", "arguments": arguments}}])
    log, question = PromptLog(), Message(role="user", content="?")
    calls = Message(role="assistant", tool_calls=tool_calls)
    log.send([question], calls)
    assert log.send([question, calls, Message(role="tool", content="!")], calls).prefix_count == 2
