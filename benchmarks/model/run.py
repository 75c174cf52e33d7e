"""The sampler and the GRPO step on SmolLM2 compared with transformers, TRL and llama.cpp; no number here is a test.

    make bench-model          python -m benchmarks.model.run PYTHON_OF_TRL [--rounds 2] [--llama-server PATH]

Variants are processes of their own and take turns. `--llama-server` is a llama-server that you have built; without it
that comparison is left out, and the output says so. On a quiet machine of two cores it takes about ten minutes.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import at_least, at_most, reported, run_module
from rollbus.trainer.art_server.base_models.packaged import fetch_gguf, fetch_model, models_cache

STEP_CPU_S, TIMES_GENERATE, TIMES_LLAMA = 5.0, 3.0, 2.0
"""Targets: the processor time of a GRPO step, and the sampler's rate compared with others'."""


def run_variant(python: str, module: str, *arguments: str) -> dict[str, Any]:
    """Run a variant with both cores; return its figures."""
    print(f"  {module} {arguments[0]}", file=sys.stderr, flush=True)
    return run_module(python, f"benchmarks.model.{module}", *arguments, threads=2)


def generation(model: Path, llama: list[str] | None, rounds: int) -> None:
    variants = {"ours": [str(model)], "generate": [str(model)]} | ({"llama": llama} if llama else {})
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, arguments in variants.items():
            rates[name].append(run_variant(sys.executable, "generation", name, *arguments)["tokens_per_s"])
    rates_text = ", ".join(f"{name} {median(measured):.0f}" for name, measured in rates.items()) + " tokens/s"
    our_rate = median(rates["ours"])
    print(
        at_least("sampler × transformers' generate", our_rate / median(rates["generate"]), TIMES_GENERATE, rates_text)
    )
    if llama:
        print(at_least("sampler × llama.cpp's server", our_rate / median(rates["llama"]), TIMES_LLAMA, rates_text))
    else:
        print(reported("sampler × llama.cpp's server", "left out: no --llama-server"))


def update(model: Path, folder: Path, trl_python: str, rounds: int) -> None:
    run_variant(sys.executable, "step", "make", str(folder), str(model))
    runs_by_name: dict[str, list[dict[str, float]]] = {"ours": [], "adapters": [], "trl": []}
    for _ in range(rounds):
        for name, python in (("ours", sys.executable), ("adapters", sys.executable), ("trl", trl_python)):
            runs_by_name[name].append(run_variant(python, "step", name, str(folder)))
    seconds, cpu_s, peak = (
        {name: median(figures[key] for figures in runs_by_name[name]) for name in runs_by_name}
        for key in ("seconds", "cpu_seconds", "peak_gb")
    )
    times = ", ".join(f"{name} {seconds[name]:.1f} s" for name in runs_by_name)
    memory = ", ".join(f"{name} {peak[name]:.1f} GB" for name in runs_by_name)
    print(at_least("GRPO step, times as fast as TRL's", seconds["trl"] / seconds["ours"], 2.0, times))
    print(at_most("the demo's GRPO step, CPU seconds", cpu_s["adapters"], STEP_CPU_S, "16 prompts, 8 answers each"))
    print(at_most("GRPO step, memory / TRL's", peak["ours"] / peak["trl"], 1.0, memory))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trl_python")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--llama-server", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    model = fetch_model("smollm2", models_cache(), report=print)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        llama = None
        if options.llama_server:
            llama = [str(fetch_gguf("smollm2", folder, report=print)), str(options.llama_server)]
        generation(model, llama, options.rounds)
        update(model, folder, options.trl_python, options.rounds)
    print(f"{time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
