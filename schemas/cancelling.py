"""Tell a cancellation of this task from one of something that it waited for; and end together what fails together."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


def is_being_cancelled() -> bool:
    """Say whether it is this task that was cancelled: then it must end, and otherwise something has failed."""
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())


async def all_or_none(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return what all of them return; where one raises the others are ended first, and go on for nobody."""
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
