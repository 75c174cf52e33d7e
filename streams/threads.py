"""Sync calls of users' code in threads of their own, so that one that hangs holds up no other and no exit.

A thread cannot be ended. One whose caller has given up counts as hanging until it comes back after all; beyond so many
nothing more is started.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

MAX_HUNG = 64
T = TypeVar("T")


class Threads:
    """Starts a daemon thread per call; shared by all calls that may wear one process out."""

    def __init__(self, name: str, most_hung: int = MAX_HUNG) -> None:
        self._name, self._most_hung = name, most_hung
        self.hung = 0
        """Calls that nobody waits for any more and that have not come back."""

    async def call(self, function: Callable[[], T]) -> T:
        """Return what a function returns; raises what it raises, as RuntimeError where that would end the process."""
        if self.hung >= self._most_hung:
            raise RuntimeError(f"{self.hung} calls hang already; restart the worker and mend the function")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[tuple[T | None, Exception | None]] = loop.create_future()

        def settle(result: T | None, error: Exception | None) -> None:
            if done.done():
                self.hung -= 1
            else:
                done.set_result((result, error))

        def run() -> None:
            result, failure = None, None
            try:
                result = function()
            except Exception as error:
                failure = error
            except BaseException as error:  # sys.exit() ends the function that calls it, and no more
                failure = RuntimeError(repr(error))
            try:
                loop.call_soon_threadsafe(settle, result, failure)
            except RuntimeError:
                return  # the loop has ended meanwhile

        threading.Thread(target=run, name=self._name, daemon=True).start()
        try:
            found, failure = await done
        except asyncio.CancelledError:
            self.hung += done.cancelled()
            raise
        if failure is not None:
            raise failure
        return found  # type: ignore[return-value]
