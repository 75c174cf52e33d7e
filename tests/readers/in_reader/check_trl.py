"""Take an SFT step and a DPO step of TRL on a tiny model, and compare the tokens that it trains on with those sampled.

    python -m tests.readers.in_reader.check_trl FOLDER

FOLDER has `steps.json`: the lines that load an SFT export of answers and a DPO export.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tests.readers.in_reader.check_datasets import load
from tests.readers.in_reader.families import SAMPLED, make_tokenizer, sampled_ids

LONGEST_TEXT = 2_000
"""Longer rows would take minutes on a CPU; that they arrive is checked without a model."""

NOT_TRAINED = -100


def main(folder: Path) -> None:
    lines = json.loads((folder / "steps.json").read_text())
    answers = load(lines["sft"])
    answers = answers.select([at for at, row in enumerate(answers) if len(json.dumps(row)) < LONGEST_TEXT])
    pairs = load(lines["dpo"])
    for family in SAMPLED:
        tokenizer = make_tokenizer(family)
        rows = train_sft(folder, tokenizer, answers)
        at = answers["trajectory_id"].index("single")
        trained = [token for token in rows[at]["labels"] if token != NOT_TRAINED]
        sampled = sampled_ids(tokenizer, family)
        assert trained[: len(sampled)] == sampled, (family, tokenizer.decode(trained))
        print(family, "SFT trains on the", len(sampled), "tokens that were sampled")
    for family in ("qwen2_5", "llama3_1"):
        tokenizer = make_tokenizer(family)
        rows = train_dpo(folder, tokenizer, pairs)
        chosen = [tokenizer.decode(row["chosen_ids"]) for row in rows]
        rejected = [tokenizer.decode(row["rejected_ids"]) for row in rows]
        assert sum("2026-01-01" in text for text in chosen) == 6, chosen
        assert sum("2025-12-31" in text for text in rejected) == 6, rejected
        call = SAMPLED[family].replace('"rate": 1.7, "when": "2026-01-01"', '"rate": 0.3')
        assert sum(text.startswith(call) for text in chosen) == 1, (call, chosen)
        print(family, "DPO compares", len(rows), "pairs as they were recorded")


def tiny_model(tokenizer: Any) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    size = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=len(tokenizer), max_position_embeddings=4096, **size))


def arguments(folder: Path) -> dict[str, Any]:
    return {
        "output_dir": str(folder / "trained"),
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_length": 4096,
    }


def train_sft(folder: Path, tokenizer: Any, rows: Any) -> Any:
    from trl import SFTConfig, SFTTrainer

    trainer = SFTTrainer(
        tiny_model(tokenizer), SFTConfig(**arguments(folder)), train_dataset=rows, processing_class=tokenizer
    )
    step(trainer)
    return trainer.train_dataset


def train_dpo(folder: Path, tokenizer: Any, rows: Any) -> Any:
    from trl import DPOConfig, DPOTrainer

    trainer = DPOTrainer(
        tiny_model(tokenizer),
        ref_model=tiny_model(tokenizer),
        args=DPOConfig(**arguments(folder)),
        train_dataset=rows,
        processing_class=tokenizer,
    )
    step(trainer)
    return trainer.train_dataset


def step(trainer: Any) -> None:
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    moved = [bool((old != new).any()) for old, new in zip(before, trainer.model.parameters(), strict=True)]
    assert any(moved), "the step changed nothing"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
