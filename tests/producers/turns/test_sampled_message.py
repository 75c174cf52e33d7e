"""A message of the OpenAI form becomes a choice of an answer with the words that the message holds, and no others."""

from rollbus.producers.turns.foreign_messages import read_messages
from rollbus.producers.turns.sampled_message import choice_of


def test_a_part_whose_text_is_null_adds_no_words_to_an_answer() -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "annotation", "text": None}, {"type": "image"}]
    assert choice_of({"role": "assistant", "content": parts}).content == "Hello"


def test_a_part_whose_text_is_null_adds_no_words_to_the_result_of_a_tool() -> None:
    parts = [{"type": "text", "text": "42"}, {"type": "text", "text": None}]
    (message,) = read_messages(
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": parts}]}
    )
    assert message["content"] == "42"
