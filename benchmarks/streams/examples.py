"""The memory of what is expected: ever new examples, each rewarded once, in the state of one partition of grouping.

    python -m benchmarks.streams.examples [EXAMPLES]      10 million without a number

Prints the resident memory that the state has added, and how many keys it remembers, whenever ten times as many
examples were seen. Every example has an opening of its own, so openings alike take all the cells that there are.
"""

import gc
import random
import sys
from dataclasses import replace
from pathlib import Path

from rollbus.schemas.records.config import GroupingConfig, RunConfig
from rollbus.streams.stages.grouping.state import GroupingState
from rollbus.streams.stages.scoring.sketch import BYTES
from tests.builders import make_score

DRAINED_TOGETHER = 1_000
"""Examples between two writes to the changelog."""
PAGE_BYTES = 4096


def resident_mb() -> float:
    """Return the resident memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES / 1e6


def see_examples(examples: int) -> None:
    """Reward so many examples once each."""
    chance = random.Random(0)
    state = GroupingState(RunConfig(grouping=GroupingConfig(strategy="single")))
    score = make_score("t", 1.0, example_id="e")
    before_mb, report_at = resident_mb(), 1_000
    for number in range(1, examples + 1):
        sketch = chance.randbytes(BYTES).hex()
        state.learn_reward(replace(score, example_id=f"example-{number:012d}", opening_sketch=sketch))
        if number % DRAINED_TOGETHER == 0:
            state.drain()
        if number in (report_at, examples):
            print(f"{number} examples: {resident_mb() - before_mb:.1f} MB, {len(state.levels)} keys", flush=True)
            report_at *= 10


if __name__ == "__main__":
    see_examples(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
