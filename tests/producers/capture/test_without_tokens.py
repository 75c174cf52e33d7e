"""The APIs without token ids, read from bodies that their servers and other programs write differently."""

from typing import Any

from rollbus.producers.capture.without_tokens import CONTENTS, MESSAGES
from rollbus.producers.turns.answer import ServerAnswer

BEGUN: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"id": "m1", "usage": {"input_tokens": 11, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
]
ENDING = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}}


def read_stream(*events: dict[str, Any]) -> ServerAnswer:
    reader = MESSAGES.make_reader()
    for event in events:
        reader.read(event)
    return reader.answer()


def test_a_null_count_at_the_end_of_a_stream_keeps_the_first_count() -> None:
    answer = read_stream(*BEGUN, {**ENDING, "usage": {"input_tokens": None, "output_tokens": 4}})
    assert (answer.prompt_tokens, answer.completion_tokens) == (11, 4)


def test_a_later_count_of_a_stream_leaves_the_reason_of_its_end() -> None:
    answer = read_stream(*BEGUN, ENDING, {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 5}})
    assert (answer.completion_tokens, answer.choices[0].finish_reason) == (5, "stop")


def test_a_block_that_begins_with_null_has_the_text_that_follows() -> None:
    block = {"type": "text", "text": None}
    answer = read_stream(BEGUN[0], {**BEGUN[1], "content_block": block}, BEGUN[2], ENDING)
    assert answer.choices[0].content == "Hello"


def test_a_request_in_snake_case_has_its_instruction_and_settings() -> None:
    contents = [{"role": "user", "parts": [{"text": "Hi"}]}]
    instruction = {"parts": [{"text": "Be kind."}]}
    in_camel_case = CONTENTS.convert_request(
        {
            "systemInstruction": instruction,
            "contents": contents,
            "generationConfig": {"temperature": 0.0, "topP": 0.5, "topK": 3, "maxOutputTokens": 9},
        }
    )
    in_snake_case = CONTENTS.convert_request(
        {
            "system_instruction": instruction,
            "contents": contents,
            "generation_config": {"temperature": 0.0, "top_p": 0.5, "top_k": 3, "max_output_tokens": 9},
        }
    )
    assert in_snake_case == in_camel_case
    assert in_snake_case["messages"][0] == {"role": "system", "content": "Be kind."}
    assert (in_snake_case["top_p"], in_snake_case["max_tokens"]) == (0.5, 9)
