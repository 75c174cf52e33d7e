"""How many threads the sampler and the learner get on a CPU: all cores for one at work alone, else half for each."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollbus.runtime.machine import count_bound_cores

LEAST_WIDTH = 256
"""Of a network that gets more than one thread. With a second one, 32 requests of a network of width 128 decoded in 1.3
times the time, of 256 in 1.2 and of 384 in 0.9; reading their prompts took 0.8, 0.6 and 0.6 times as long."""
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""What a container may use: microseconds of CPU time, or `max`, and the period for which they are."""


@dataclass(frozen=True, slots=True)
class ThreadShares:
    """How many each gets."""

    sampler: int
    sampler_beside_learner: int
    """While an update is computed."""
    learner: int


def choose_threads(device: str, width: int, cores: int) -> ThreadShares:
    """Return what suits a network of this width.

    The learner's number is the same in each step: another number adds in another order, and rounds differently.
    """
    shared = cores if device.startswith("cpu") and width >= LEAST_WIDTH else 1
    learner = max(1, shared // 2)
    return ThreadShares(shared, max(1, shared - learner), learner)


def count_cores(environment: Mapping[str, str] = os.environ, quota: Path = CPU_QUOTA) -> int:
    """Return how many cores this process may use: those it is bound to, the container's share, OMP_NUM_THREADS."""
    bounds = [count_bound_cores()]
    if (thread_count := environment.get("OMP_NUM_THREADS", "")).isdigit():
        bounds.append(int(thread_count))
    if quota.is_file():
        time, period = quota.read_text(encoding="ascii").split()
        if time != "max":
            bounds.append(round(int(time) / int(period)))
    return max(1, min(bounds))
