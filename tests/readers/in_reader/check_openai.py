"""Check the lines of fine-tuning files against the types of OpenAI's API, with no key that it does not name.

python -m tests.readers.in_reader.check_openai FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

ROWS = {"messages", "tools"}
PAIRS = {"input", "preferred_output", "non_preferred_output"}


def main(folder: Path) -> None:
    truth = list(json.loads((folder / "truth.json").read_text()).values())
    lines = (folder / "train.jsonl").read_text().splitlines()
    assert len(lines) == len(truth), (len(lines), len(truth))
    for line, expected in zip(lines, truth, strict=True):
        row = json.loads(line)
        assert row.keys() <= ROWS, row.keys()
        check_messages(row["messages"], expected["messages"])
        assert row.get("tools") == expected["tools"]
        check_tools(row.get("tools") or [])
    print(len(lines), "conversations have the API's form")
    pairs = [json.loads(line) for line in (folder / "dpo" / "train.jsonl").read_text().splitlines()]
    for pair in pairs:
        assert pair.keys() == PAIRS, pair.keys()
        for messages in (pair["input"]["messages"], pair["preferred_output"], pair["non_preferred_output"]):
            check_messages(messages)
    called = [pair for pair in pairs if "tools" in pair["input"]]
    arguments = called[0]["preferred_output"][0]["tool_calls"][0]["function"]["arguments"]
    assert arguments == '{"order": 7, "rate": 0.3}', arguments
    print(len(pairs), "pairs have the API's form")


def check_messages(messages: list[Any], expected: list[Any] | None = None) -> None:
    from openai.types.chat import ChatCompletionMessageParam
    from pydantic import TypeAdapter

    kinds = {get_args(get_type_hints(kind)["role"])[0]: kind for kind in get_args(ChatCompletionMessageParam)}
    for message in messages:
        TypeAdapter(kinds[message["role"]]).validate_python(message)
        assert message.keys() <= get_type_hints(kinds[message["role"]]).keys(), message
    for message, right in zip(messages, expected or messages, strict=True):
        assert (message["content"] or "") == (right["content"] or ""), (message, right)
        calls = [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())]
        if expected:
            assert calls == [call["function"]["arguments"] for call in right.get("tool_calls", ())], (message, right)


def check_tools(tools: list[Any]) -> None:
    from openai.types.chat import ChatCompletionToolUnionParam
    from pydantic import TypeAdapter

    TypeAdapter(list[ChatCompletionToolUnionParam]).validate_python(tools)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
