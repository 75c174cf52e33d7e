"""One optimizer step on the same model and tokens: ours, a hand-written torch loop, and TRL's GRPOTrainer.

    python -m benchmarks.trainer.step make FOLDER…     a model and a batch; the folder is named by a size
    python -m benchmarks.trainer.step ours|plain FOLDER…
    .venv-bench-trainer/bin/python -m benchmarks.trainer.step trl FOLDER…

Each prints its median seconds per step, by name of the folder. All take the same rows, log-probs and advantages, the
same loss (cispo, token mean), AdamW and gradient clipping, in float32. None generates; TRL's loss and backward are
driven as its own training step drives them, with its accelerator, optimizer and clipping.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

ROWS, PROMPT, COMPLETION = 64, (24, 64), (8, 96)
"""Rows of a batch, and the range of lengths in tokens: completions of production are unequal."""
WARM_UP, STEPS = 1, 5
"""Of a process; it is started again for every round."""
ROWS_AT_ONCE = 64
"""Rows of one pass of TRL's: fewer than ROWS where the activations of all do not fit into memory."""
LEARNING_RATE, CLIP = 1e-4, 1.0
SIZES = {"demo": (2, 128, 256, 384), "small": (4, 256, 768, 4096)}
"""Layers, width, feed-forward width and vocabulary."""


def make(folder: Path) -> None:
    from rollbus.trainer.art_server.checkpoints.checkpoint import save_model
    from rollbus.trainer.art_server.endpoint.tokenizer import build_tokenizer
    from rollbus.trainer.art_server.model.config import ModelConfig
    from rollbus.trainer.art_server.model.model import build_model, initialize

    layers, width, feed_forward, vocabulary = SIZES[folder.name]
    config = ModelConfig(
        vocabulary=vocabulary,
        layers=layers,
        width=width,
        heads=4,
        kv_heads=2,
        feed_forward=feed_forward,
        max_tokens=256,
    )
    model = build_model(config)
    initialize(model, seed=0)
    save_model(folder / "model", model, config, build_tokenizer(["a text"]))
    chance = random.Random(3)
    rows = []
    for index in range(ROWS):
        prompt, completion = chance.randint(*PROMPT), chance.randint(*COMPLETION)
        rows.append(
            {
                "prompt": [chance.randrange(5, 300) for _ in range(prompt)],
                "completion": [chance.randrange(5, 300) for _ in range(completion)],
                "logprobs": [-chance.random() * 2 - 5 for _ in range(completion)],
                "advantage": 0.5 if index % 2 else -0.5,
            }
        )
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")


def timed(step: Callable[[], Any]) -> dict[str, float]:
    """Medians of wall time and of CPU time, which other work on the machine disturbs less."""
    wall, cpu = [], []
    for _ in range(WARM_UP + STEPS):
        began = time.perf_counter(), time.process_time()
        step()
        wall.append(time.perf_counter() - began[0])
        cpu.append(time.process_time() - began[1])
    return {"seconds": median(wall[WARM_UP:]), "cpu_seconds": median(cpu[WARM_UP:])}


def ours(folder: Path) -> Callable[[], Any]:
    """`Learner.step` on the sequences of a batch."""
    from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
    from rollbus.trainer.art_server.learner.update import Learner
    from rollbus.trainer.art_server.model.config import read_config
    from rollbus.trainer.backends.protocol import TrainConfig, TrainTrajectory, TurnTokens
    from rollbus.trainer.backends.sequences import TokenSequence

    def make_sequence(row: dict[str, Any]) -> TokenSequence:
        tokens = encode_token_ids(row["prompt"]), encode_token_ids(row["completion"])
        turn = TurnTokens(*tokens, encode_logprobs(row["logprobs"]), policy_version=0)
        return TokenSequence(TrainTrajectory("t", "g", row["advantage"], 0.0, (turn,)), (turn,))

    learner = Learner(read_config(folder / "model"))
    learner.start_from(0, folder / "model")
    sequences = list(map(make_sequence, _rows(folder)))
    config = TrainConfig(learning_rate=LEARNING_RATE, max_grad_norm=CLIP)
    return lambda: learner.step(sequences, config)


