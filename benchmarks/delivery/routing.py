"""How long it takes to choose an episode's version: `python -m benchmarks.delivery.routing`.

The router is asked as the endpoint, the recorder and the proxy ask it: for new episodes, for those that it remembers,
and while it remembers as many as it ever does. Beside it a dictionary's look-up, the least that any router costs.
"""

import time
from collections.abc import Callable
from statistics import median

from rollbus.schemas.records.delivery import PolicyDecision
from rollbus.schemas.routing import MOST_EPISODES, Router

CALLS, ROUNDS = 20_000, 5
TARGET_US = 50.0


def main() -> None:
    """Print microseconds a call: median and slowest of the rounds."""
    decision = PolicyDecision(
        model="agent", run_id="main", number=1, action="canary", serving=1, canary=2, share=0.05, reason="r",
        decided_at_ms=0,
    )  # fmt: skip
    router, names = Router(), [f"episode-{number}" for number in range(ROUNDS * CALLS)]
    router.use(decision)
    for number in range(MOST_EPISODES):
        router.choose("agent", f"earlier-{number}")
    names_in_dictionary = dict.fromkeys(names, 1)
    print(f"µs a call, median and slowest of {ROUNDS} rounds of {CALLS:,}; target ≤ {TARGET_US:.0f}")
    for what, call in {
        "a new episode": lambda name: router.choose("agent", name),
        "an episode that is remembered": lambda name: router.choose("agent", name),
        "a dictionary's look-up": names_in_dictionary.get,
    }.items():
        rounds = [_time(call, names[at * CALLS : (at + 1) * CALLS]) for at in range(ROUNDS)]
        print(f"{what:32} {median(rounds):6.2f} {max(rounds):6.2f}")


def _time(call: Callable[[str], object], names: list[str]) -> float:
    began = time.perf_counter()
    for name in names:
        call(name)
    return (time.perf_counter() - began) / len(names) * 1e6


if __name__ == "__main__":
    main()
