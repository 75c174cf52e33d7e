"""Tokenize an SFT export and a DPO export with Axolotl's strategies, and compare with the truth.

python -m tests.readers.in_reader.check_axolotl FOLDER
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.readers.in_reader.families import SAMPLED, make_tokenizer, sampled_ids

LONGEST_TEXT = 2_000
FAMILIES = [family for family in SAMPLED if family != "gemma4_v5"]
"""The templates that the TRL which Axolotl pins has, too."""
WITHOUT_CALLS = {"glm4moe"}
"""Axolotl passes on the keys that a template reads from a variable named `message`. This one names it `m`: it loses the
calls; docs/export.md warns of it."""


def main(folder: Path) -> None:
    from axolotl.prompt_strategies.chat_template import load as load_strategy
    from axolotl.prompt_strategies.dpo.chat_template import default
    from axolotl.utils.dict import DictDefault
    from datasets import load_dataset

    truth = json.loads((folder / "truth.json").read_text())
    rows = load_dataset("parquet", data_files=str(folder / "train.parquet"), split="train")
    assert {row["trajectory_id"] for row in rows} == truth.keys()
    for family in FAMILIES:
        tokenizer = make_tokenizer(family)
        settings = DictDefault(
            {"train_on_inputs": False, "sequence_len": 1 << 20, "chat_template": "tokenizer_default", "datasets": [{}]}
        )
        strategy = load_strategy(tokenizer, settings, {"type": "chat_template"})
        same = 0
        for row in rows:
            expected = truth[row["trajectory_id"]]
            if len(json.dumps(expected)) > LONGEST_TEXT:
                assert row["messages"] == expected["messages"]
                continue  # minutes on a CPU
            right = rendered_ids(tokenizer, expected["messages"], expected["tools"])
            if right is None:
                continue  # the template takes one call at once
            if (family, row["trajectory_id"]) == ("gptoss", "tools"):
                continue  # Axolotl looks for a turn by rendering others in its place, which gpt-oss's template refuses
            tokens = strategy.tokenize_prompt(row)
            if family in WITHOUT_CALLS and any("tool_calls" in message for message in expected["messages"]):
                assert not contains(tokens["input_ids"], sampled_ids(tokenizer, family)), "Axolotl finds its calls now"
                continue
            assert tokens["input_ids"] == right, (family, row["trajectory_id"], tokenizer.decode(tokens["input_ids"]))
            if row["trajectory_id"] == "single":
                assert contains(tokens["input_ids"], sampled_ids(tokenizer, family)), family
            same += 1
        print(family, same, "rows are tokenized as recorded")
    pairs = load_dataset("parquet", data_files=str(folder / "dpo" / "train.parquet"), split="train")
    tokenizer = make_tokenizer("qwen2_5")
    convert, _ = default(DictDefault({"datasets": [{}], "chat_template": "tokenizer_default"}))
    texts = [convert(row, tokenizer=tokenizer) for row in pairs]
    assert all(text["chosen"].startswith("2026-01-01<|im_end|>") for text in texts), texts
    assert all(text["rejected"].startswith("2025-12-31<|im_end|>") for text in texts), texts
    assert all(f"Day {number}?" in text["prompt"] for number, text in enumerate(texts)), texts
    print(len(texts), "pairs are rendered as recorded")


def rendered_ids(tokenizer: Any, messages: Any, tools: Any) -> list[int] | None:
    """Return the tokens of a conversation; None if the template refuses it."""
    try:
        encoded = tokenizer.apply_chat_template(messages, tools=tools)
    except Exception:
        return None
    return list(encoded["input_ids"] if hasattr(encoded, "keys") else encoded)


def contains(whole: list[int], part: list[int]) -> bool:
    return any(whole[at : at + len(part)] == part for at in range(len(whole)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
