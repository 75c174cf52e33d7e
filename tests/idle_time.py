"""An event loop whose clock moves only when nothing is left to do, and then at once to the next thing that is due.

On it 3 ms are always enough for what takes no time, however crowded the machine is, and an hour takes no time. It knows
nothing of threads: what a thread does takes no time on this clock.
"""

import asyncio
import selectors
from typing import Any


class IdleTimeLoop(asyncio.SelectorEventLoop):
    """Time passes while everything waits."""

    def __init__(self) -> None:
        """Begin at 0."""
        self.now_s = 0.0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        """Return the seconds that have been waited for."""
        return self.now_s


class _Skipping(selectors.DefaultSelector):
    """Waits for no time to pass, but for as long as it takes where nothing is due at any time."""

    def __init__(self, loop: IdleTimeLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            return super().select()
        ready = super().select(0)
        if not ready:
            self._loop.now_s += timeout
        return ready
