"""Every measurement of the trainer, in one run, with ratios; no number here is a test.

    make bench-trainer          python -m benchmarks.trainer.run PYTHON_OF_TRL [rounds]

Variants are processes of their own and take turns. The losses of TRL are computed anew first, and compared with those
that the tests hold ours to.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from rollbus.local.kafka import kafka_service
from rollbus.local.ports import free_port
from rollbus.local.service import ServiceProcess
from rollbus.local.tether import tethered

ROOT = Path(__file__).parents[2]
SIZES = ("demo", "small")
VARIANTS = ("ours", "plain", "trl")
LOSSES = "tests/trainer/trl_losses.json"


def call(python: str, module: str, *arguments: str) -> dict[str, Any]:
    """Run a module; return what it printed last."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / '.make' / 'dev'}", "OMP_NUM_THREADS": "1"}
    command = [python, "-m", f"benchmarks.trainer.{module}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    lines = done.stdout.split("\n")
    return dict(json.loads(lines[-2])) if lines[-2].startswith("{") else {"said": lines[-2]}


def steps(trl_python: str, folder: Path, rounds: int) -> None:
    for size in SIZES:
        (folder / size).mkdir()
        call(sys.executable, "step", "make", str(folder / size), "--model", size)
        seen: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
        for _ in range(rounds):
            for variant in VARIANTS:
                python = trl_python if variant == "trl" else sys.executable
                seen[variant].append(call(python, "step", variant, str(folder / size)))
        print(f"\none step, {size} model: medians of {rounds} alternating rounds")
        for variant in VARIANTS:
            wall, cpu = ([each[name] for each in seen[variant]] for name in ("seconds", "cpu_seconds"))
            print(f"  {variant:6} {median(wall):7.3f} s ({min(wall):.3f} to {max(wall):.3f})  {median(cpu):7.3f} CPU s")
        for other in VARIANTS[1:]:
            pairs = list(zip(seen[other], seen["ours"], strict=True))
            ratios = [[theirs[name] / own[name] for theirs, own in pairs] for name in ("seconds", "cpu_seconds")]
            shown = ", ".join(f"{median(each):.2f} ({min(each):.2f} to {max(each):.2f})" for each in ratios)
            print(f"  {other} / ours, wall and CPU: {shown}")


def sampling(folder: Path) -> None:
    for size in SIZES:
        found = call(sys.executable, "sampler", str(folder / size))
        print(f"\nsampler, {size} model: {found['ours']:.0f} tokens/s, generate {found['generate']:.0f} tokens/s, "
              f"ratio {found['ours'] / found['generate']:.2f}")  # fmt: skip


def log_and_loop(folder: Path) -> None:
    service = kafka_service(folder=folder, client_port=free_port(), controller_port=free_port())
    broker = ServiceProcess(service, log_path=folder / "kafka.log", prefix=tethered())
    try:
        broker.start()
        broker.wait_until_healthy()
        beside = call(sys.executable, "overhead", service.address)
        print(f"\nbeside an update of 1 s: {1000 * beside['seconds']:.0f} ms a step "
              f"({1000 * beside['lowest']:.0f} to {1000 * beside['highest']:.0f})")  # fmt: skip
        fetched = call(sys.executable, "fetch", service.address)
        print(f"fetch of 64 × 8 × 2,000 tokens: {fetched}")
    finally:
        broker.stop()


def main(trl_python: str, rounds: int) -> None:
    print(call(trl_python, "trl_losses", "--check", LOSSES)["said"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kafka").mkdir()
        log_and_loop(folder / "kafka")
        steps(trl_python, folder, rounds)
        sampling(folder)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
