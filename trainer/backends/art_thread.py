"""A thread with an event loop of its own, for ART, which blocks the loop that it runs on (packing, tokenising)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class ArtThread:
    """Runs what is handed to it, from any loop, one coroutine at a time as its awaits allow."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="art", daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, ResultT]) -> ResultT:
        """Run `work` there and await it here. Giving up waiting does not stop it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return await asyncio.shield(asyncio.wrap_future(future))

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call there, soon."""
        self._loop.call_soon_threadsafe(function, *arguments)

    async def close(self) -> None:
        """End the thread; harmless to repeat."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            await asyncio.to_thread(self._thread.join)
            self._loop.close()