def plain(folder: Path) -> Callable[[], Any]:
    """As one would write it: pad, forward, log-softmax, loss, backward, clip, step; Hugging Face's model."""
    model = _model(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    batch = _padded(_rows(folder))
    inputs = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    completion_length, mask = batch["completion_ids"].shape[1], batch["completion_mask"]

    def step() -> None:
        logits = model(input_ids=inputs, attention_mask=attention, logits_to_keep=completion_length + 1).logits[:, :-1]
        logprobs = torch.log_softmax(logits, dim=-1).gather(2, batch["completion_ids"][..., None])[..., 0]
        ratio = torch.exp(logprobs - batch["old_per_token_logps"]).detach().clamp(max=5.0)
        loss = -(ratio * batch["advantages"][:, None] * logprobs * mask).sum() / mask.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def trl(folder: Path) -> Callable[[], Any]:
    """GRPOTrainer's own loss, accelerator, clipping and optimizer on inputs that are ready."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        output_dir=str(folder / "trl"), use_cpu=True, bf16=False, report_to=[], loss_type="cispo", epsilon_high=5.0,
        learning_rate=LEARNING_RATE, max_grad_norm=CLIP, per_device_train_batch_size=ROWS_AT_ONCE, num_generations=8,
        gradient_checkpointing=False, lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=_model(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * ROWS}),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
    )
    trainer.create_optimizer_and_scheduler(num_training_steps=1000)
    model = trainer.accelerator.prepare_model(trainer.model)
    optimizer = trainer.accelerator.prepare_optimizer(trainer.optimizer)
    trainer.current_gradient_accumulation_steps = 1
    batch = _padded(_rows(folder))
    tokens, rows = batch["completion_mask"].sum(), len(batch["prompt_ids"])
    parts: list[dict[str, Tensor]] = [
        {name: values[first : first + ROWS_AT_ONCE] for name, values in batch.items()} | {"num_items_in_batch": tokens}
        for first in range(0, rows, ROWS_AT_ONCE)
    ]
    model.train()

    def step() -> None:
        for part in parts:
            trainer.accelerator.backward(trainer.compute_loss(model, part))
        trainer.accelerator.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    return rows


def _model(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).train()


def _padded(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Prompts padded on the left, completions on the right."""
    prompts, completions = (max(len(row[name]) for row in rows) for name in ("prompt", "completion"))
    batch = {
        "prompt_ids": torch.zeros(len(rows), prompts, dtype=torch.long),
        "prompt_mask": torch.zeros(len(rows), prompts, dtype=torch.long),
        "completion_ids": torch.zeros(len(rows), completions, dtype=torch.long),
        "completion_mask": torch.zeros(len(rows), completions, dtype=torch.long),
        "old_per_token_logps": torch.zeros(len(rows), completions),
        "advantages": torch.tensor([row["advantage"] for row in rows]),
    }
    for index, row in enumerate(rows):
        start, end = prompts - len(row["prompt"]), len(row["completion"])
        batch["prompt_ids"][index, start:] = torch.tensor(row["prompt"])
        batch["prompt_mask"][index, start:] = 1
        batch["completion_ids"][index, :end] = torch.tensor(row["completion"])
        batch["completion_mask"][index, :end] = 1
        batch["old_per_token_logps"][index, :end] = torch.tensor(row["logprobs"])
    return batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["make", "ours", "plain", "trl"])
    parser.add_argument("folders", type=Path, nargs="+")
    options = parser.parse_args()
    if options.what == "make":
        for folder in options.folders:
            make(folder)
        return
    variant = {"ours": ours, "plain": plain, "trl": trl}[options.what]
    print(json.dumps({folder.name: timed(variant(folder)) for folder in options.folders}))


if __name__ == "__main__":
    main()
