"""What work waits for: processors, and links that carry bytes. First come, first served."""

from collections.abc import Generator
from typing import Any

import simpy

QUANTUM_S = 0.005
"""So long a process keeps a core before others get their turn, as Linux's scheduler does under load."""

Waiting = Generator[simpy.Event, Any, None]


class Cpu:
    """A process, which uses one core of its machine at a time, or as many as it has threads."""

    def __init__(self, env: simpy.Environment, machine: simpy.Resource, *, threads: int = 1) -> None:
        self._env, self._machine, self._threads = env, machine, simpy.Resource(env, threads)
        self.busy_s = 0.0

    def work(self, seconds: float) -> Waiting:
        """Compute for so long, in turns with whatever else runs on the machine."""
        while seconds > 1e-9:
            with self._threads.request() as thread:
                yield thread
                with self._machine.request() as core:
                    yield core
                    took = min(seconds, QUANTUM_S)
                    yield self._env.timeout(took)
            self.busy_s += took
            seconds -= took


class Link:
    """A disk or a network interface: bytes pass one after the other."""

    def __init__(self, env: simpy.Environment, bytes_per_s: float) -> None:
        self._env, self._line, self._bytes_per_s = env, simpy.Resource(env), bytes_per_s
        self.bytes = 0.0

    def carry(self, size: float) -> Waiting:
        """Wait until so many bytes have passed."""
        with self._line.request() as turn:
            yield turn
            yield self._env.timeout(size / self._bytes_per_s)
        self.bytes += size
