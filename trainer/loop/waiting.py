"""Waits that end when the loop is asked to stop."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rollbus.trainer.loop.context import StoppedWaitingError

T = TypeVar("T")


class Stop:
    """Set once, by a signal or by the owner of the trainer."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._event = asyncio.Event()
        self._sleep = sleep

    @property
    def requested(self) -> bool:
        """Whether the loop is to end."""
        return self._event.is_set()

    def ask(self) -> None:
        """End every wait, now and from now on."""
        self._event.set()

    async def pause(self, seconds: float) -> None:
        """Sleep; StoppedWaitingError when asked to stop meanwhile."""
        await self.unless_asked(self._sleep(seconds))

    async def unless_asked(self, awaitable: Awaitable[T]) -> T:
        """Await; give it up with StoppedWaitingError when asked to stop."""
        task, stop_wait = asyncio.ensure_future(awaitable), asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({task, stop_wait}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise StoppedWaitingError
        finally:
            for waiter in (task, stop_wait):
                waiter.cancel()
            await asyncio.gather(task, stop_wait, return_exceptions=True)
