"""Each reader gets messages in the form that it reads, or the reason why it cannot have them."""

from typing import Any

import pytest

from rollbus.consumers.export.forms import for_axolotl, for_nemo, for_openai, for_templates, only_text, tool_schemas
from rollbus.consumers.export.numbers import UnfitRowError

ARGUMENTS = '{"b": 1.50, "a": null}'
CALL = {"id": "c", "type": "function", "index": 0, "function": {"name": "f", "arguments": ARGUMENTS}}
CALLING: list[dict[str, Any]] = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "[1]", "tool_call_id": "c", "name": "f"},
]


def call_with(arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}


def test_a_template_gets_objects_and_no_null_keys() -> None:
    _, answer, result = for_templates(CALLING)
    assert answer == {"role": "assistant", "content": "", "tool_calls": [call_with({"b": 1.5, "a": None})]}
    assert list(answer["tool_calls"][0]["function"]["arguments"]) == ["b", "a"], (
        "in the order in which they were sampled"
    )
    assert result == CALLING[2]


def test_readers_that_parse_arguments_get_them_as_the_model_wrote_them() -> None:
    (asking, answer, result), nemo = for_openai(CALLING), for_nemo(CALLING)
    assert for_axolotl(CALLING) == nemo
    assert asking == CALLING[0]
    assert answer == {"role": "assistant", "content": None, "tool_calls": [call_with(ARGUMENTS)]}
    assert result == {"role": "tool", "content": "[1]", "tool_call_id": "c"}
    assert nemo[1] == answer | {"content": ""}


@pytest.mark.parametrize("arguments", ["[7]", "7", '"x"', "{", '{"a": NaN}', "[withheld 9f2c]"])
def test_arguments_that_are_not_an_object_are_refused(arguments: str) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call_with(arguments)]}
    for form in (for_templates, for_nemo, for_openai):
        with pytest.raises(UnfitRowError, match="not a JSON object"):
            form([message])


def test_json_that_is_nested_too_deep_is_refused() -> None:
    arguments = '{"a": ' * 100_000 + "1" + "}" * 100_000
    with pytest.raises(UnfitRowError, match="not a JSON object"):
        for_templates([{"role": "assistant", "content": None, "tool_calls": [call_with(arguments)]}])
    with pytest.raises(UnfitRowError, match="not a JSON list"):
        tool_schemas("[" * 100_000 + "]" * 100_000)


def test_empty_arguments_are_an_empty_object() -> None:
    (message,) = for_templates([{"role": "assistant", "content": "", "tool_calls": [call_with("")]}])
    assert message["tool_calls"] == [call_with({})]


def test_a_message_that_a_form_cannot_hold_is_refused() -> None:
    thinking = [{"role": "assistant", "content": "a", "reasoning_content": "hm"}]
    with pytest.raises(UnfitRowError, match="with thinking, for which OpenAI's form has no field"):
        for_openai(thinking)
    with pytest.raises(UnfitRowError, match="with thinking, which X does not pass on"):
        only_text("X")(thinking)
    with pytest.raises(UnfitRowError, match="with tool calls, which X does not pass on"):
        only_text("X")(CALLING)
    with pytest.raises(UnfitRowError, match="of role 'developer', which NeMo refuses"):
        for_nemo([{"role": "developer", "content": "x"}])


def test_tool_schemas_are_a_list() -> None:
    assert tool_schemas("") is None
    assert tool_schemas('[{"type": "function"}]') == [{"type": "function"}]
    for text in ("{}", "[withheld 9f2c]"):
        with pytest.raises(UnfitRowError, match="not a JSON list"):
            tool_schemas(text)
