"""Run a user's code in an event loop that its own tasks do not end.

A SystemExit that leaves a task ends the loop: a node of a graph that calls sys.exit would end the run. Here the loop
goes on, so the code that awaits the task gets the exit, like any other error.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from rollbus.local.process.supervisor import EndedBySignal

T = TypeVar("T")


def run_to_end(main: Coroutine[Any, Any, T]) -> T:
    """Return what `asyncio.run` returns; a signal ends it, as there."""
    with asyncio.Runner() as runner:
        task = runner.get_loop().create_task(main)
        while not task.done():
            try:
                runner.run(_wait_for(task))
            except EndedBySignal:
                raise
            except SystemExit:
                continue
        return task.result()


async def _wait_for(task: "asyncio.Task[Any]") -> None:
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:  # by Ctrl-C
        task.cancel()
        await asyncio.wait([task])
        raise
