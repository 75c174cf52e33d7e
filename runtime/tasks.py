"""Start what runs in the background, with an owner that hears of an end that nobody asked for.

A task or thread that only its caller knew would end unseen: asyncio keeps its error until somebody asks, and a thread's
goes to stderr, if at all. What a caller starts and awaits itself needs no owner; `tests/test_background.py` lists both.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from rollbus.schemas.errors import RunStoppedError

logger = logging.getLogger(__name__)

OnEnd = Callable[[BaseException], object]
"""Receives the error that ended the work, or a RunStoppedError if it returned or was cancelled by somebody else."""


def report_end(error: BaseException) -> None:
    """Write the error to the log: for work without which the process still does what it is for."""
    logger.critical("%s", error, exc_info=error.__cause__ or error)


def start_task(
    work: Coroutine[Any, Any, Any], name: str, *, on_end: OnEnd = report_end, endless: bool = True
) -> asyncio.Task[Any]:
    """Start a task; `on_end` hears of its error, and of any end but a cancellation if it is `endless`."""
    task = asyncio.create_task(work, name=name)

    def report_unasked_end(task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            if not task.cancelling():  # nobody cancelled it: something that it awaited was cancelled
                on_end(_make_end_error(f"task {name}", asyncio.CancelledError()))
        elif (error := task.exception()) is not None or endless:
            on_end(_make_end_error(f"task {name}", error))

    task.add_done_callback(report_unasked_end)
    return task


def start_thread(
    work: Callable[[], object], name: str, *, on_end: OnEnd = report_end, is_over: Callable[[], bool] = lambda: False
) -> threading.Thread:
    """Start a daemon thread; `on_end` hears of its error, and of its return unless `is_over` says that it may end."""

    def run() -> None:
        try:
            work()
        except BaseException as error:  # SystemExit too: Python ends a thread by it without a word
            on_end(_make_end_error(f"thread {name}", error))
        else:
            if not is_over():
                on_end(_make_end_error(f"thread {name}", None))

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


def _make_end_error(what: str, cause: BaseException | None) -> RunStoppedError:
    if isinstance(cause, RunStoppedError):
        return cause
    error = RunStoppedError(f"{what} has ended although nobody stopped it: {cause!r}")
    error.__cause__ = cause
    return error
