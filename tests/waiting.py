"""Wait for what another thread, process or task does."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sized
from typing import TypeVar

FoundT = TypeVar("FoundT")


def wait_until(find: Callable[[], FoundT], otherwise: str, *, within_s: float = 120.0) -> FoundT:
    """Return what is found as soon as it is true; fail with `otherwise` where it stays false."""
    deadline = time.monotonic() + within_s
    while not (found := find()):
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.02)
    return found


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
    while not is_enough(found := await look()):
        assert time.monotonic() < deadline, otherwise
        await asyncio.sleep(every_s)
    return found


def many(count: int) -> Callable[[Sized], bool]:
    """Return the condition that so many are found."""
    return lambda found: len(found) >= count
