"""Every measurement of the trainer in one run, with its ratio to the target; no number here is a test.

    make bench-trainer          python -m benchmarks.trainer.run PYTHON_OF_TRL [--rounds 2] [--only step,sampler]

Variants are processes of their own and take turns. The losses of TRL are computed again first, and compared with those
that the tests hold ours to. On a quiet machine of two cores it takes about five minutes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.trainer.overhead import STEP_S
from benchmarks.trainer.verdicts import Verdict, at_least, at_most, reported
from rollbus.local.kafka.service import kafka_service
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import ServiceProcess
from rollbus.local.process.tether import tethered

ROOT = Path(__file__).parents[2]
SIZES = ("demo", "small")
VARIANTS = ("ours", "plain", "trl")
LOSSES = "tests/trainer/grpo/trl_losses.json"
OVERHEAD_SHARE = 0.02
"""Of a step, outside of the backend."""
PARTS = ("losses", "overhead", "fetch", "step", "sampler")


def call(python: str, module: str, *arguments: str) -> dict[str, Any]:
    """Run a module; return what it printed last."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [python, "-m", f"benchmarks.trainer.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    *_, last = "", *done.stdout.splitlines()  # what makes something prints nothing
    return dict(json.loads(last)) if last.startswith("{") else {"said": last}


def losses(trl_python: str) -> list[Verdict]:
    return [reported("losses and gradients of TRL", call(trl_python, "trl_losses", "--check", LOSSES)["said"])]


def overhead(address: str) -> list[Verdict]:
    result = call(sys.executable, "overhead", address)
    figures = (
        f"{1000 * result['seconds']:.1f} ms beside an update of {result['update_seconds']:.4f} s "
        f"({1000 * result['lowest']:.1f} to {1000 * result['highest']:.1f}), {1000 * result['cpu_seconds']:.1f} CPU ms"
    )
    return [at_most("time outside the backend", result["seconds"] / STEP_S, OVERHEAD_SHARE, figures)]


def fetch(address: str) -> list[Verdict]:
    result = call(sys.executable, "fetch", address)
    first, *later = result["seconds"]
    figures = (
        f"{first:.2f} s the first time, then {median(later):.2f} s; {result['payload_mb']} MB of ids and log-probs, "
        f"memory peaks {result['peak_mb_above']} MB above"
    )
    return [reported("fetch of 64 × 8 × 2,000 tokens", figures)]


def step(trl_python: str, folders: dict[str, Path], rounds: int) -> list[Verdict]:
    seen: dict[str, list[dict[str, dict[str, float]]]] = {variant: [] for variant in VARIANTS}
    for number in range(rounds):
        for variant in VARIANTS:
            print(f"  round {number + 1} of {rounds}: {variant}", file=sys.stderr, flush=True)
            python = trl_python if variant == "trl" else sys.executable
            seen[variant].append(call(python, "step", variant, *map(str, folders.values())))
    verdicts = []
    for size in folders:
        for variant in VARIANTS:
            wall, cpu = ([sizes[size][name] for sizes in seen[variant]] for name in ("seconds", "cpu_seconds"))
            verdicts.append(
                reported(f"a step, {size} model, {variant}", f"{median(wall):.3f} s, {median(cpu):.3f} CPU s")
            )
        for other in VARIANTS[1:]:
            pairs = list(zip(seen[other], seen["ours"], strict=True))
            by_wall, by_cpu = (
                [theirs[size][name] / ours[size][name] for theirs, ours in pairs] for name in ("seconds", "cpu_seconds")
            )
            figures = f"by CPU {median(by_cpu):.2f}, rounds {min(by_wall):.2f} to {max(by_wall):.2f}"
            verdicts.append(at_least(f"our step × {other}, {size} model", median(by_wall), 1.0, figures))
    return verdicts


def sampler(folders: dict[str, Path]) -> list[Verdict]:
    verdicts = []
    for size, folder in folders.items():
        rates = call(sys.executable, "sampler", str(folder))
        figures = (
            f"{rates['ours']:.0f} against {rates['generate']:.0f} tokens/s: {rates['ours'] / rates['generate']:.2f}"
        )
        verdicts.append(reported(f"sampler, 16 requests × generate, {size} model", figures))
    return verdicts


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """A Kafka of its own."""
    folder.mkdir()
    service = kafka_service(folder=folder, client_port=find_free_port())
    process = ServiceProcess(service, log_path=folder / "kafka.log", prefix=tethered())
    try:
        process.start()
        process.wait_until_healthy()
        yield service.address
    finally:
        process.stop()


def models(folder: Path) -> dict[str, Path]:
    """A model and a batch of each size."""
    folders = {size: folder / size for size in SIZES}
    for where in folders.values():
        where.mkdir()
    call(sys.executable, "step", "make", *map(str, folders.values()))
    return folders


def show(verdicts: list[Verdict]) -> None:
    for verdict in verdicts:
        print(verdict, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trl_python")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help=",".join(PARTS))
    options = parser.parse_args()
    began, wanted_parts = time.monotonic(), set(options.only)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "losses" in wanted_parts:
            show(losses(options.trl_python))
        if wanted_parts & {"overhead", "fetch"}:
            with broker(folder / "kafka") as address:
                for part in (overhead, fetch):
                    if part.__name__ in wanted_parts:
                        show(part(address))
        if wanted_parts & {"step", "sampler"}:
            folders = models(folder)
            if "step" in wanted_parts:
                show(step(options.trl_python, folders, options.rounds))
            if "sampler" in wanted_parts:
                show(sampler(folders))
    print(f"{time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
