"""Tic-tac-toe through `rollbus finetune` on ART, killed with SIGKILL in the middle and resumed: does it learn, and do
the counts come out as if nothing had happened?

    python -m benchmarks.finetuning.prove [--epochs 4] [--examples 64] [--validation 812]

Everything starts from nothing in a new folder. Ends with code 1 where the intervals of the validation before and after
overlap, or a count is off.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "finetuning" / "tictactoe"
GENERATIONS = 8


def main() -> int:
    """Run, kill, resume, compare."""
    chosen = parsed()
    folder = Path(tempfile.mkdtemp(prefix="rollbus-finetune-"))
    for name, count in (("train", chosen.examples), ("validation", chosen.validation)):
        lines = (EXAMPLE / f"{name}.jsonl").read_text().splitlines()
        step = max(1, len(lines) // count)
        (folder / f"{name}.jsonl").write_text("\n".join(lines[::step][:count]))
    began = time.monotonic()
    first = start(folder, chosen.epochs)
    try:
        wait_for_epochs(folder, first, 1)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    print(f"killed after {time.monotonic() - began:.0f} s, with {len(rows(folder))} of {chosen.epochs} epochs done")
    code = start(folder, chosen.epochs, "--resume").wait()
    print(f"resumed run ended with code {code} after {time.monotonic() - began:.0f} s; its files are in {folder}")
    return 1 if code else verdict(folder, chosen)


def verdict(folder: Path, chosen: argparse.Namespace) -> int:
    """Print what came of it; 0 where everything is as it should be."""
    before, after = json.loads((folder / "output" / "validation_history.json").read_text())
    for name, row in (("before", before), ("after", after)):
        low, high = row["avg_reward_low"], row["avg_reward_high"]
        print(f"validation {name:<6} {row['avg_reward']:.3f} ({low:.3f} to {high:.3f}), {row['num_examples']} games")
    counts = [row["num_trajectories"] for row in rows(folder)]
    print(f"trajectories by epoch: {counts}")
    whole = counts == [chosen.examples * GENERATIONS] * chosen.epochs
    apart = after["avg_reward_low"] > before["avg_reward_high"]
    print(f"counts are whole: {whole}; intervals do not overlap: {apart}")
    return 0 if whole and apart else 1


def start(folder: Path, epochs: int, *options: str) -> "subprocess.Popen[bytes]":
    """Start `rollbus finetune` on the example, with this folder's data and ports of its own."""
    overrides = {
        "finetuning.num_epochs": epochs,
        "finetuning.output_dir": folder / "output",
        "eval.general.output_dir": folder / "eval",
        "rollbus.data_dir": folder / "state",
        **ports(folder),
    }
    command = [sys.executable, "-m", "rollbus", "finetune", "--config_file", EXAMPLE / "config.yml"]
    command += ["--dataset", folder / "train.jsonl", "--validation_dataset", folder / "validation.jsonl"]
    command += ["--validation_interval", epochs, *options]
    for key, value in overrides.items():
        command += ["-o", key, value]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen([str(part) for part in command], cwd=ROOT, env=environment)


def ports(folder: Path) -> dict[str, Any]:
    """Return free ports for the ART server, the same ones after the kill."""
    from rollbus.local.process.ports import find_free_port

    path = folder / "ports.json"
    if not path.exists():
        path.write_text(json.dumps([find_free_port(), find_free_port()]))
    control, model = json.loads(path.read_text())
    return {
        "trainer_adapters.art.backend.port": control,
        "llms.player.base_url": f"http://127.0.0.1:{model}/v1",
    }


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the epochs' lines so far."""
    path = folder / "output" / "training_metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for_epochs(folder: Path, process: "subprocess.Popen[bytes]", count: int) -> None:
    """Wait until so many epochs are done, and a little into the next one's play."""
    while len(rows(folder)) < count:
        if process.poll() is not None:
            raise SystemExit(f"the run ended with code {process.returncode} before its first epoch was done")
        time.sleep(0.2)
    time.sleep(3.0)


def parsed() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--examples", type=int, default=64)
    parser.add_argument("--validation", type=int, default=812)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
