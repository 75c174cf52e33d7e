"""One principal's recorder at the proxy, and the episodes that were opened with its token.

Each principal has a recorder of its own, which signs in its name: the proxy says who it was, and not the program.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field

from rollbus.producers.proxy.episodes import Episodes
from rollbus.producers.recorder import Recorder

DELIVERY_TIMEOUT_S = 0.25
"""How long an answer's last byte may wait until its record is with the broker: no end of episode overtakes it then."""


@dataclass(slots=True)
class Desk:
    """What is recorded for one principal."""

    recorder: Recorder
    episodes: Episodes
    _flushing: asyncio.Task[bool] | None = field(init=False, default=None)

    async def flush(self) -> None:
        """Wait until what is recorded so far is with the broker: one thread waits for all answers that do."""
        if self.recorder.healthy is False:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(DELIVERY_TIMEOUT_S):
                if self._flushing is not None and not self._flushing.done():
                    await asyncio.shield(self._flushing)  # it began before this answer was recorded
                if self._flushing is None or self._flushing.done():
                    self._flushing = asyncio.create_task(asyncio.to_thread(self.recorder.flush, DELIVERY_TIMEOUT_S))
                await asyncio.shield(self._flushing)

    async def close(self) -> None:
        """End what is still open, and send what is queued."""
        self.episodes.close_all()
        await asyncio.to_thread(self.recorder.close)
