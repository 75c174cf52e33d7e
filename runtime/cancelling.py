"""Distinguish the cancellation of this task from that of an awaited task; and cancel the others if one call fails."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def is_being_cancelled() -> bool:
    """Say whether this task itself was cancelled: then it must end. If not, something that it awaited has failed."""
    return count_cancellations() > 0


def count_cancellations() -> int:
    """Return how often this task was cancelled; more than before an `await` that returned: what it awaited hid it."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def all_or_none(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of all calls; if one raises, cancel the others first and wait for their end."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
