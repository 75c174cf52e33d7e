"""Load an SFT export with NeMo AutoModel's chat dataset, and compare every row with the truth.

    python -m tests.readers.in_reader.check_nemo FOLDER

AutoModel writes arguments as text before it calls the template. So calls are compared with templates that take text.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.readers.in_reader.families import make_tokenizer

TEXT_TEMPLATES = ("qwen3", "qwen2_5", "llama3_1")
"""The first prints calls as the model wrote them; the others are checked on the rows without calls."""


def main(folder: Path) -> None:
    from nemo_automodel.components.datasets.llm.chat_dataset import ChatDataset

    truth = list(json.loads((folder / "truth.json").read_text()).values())
    for family in TEXT_TEMPLATES:
        tokenizer = make_tokenizer(family)
        rows = ChatDataset(str(folder / "training" / "training_file.jsonl"), tokenizer)
        assert len(rows) == len(truth), (len(rows), len(truth))
        same = 0
        for row, expected in zip(rows.dataset, truth, strict=True):
            assert [objects(message) for message in row["messages"]] == expected["messages"], row
            assert row.get("tools") == expected["tools"], row
        for at, expected in enumerate(truth):
            if len(json.dumps(expected)) > 2_000 or any("reasoning_content" in m for m in expected["messages"]):
                continue  # what a template does with thinking differs, and AutoModel passes it on
            calls = any("tool_calls" in message for message in expected["messages"])
            if calls and (family != "qwen3" or len(expected["messages"]) > 2):
                continue  # of several turns AutoModel refuses Qwen3's template, which leaves out earlier thinking
            right = tokenizer.apply_chat_template(expected["messages"], tools=expected["tools"], return_dict=True)
            ids = rows[at]["input_ids"]
            shifted = right["input_ids"][: len(ids)]
            assert list(ids) == list(shifted), (family, tokenizer.decode(ids))
            same += 1
        print(family, same, "rows are tokenized as recorded")


def objects(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with its arguments as objects, as the truth has them."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return message | ({"tool_calls": calls} if calls else {})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
