"""Tasks and an agent → one sample per episode and metric: played concurrently, each with a time limit and retries.

All or nothing: an episode that fails for good fails the evaluation, since an average over the others is biased, and a
score of 0 for what never ran is a guess.
"""

import asyncio
import contextvars
import math
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from inspect import iscoroutinefunction
from typing import Any, cast

from rollbus.runtime.cancelling import all_or_none, is_being_cancelled
from rollbus.schemas.errors import InvalidRecordError, UnavailableError
from rollbus.schemas.numbers import LARGEST, computable
from rollbus.trainer.validation.agents import Agent, EvaluationContext, EvaluationTask, Metrics
from rollbus.trainer.validation.settings import PlayLimits

Samples = Mapping[str, Sequence[float]]
"""By metric: one value per task, in the order of the tasks."""


TRIES = 3
"""Of an episode: what fails so often fails the evaluation, and not by chance."""
RETRY_PAUSE_S = 1.0
"""Doubles with every try."""


async def play_tasks(
    agent: Agent,
    tasks: Sequence[EvaluationTask],
    context: EvaluationContext,
    *,
    limits: PlayLimits,
    tries: int = TRIES,
    progress: Callable[[int, int], None] | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Samples:
    """Play every task; UnavailableError for an episode that failed, InvalidRecordError for metrics that do not fit.

    `progress` receives how many of how many episodes are done.
    """
    gate, tasks_played = asyncio.Semaphore(limits.concurrency), 0

    async def measure_task(task: EvaluationTask) -> Metrics:
        nonlocal tasks_played
        async with gate:
            metrics = await _play_with_retries(agent, task, context, limits, tries, sleep)
        tasks_played += 1
        if progress is not None:
            progress(tasks_played, len(tasks))
        return metrics

    return _group_by_metric(tasks, await all_or_none(measure_task(task) for task in tasks))


async def _play_with_retries(
    agent: Agent,
    task: EvaluationTask,
    context: EvaluationContext,
    limits: PlayLimits,
    tries: int,
    sleep: Callable[[float], Awaitable[None]],
) -> Metrics:
    for number in range(1, tries + 1):
        try:
            async with asyncio.timeout(limits.timeout_s):
                return await _call_agent(agent, task, context)
        except BaseException as error:  # a user's agent may raise anything
            if isinstance(error, KeyboardInterrupt) or is_being_cancelled():
                raise
            if number == tries:
                raise UnavailableError(
                    f"evaluation of {context.model}: example {task.example_id!r}, attempt {task.attempt} failed "
                    f"{number} times, last with {error!r}; see that {context.base_url} serves {context.model}, or "
                    "let the agent return the metrics of an episode that went wrong"
                ) from error
        await sleep(RETRY_PAUSE_S * 2 ** (number - 1))
    raise AssertionError("tries is at least 1")


async def _call_agent(agent: Agent, task: EvaluationTask, context: EvaluationContext) -> Metrics:
    if iscoroutinefunction(agent) or iscoroutinefunction(getattr(agent, "__call__", None)):  # noqa: B004
        return await cast("Awaitable[Metrics]", agent(task, context))
    answer = await _call_in_thread(lambda: agent(task, context))
    metrics: Metrics = await answer if isinstance(answer, Awaitable) else answer
    return metrics


async def _call_in_thread(call: Callable[[], Any]) -> Any:
    """Call it in its own thread: calls do not wait for each other, and one that hangs does not hold up the process."""
    answer: Future[Any] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as error:
            answer.set_exception(error)

    answer.set_running_or_notify_cancel()
    threading.Thread(target=contextvars.copy_context().run, args=(run,), name="evaluation", daemon=True).start()
    return await asyncio.wrap_future(answer)


def _group_by_metric(tasks: Sequence[EvaluationTask], played: Sequence[Metrics]) -> Samples:
    checked = [_check_numbers(task, metrics) for task, metrics in zip(tasks, played, strict=True)]
    names = sorted(checked[0]) if checked else []
    for task, metrics in zip(tasks, checked, strict=True):
        if sorted(metrics) != names or not names:
            raise InvalidRecordError(
                f"example {task.example_id!r} has metrics {sorted(metrics)}, the first one {names}: an agent returns "
                "the same names for every task, one at least"
            )
    return {name: [metrics[name] for metrics in checked] for name in names}


def _check_numbers(task: EvaluationTask, metrics: object) -> dict[str, float]:
    """Return an agent's metrics; raise InvalidRecordError unless they are finite numbers by name."""
    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
        raise InvalidRecordError(
            f"example {task.example_id!r}: the agent returned {metrics!r:.60}; it must return numbers "
            "by name, for every episode"
        )
    return {name: _check_number(task, name, value) for name, value in metrics.items()}


def _check_number(task: EvaluationTask, name: str, value: Any) -> float:
    try:
        if computable(math.fabs(value)):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass  # not a number, or too large for a float
    raise InvalidRecordError(
        f"example {task.example_id!r}: metric {name!r} is {value!r:.60}, not a number of at most {LARGEST:g}"
    )
