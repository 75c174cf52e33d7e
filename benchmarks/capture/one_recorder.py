"""Time one recorder on the caller's thread, and print it as JSON.

python -m benchmarks.capture.one_recorder <variant> <calls>

CPU time of the calling thread: what other threads of the recorder do is not in it, nor what other programs take.
"""

import gc
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.capture.variants import VARIANTS, bare

WARM_UP = 30
PAUSE_S = 0.002
"""Between two calls, as an agent would wait for its server; recorders with a thread of their own work then."""


def times_us(functions: dict[str, Callable[[], Any]], count: int) -> dict[str, list[float]]:
    """Call the functions in random order, round by round, and return what each of their calls took.

    What runs first after another finds less in the processor's caches: no function may always be that one.
    """
    chance = random.Random(7)
    times_by_function: dict[str, list[float]] = {name: [] for name in functions}
    for number in range(WARM_UP + count):
        if number == WARM_UP:
            gc.collect()
            gc.freeze()  # what importing has left is not searched again and again
        for name, function in sorted(functions.items(), key=lambda _: chance.random()):
            start = time.thread_time_ns()
            answer = function()
            spent_ns = time.thread_time_ns() - start
            del answer  # freeing it is not timed: a recorder that keeps parts of it would seem to save that
            if number >= WARM_UP:
                times_by_function[name].append(spent_ns / 1000)
            time.sleep(PAUSE_S)
    return times_by_function


def main(variant: str, calls: int) -> None:
    """Measure and print: for each kind of call what it takes bare, and recorded."""
    recorded_calls, bare_calls = VARIANTS[variant]().calls(), bare().calls()
    times_by_call = {
        kind: times_us({"bare": bare_calls[kind], "recorded": call}, calls if kind == "answer" else calls // 5)
        for kind, call in recorded_calls.items()
    }
    print(json.dumps(times_by_call))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
