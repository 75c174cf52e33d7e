"""What a batch's ticks will make a stage forget, before the batch is stepped through. Pure.

Questions are asked about a whole batch at once, but what is asked depends on what the stage remembers at each place.
With this clock a question does not depend on how records fall into batches.
"""

import math

from rollbus.schemas.records.control import Tick
from rollbus.streams.state.clock import Clock

NEVER = -math.inf


class BatchTime:
    """Stream time at a place of a batch, ahead of the state's clock."""

    def __init__(self, clock: Clock) -> None:
        """Begin where the state is."""
        self.now_ms = clock.now_ms
        self._first_ms = clock.since(0)
        self.forgotten_ms = NEVER
        """What came at or before this time has been forgotten in this batch."""

    def pass_tick(self, tick: Tick, keep_ms: int) -> None:
        """Advance to a tick, which forgets what came `keep_ms` before it; an earlier one changes nothing."""
        if tick.stream_time_ms > self.now_ms:
            self._first_ms = self._first_ms if self.now_ms else tick.stream_time_ms
            self.now_ms = tick.stream_time_ms
            self.forgotten_ms = max(self.forgotten_ms, self.now_ms - keep_ms)

    def remembers(self, arrived_ms: int, forgotten_then_ms: float = NEVER) -> bool:
        """Say whether the stage still remembers what came at a time.

        Of what came within the batch, `forgotten_then_ms` is the `forgotten_ms` of its place.
        """
        return self.forgotten_ms == forgotten_then_ms or max(arrived_ms, self._first_ms) > self.forgotten_ms
