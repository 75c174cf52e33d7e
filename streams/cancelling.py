"""Tell a cancellation of this task from one that came out of something that it waited for."""

import asyncio


def is_being_cancelled() -> bool:
    """Say whether it is this task that was cancelled: then it must end, and otherwise something has failed."""
    task = asyncio.current_task()
    return task is not None and bool(task.cancelling())
