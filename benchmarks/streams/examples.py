"""The memory of what is expected: ever new examples, each rewarded once, in the state of one partition of grouping.

    python -m benchmarks.streams.examples [EXAMPLES]      10 million without a number

Prints the resident memory that the state has added, how many keys it remembers, and the processor time of an example,
whenever ten times as many examples were seen. Every example has an opening of its own, so openings alike take all the
cells that there are. An example is expected something of and rewarded, and its rows are drained as for the changelog.
"""

import gc
import random
import sys
import time
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
    before_mb, report_at, began_s = resident_mb(), 1_000, time.process_time()
    for number in range(1, examples + 1):
        sketch = chance.randbytes(BYTES).hex()
        example = replace(score, example_id=f"example-{number:012d}", opening_sketch=sketch)
        state.expect(example)
        state.learn_reward(example)
        if number % DRAINED_TOGETHER == 0:
            state.drain()
        if number in (report_at, examples):
            cost_us = (time.process_time() - began_s) / number * 1e6
            mb, keys = resident_mb() - before_mb, len(state.levels)
            print(f"{number} examples: {mb:.1f} MB, {keys} keys, {cost_us:.1f} µs an example", flush=True)
            report_at *= 10


if __name__ == "__main__":
    see_examples(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000)
