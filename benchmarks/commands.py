"""Processor time of short commands, in turns with Python alone and with the libraries that each of them loads.

    make bench-commands          python -m benchmarks.commands [ROUNDS]

They run in an empty folder where no service runs, so what is counted is their start. On a machine with other work every
figure grows alike: look at the ratios to `libraries`.
"""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.common import at_most, reported

TARGET_S = 0.5
ROLLBUS = str(Path(sys.executable).with_name("rollbus"))
COMMANDS = {
    "python": [sys.executable, "-c", "pass"],
    "libraries": [sys.executable, "-c", "import click, rich.console, rich.table, rich.progress, pydantic.main, yaml"],
    "rollbus status": [ROLLBUS, "status"],
    "rollbus doctor": [ROLLBUS, "doctor"],
    "rollbus sql list": [ROLLBUS, "sql", "list"],
    "rollbus sql run": [ROLLBUS, "sql", "run", "worst_steps"],
}


def measure_command(command: list[str], folder: str) -> float:
    """Return the processor seconds of one run, whatever it exits with."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS.values():  # writes what Python compiles
            measure_command(command, folder)
        samples: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(rounds):
            for name, command in COMMANDS.items():
                samples[name].append(measure_command(command, folder))
    libraries_s = median(samples["libraries"])
    for name, seconds in samples.items():
        comparison = f"{median(seconds) / libraries_s:.2f} × libraries, {min(seconds):.2f} s at best"
        if name.startswith("rollbus"):
            print(at_most(name, median(seconds), TARGET_S, comparison))
        else:
            print(reported(name, f"{median(seconds):.2f} s; {comparison}"))
    print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
