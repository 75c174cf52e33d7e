"""Wait for what another thread, process or task does, and leave the processors to it meanwhile."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sized
from typing import TypeVar

FoundT = TypeVar("FoundT")

LEAST_S, LONGEST_S = 0.05, 1.0
"""From one look to the next."""


def wait_until(find: Callable[[], FoundT], otherwise: str, *, within_s: float = 120.0) -> FoundT:
    """Return what is found as soon as it is true; fail with `otherwise` where it stays false."""
    deadline = time.monotonic() + within_s
    while True:
        began = time.monotonic()
        if value := find():
            return value
        assert time.monotonic() < deadline, otherwise
        time.sleep(pause_after(began, LEAST_S))


async def until(is_so: Callable[[], object], otherwise: str, *, every_s: float = 0.05) -> None:
    """Let other tasks go on until it is so."""

    async def look() -> object:
        return is_so()

    await until_found(look, otherwise, every_s=every_s)


async def until_found(
    look: Callable[[], Awaitable[FoundT]],
    otherwise: str,
    *,
    is_enough: Callable[[FoundT], object] = bool,
    every_s: float = 0.1,
) -> FoundT:
    """Return what is found as soon as it is enough; fail with `otherwise` where it never is."""
    deadline = time.monotonic() + 240.0
    while True:
        began = time.monotonic()
        if is_enough(value := await look()):
            return value
        assert time.monotonic() < deadline, otherwise
        await asyncio.sleep(pause_after(began, every_s))


def pause_after(began: float, least_s: float) -> float:
    """Return how long to wait after a look: nine times as long as it took, so that looks take a tenth of a core."""
    return max(least_s, min(9 * (time.monotonic() - began), LONGEST_S))


def many(count: int) -> Callable[[Sized], bool]:
    """Return the condition that so many are found."""
    return lambda items: len(items) >= count
