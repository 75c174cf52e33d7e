"""Call users' synchronous code in separate threads, so that a call that hangs delays no other call and no exit.

A thread cannot be ended. A call that was abandoned counts as hanging until it returns; beyond a limit no more are
started.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

MAX_HUNG = 64
"""Each keeps its thread until it returns; so many are a function that hangs whenever it is called."""
T = TypeVar("T")


class CallThreads:
    """Starts a daemon thread per call; `name` is that of the threads. Its calls share one limit."""

    def __init__(self, name: str, most_hung: int = MAX_HUNG) -> None:
        self._name, self._most_hung = name, most_hung
        self.hung = 0
        """Abandoned calls that have not returned."""

    async def call(self, function: Callable[[], T]) -> T:
        """Return what a function returns; raises what it raises, of any class, or RuntimeError where too many hang."""
        if self.hung >= self._most_hung:
            raise RuntimeError(f"{self.hung} calls hang already; restart the process and correct the function")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

        def settle(result: T | None, error: BaseException | None) -> None:
            if outcome.done():
                self.hung -= 1
            else:
                outcome.set_result((result, error))

        def run() -> None:
            result, failure = None, None
            try:
                result = function()
            except BaseException as error:  # sys.exit() and a panic end the function that raises them, and no more
                failure = error
            try:
                loop.call_soon_threadsafe(settle, result, failure)
            except RuntimeError:
                return  # the loop has ended meanwhile

        threading.Thread(target=run, name=self._name, daemon=True).start()
        try:
            value, failure = await outcome
        except asyncio.CancelledError:
            self.hung += outcome.cancelled()
            raise
        if failure is not None:
            raise failure
        return value  # type: ignore[return-value]
