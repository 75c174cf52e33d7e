"""Tokens per second of the model service's sampler with 16 requests at a time, beside transformers' `generate`.

    python -m benchmarks.trainer.sampler FOLDER        a folder of `benchmarks.trainer.step make`

The same model and prompts. `generate` gets them as one padded batch, the sampler one by one as they would come; both
sample 64 tokens each at temperature 1, and the sampler records a log-prob for each.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.trainer.step import _model, _padded, _rows

REQUESTS, TOKENS, ROUNDS = 16, 64, 5


def ours(folder: Path, prompts: list[list[int]]) -> float:
    from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
    from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer
    from rollbus.trainer.art_server.model.config import read_config
    from rollbus.trainer.art_server.sampler.requests import SamplingParameters
    from rollbus.trainer.art_server.sampler.sampler import Sampler

    config = read_config(folder / "model")
    model = ModelLoader(config).load(folder / "model")
    sampler = Sampler(config, load_tokenizer(folder / "model"), max_rows=REQUESTS, keep_versions=1)
    sampler.load(0, model)
    rates = []
    try:
        for turn in range(ROUNDS + 1):
            began = time.perf_counter()
            futures = [
                sampler.submit(
                    prompt, SamplingParameters(max_tokens=TOKENS, temperature=1.0, seed=turn * 100 + index), 0
                )
                for index, prompt in enumerate(prompts)
            ]
            tokens = sum(len(future.result(timeout=120).token_ids) for future in futures)
            rates.append(tokens / (time.perf_counter() - began))
    finally:
        sampler.close()
    return median(rates[1:])


@torch.no_grad()
def generate(folder: Path, rows: list[dict[str, Any]]) -> float:
    model = _model(folder).eval()
    batch = _padded(rows)
    rates = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        sequences = model.generate(
            input_ids=batch["prompt_ids"], attention_mask=batch["prompt_mask"], do_sample=True, temperature=1.0,
            top_k=0, min_new_tokens=TOKENS, max_new_tokens=TOKENS, pad_token_id=0,
        )  # fmt: skip
        tokens = sequences.shape[0] * (sequences.shape[1] - batch["prompt_ids"].shape[1])
        rates.append(tokens / (time.perf_counter() - began))
    return median(rates[1:])


def main() -> None:
    folder = Path(sys.argv[1])
    rows = _rows(folder)[:REQUESTS]
    print(json.dumps({"ours": ours(folder, [row["prompt"] for row in rows]), "generate": generate(folder, rows)}))


if __name__ == "__main__":
    main()
