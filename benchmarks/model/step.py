"""One GRPO step of SmolLM2 on sixteen prompts with eight answers each: ours, and TRL's GRPOTrainer.

    python -m benchmarks.model.step make FOLDER MODEL      MODEL in Hugging Face's layout
    python -m benchmarks.model.step ours|adapters FOLDER
    .venv-bench-model/bin/python -m benchmarks.model.step trl FOLDER

The prompts are those of the demo's tickets: about 120 tokens, of which most are the same in all. `adapters` trains what
the demo trains, in the precision that the processor is quick in. The other two train all parameters in float32, and
take the same rows, log-probs, advantages, loss (cispo, token mean), AdamW and clipping. TRL's
loss and backward are driven as its own training step drives them. It passes one group at a time and adds up the
gradients: all rows at once take more than 24 GB. Prints one JSON line: median seconds of a step, by the clock and of
the processor, and the most memory of the process.
"""

import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

GROUPS, GROUP_SIZE, COMPLETION = 16, 8, (2, 8)
"""The last: the range of lengths in tokens."""
WARM_UP, STEPS = 1, 3
"""Of a process; it is started again for every round."""
LEARNING_RATE, CLIP = 1e-4, 1.0


def make(folder: Path, model: Path) -> None:
    from rollbus.demo.routing.prompt import messages
    from rollbus.demo.routing.tickets import TRAFFIC
    from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer

    (folder / "model").symlink_to(model.resolve())
    tokenizer = load_tokenizer(model)
    chance = random.Random(3)
    rows = []
    for number in range(GROUPS):
        text = tokenizer.apply_chat_template(
            messages(TRAFFIC.ticket(0, number).text), add_generation_prompt=True, tokenize=False
        )
        prompt = tokenizer.encode(text)
        for member in range(GROUP_SIZE):
            completion = [chance.randrange(5, 3000) for _ in range(chance.randint(*COMPLETION))]
            logprobs = [-chance.random() * 2 - 5 for _ in completion]
            advantage = 0.5 if member % 2 else -0.5
            rows.append({"prompt": prompt, "completion": completion, "logprobs": logprobs, "advantage": advantage})
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
    """`Learner.step` on the sequences of a batch, with all parameters."""
    from rollbus.trainer.art_server.learner.update import Learner
    from rollbus.trainer.art_server.model.config import read_config

    learner = Learner(read_config(folder / "model"))
    learner.start_from(0, folder / "model")
    return _step_of(learner, folder)


def adapters(folder: Path) -> Callable[[], Any]:
    """`Learner.step` with the demo's adapters."""
    from rollbus.demo.routing.job import RANK
    from rollbus.trainer.art_server.checkpoints.base_version import write_base_version
    from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
    from rollbus.trainer.art_server.learner.update import Learner
    from rollbus.trainer.art_server.model.config import read_config
    from rollbus.trainer.art_server.model.precision import choose_precision
    from rollbus.trainer.backends.model_settings import LoraConfig

    config, base = read_config(folder / "model"), folder / "model"
    lora = LoraConfig(rank=RANK, alpha=2 * RANK)
    loader = ModelLoader(config, precision=choose_precision("auto", "cpu"), lora=lora, base=base)
    version_0 = Path(tempfile.mkdtemp(dir=folder)) / "0"
    write_base_version(version_0, loader, base)
    learner = Learner(config, loader=loader)
    learner.start_from(0, version_0)
    return _step_of(learner, folder)


def _step_of(learner: Any, folder: Path) -> Callable[[], Any]:
    from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
    from rollbus.trainer.backends.protocol import TrainTrajectory, TurnTokens
    from rollbus.trainer.backends.sequences import TokenSequence
    from rollbus.trainer.train_config import TrainConfig

    def make_sequence(row: dict[str, Any]) -> TokenSequence:
        tokens = encode_token_ids(row["prompt"]), encode_token_ids(row["completion"])
        turn = TurnTokens(*tokens, encode_logprobs(row["logprobs"]), policy_version=0)
        return TokenSequence(TrainTrajectory("t", "g", row["advantage"], 0.0, (turn,)), (turn,))

    sequences = list(map(make_sequence, _rows(folder)))
    config = TrainConfig(learning_rate=LEARNING_RATE, max_grad_norm=CLIP)
    return lambda: learner.step(sequences, config)


def trl(folder: Path) -> Callable[[], Any]:
    """GRPOTrainer's own loss, accelerator, clipping and optimizer on inputs that are ready."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    settings = GRPOConfig(
        output_dir=str(folder / "trl"), use_cpu=True, bf16=False, report_to=[], loss_type="cispo", epsilon_high=5.0,
        learning_rate=LEARNING_RATE, max_grad_norm=CLIP, per_device_train_batch_size=GROUP_SIZE, num_generations=8,
        gradient_checkpointing=False, lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = GRPOTrainer(
        model=_model(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": ["a"] * GROUPS * GROUP_SIZE}),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
    )
    trainer.create_optimizer_and_scheduler(num_training_steps=1000)
    model = trainer.accelerator.prepare_model(trainer.model)
    optimizer = trainer.accelerator.prepare_optimizer(trainer.optimizer)
    trainer.current_gradient_accumulation_steps = 1
    batch = _pad_rows(_rows(folder))
    tokens, rows = batch["completion_mask"].sum(), len(batch["prompt_ids"])
    parts: list[dict[str, Tensor]] = [
        {name: values[first : first + GROUP_SIZE] for name, values in batch.items()} | {"num_items_in_batch": tokens}
        for first in range(0, rows, GROUP_SIZE)
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


def _pad_rows(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
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


if __name__ == "__main__":
    chosen, *paths = sys.argv[1:]
    if chosen == "make":
        make(*map(Path, paths))
    else:
        figures = timed({"ours": ours, "adapters": adapters, "trl": trl}[chosen](Path(paths[0])))
        print(json.dumps(figures | {"peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}))
