"""Tokens per second for 32 requests that share a prefix of 100 tokens, by our sampler, transformers and llama.cpp.

    python -m benchmarks.model.generation ours|generate FOLDER
    python -m benchmarks.model.generation llama GGUF SERVER       SERVER: llama.cpp's llama-server

FOLDER is the model in Hugging Face's layout, GGUF the file that it came from. Each request samples 32 tokens at
temperature 1 and does not stop before. `generate` gets them as one padded batch in bfloat16; ours and llama.cpp's get
them one by one, as they would come, and keep what they have read of the prefix. Ours records a log-prob for each token.
All take two threads. Prints one JSON line.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import httpx
import torch

from rollbus.local.process.ports import find_free_port
from rollbus.stack_settings import HOST

REQUESTS, PREFIX, SUFFIX, TOKENS = 32, 100, 16, 32
ROUNDS, THREADS = 5, 2
CONTEXT = 256


def prompts() -> list[list[int]]:
    """Token ids that every model of this size has; the prefix is the same in all."""
    prefix = [1000 + 7 * place % 9000 for place in range(PREFIX)]
    return [
        [*prefix, *(2000 + (31 * request + place) % 5000 for place in range(SUFFIX))] for request in range(REQUESTS)
    ]


def rate_of(ask: Callable[[int], int]) -> float:
    """Return the median tokens per second of rounds; `ask` samples for all requests and returns how many tokens."""
    rates = []
    for turn in range(ROUNDS + 1):
        began = time.perf_counter()
        rates.append(ask(turn) / (time.perf_counter() - began))
    return median(rates[1:])


def ours(folder: Path) -> float:
    from rollbus.trainer.art_server.checkpoints.loading import ModelLoader
    from rollbus.trainer.art_server.endpoint.tokenizer import load_tokenizer
    from rollbus.trainer.art_server.model.config import read_config
    from rollbus.trainer.art_server.sampler.requests import SamplingParameters
    from rollbus.trainer.art_server.sampler.sampler import Sampler

    config = read_config(folder, max_tokens=CONTEXT)
    loader = ModelLoader(config, precision="bfloat16")
    sampler = Sampler(config, load_tokenizer(folder), max_rows=REQUESTS, threads=THREADS, dtype=loader.dtype)
    sampler.load(0, loader.load(folder))

    def ask(turn: int) -> int:
        how = [SamplingParameters(TOKENS, seed=turn * 100 + index, ignore_eos=True) for index in range(REQUESTS)]
        futures = [sampler.submit(prompt, sampling, 0) for prompt, sampling in zip(prompts(), how, strict=True)]
        return sum(len(future.result().token_ids) for future in futures)

    try:
        return rate_of(ask)
    finally:
        sampler.close()


@torch.no_grad()
def generate(folder: Path) -> float:
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(THREADS)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    input_ids = torch.tensor(prompts())

    def ask(turn: int) -> int:
        torch.manual_seed(turn)
        sequences = model.generate(
            input_ids=input_ids, attention_mask=torch.ones_like(input_ids), do_sample=True, temperature=1.0, top_k=0,
            min_new_tokens=TOKENS, max_new_tokens=TOKENS, pad_token_id=0,
        )  # fmt: skip
        return int(sequences[:, input_ids.shape[1] :].numel())

    return rate_of(ask)


def llama(gguf: Path, server: Path) -> float:
    port = find_free_port()
    context = str(REQUESTS * CONTEXT)
    command = [str(server), "-m", str(gguf), "--host", HOST, "--port", str(port), "-t", str(THREADS)]
    process = subprocess.Popen(
        [*command, "-c", context, "-np", str(REQUESTS)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with (
            httpx.Client(base_url=f"http://{HOST}:{port}", timeout=300) as client,
            ThreadPoolExecutor(REQUESTS) as pool,
        ):
            while not _answers(client):
                time.sleep(0.2)

            def ask(turn: int) -> int:
                bodies = [
                    {"prompt": prompt, "n_predict": TOKENS, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
                     "seed": turn * 100 + index, "ignore_eos": True, "cache_prompt": True}
                    for index, prompt in enumerate(prompts())
                ]  # fmt: skip
                answers = pool.map(lambda body: client.post("/completion", json=body).raise_for_status().json(), bodies)
                return sum(answer["tokens_predicted"] for answer in answers)

            return rate_of(ask)
    finally:
        process.terminate()
        process.wait()


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx.HTTPError:
        return False


if __name__ == "__main__":
    name, *paths = sys.argv[1:]
    measure = {"ours": ours, "generate": generate, "llama": llama}[name]
    print(json.dumps({"tokens_per_s": measure(*map(Path, paths))}))
