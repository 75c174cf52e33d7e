"""How long `import rollbus.producers` takes beside aiokafka, fastavro and pydantic, each in a fresh interpreter."""

import statistics
import subprocess
import sys

ROUNDS = 9
OURS, THEIRS = "rollbus.producers", "aiokafka, fastavro, pydantic"


def cpu_ms(modules: str) -> float:
    """Return the CPU time of one import, from within."""
    program = f"import time; start = time.process_time(); import {modules}; print(time.process_time() - start)"
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout) * 1000


def main() -> None:
    """Alternate, and print medians and their ratio."""
    time_pairs_ms = [(cpu_ms(OURS), cpu_ms(THEIRS)) for _ in range(ROUNDS)]
    ours, theirs = (statistics.median(times_ms) for times_ms in zip(*time_pairs_ms, strict=True))
    print(f"import {OURS}: {ours:.0f} ms; {THEIRS}: {theirs:.0f} ms; ratio {ours / theirs:.2f} (target 0.50)")


if __name__ == "__main__":
    main()
