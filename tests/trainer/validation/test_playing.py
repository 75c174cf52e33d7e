"""Playing an evaluation's tasks: order, concurrency, retries, and what an agent may not return."""

import asyncio
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from rollbus.schemas.errors import ConfigurationError, InvalidRecordError, RollbusError, UnavailableError
from rollbus.trainer.validation.agents import Agent, EvaluationContext, EvaluationTask, Metrics, load_agent
from rollbus.trainer.validation.playing import Samples, play_tasks
from rollbus.trainer.validation.settings import PlayLimits
from rollbus.trainer.validation.validation import ValidationSet, make_tasks

CONTEXT = EvaluationContext("agent@3", "http://127.0.0.1:1/v1")


async def play(agent: Agent, *, episodes: int = 6, tries: int = 3, **limits: float | int) -> Samples:
    async def no_pause(seconds: float) -> None:
        await asyncio.sleep(0)

    tasks = make_tasks(ValidationSet("held-out", episodes))
    return await play_tasks(agent, tasks, CONTEXT, tries=tries, limits=PlayLimits(**limits), sleep=no_pause)  # type: ignore[arg-type]


async def later_first(task: EvaluationTask, context: EvaluationContext) -> Metrics:
    """Ends the later, the earlier the task."""
    await asyncio.sleep((6 - task.index) / 1000)
    return {"index": task.index, "model": context.model == "agent@3"}


def in_a_thread(task: EvaluationTask, context: EvaluationContext) -> Metrics:
    return {"index": float(task.index), "model": 1.0}


@pytest.mark.parametrize("agent", [later_first, in_a_thread])
async def test_samples_are_in_the_order_of_the_tasks(agent: Agent) -> None:
    assert await play(agent) == {"index": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0], "model": [1.0] * 6}


async def test_no_more_episodes_run_at_once_than_allowed() -> None:
    running = most = 0

    async def agent(task: EvaluationTask, context: EvaluationContext) -> Metrics:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return {"reward": 1.0}

    await play(agent, episodes=20, concurrency=3)
    assert most == 3


async def test_an_episode_that_fails_is_tried_again_with_the_same_task() -> None:
    seen: list[tuple[int, int]] = []

    async def agent(task: EvaluationTask, context: EvaluationContext) -> Metrics:
        seen.append((task.index, task.seed))
        if len(seen) < 3:
            raise ConnectionError("no answer")
        return {"reward": 1.0}

    assert await play(agent, episodes=1) == {"reward": [1.0]}
    assert len(seen) == 3
    assert len(set(seen)) == 1


async def test_an_episode_that_always_fails_ends_the_whole_evaluation() -> None:
    ended: list[int] = []

    async def agent(task: EvaluationTask, context: EvaluationContext) -> Metrics:
        if task.index == 1:
            raise ValueError("a broken tool")
        try:
            await asyncio.sleep(30)
        finally:
            ended.append(task.index)
        return {"reward": 1.0}

    with pytest.raises(UnavailableError, match=r"example '1', attempt 0 failed 2 times, last with .*a broken tool"):
        await play(agent, tries=2)
    assert sorted(ended) == [0, 2, 3, 4, 5]


async def test_an_episode_that_awaits_a_cancelled_task_fails_like_any_other() -> None:
    tries = 0

    async def agent(task: EvaluationTask, context: EvaluationContext) -> Metrics:
        nonlocal tries
        tries += 1
        tool = asyncio.ensure_future(asyncio.sleep(30))
        asyncio.get_running_loop().call_soon(tool.cancel)
        await tool
        return {"reward": 1.0}

    with pytest.raises(UnavailableError, match=r"failed 2 times, last with CancelledError"):
        await play(agent, episodes=1, tries=2)
    assert tries == 2


async def test_an_episode_whose_extension_panics_fails_like_any_other() -> None:
    class Panic(BaseException):
        pass

    async def agent(task: EvaluationTask, context: EvaluationContext) -> Metrics:
        raise Panic("a broken extension")

    with pytest.raises(UnavailableError, match=r"failed 2 times, last with Panic\('a broken extension'\)"):
        await play(agent, episodes=1, tries=2)


async def test_an_episode_that_hangs_is_given_up() -> None:
    async def agent(task: EvaluationTask, context: EvaluationContext) -> Metrics:
        await asyncio.sleep(30)
        return {"reward": 1.0}

    with pytest.raises(UnavailableError, match="TimeoutError"):
        await play(agent, episodes=1, timeout_s=0.01, tries=1)


async def test_as_many_plain_functions_run_at_once_as_allowed() -> None:
    """As many as the machine has processors is less; what waits for a thread must not count as time of the episode."""
    together = threading.Barrier(64)

    def agent(task: EvaluationTask, context: EvaluationContext) -> Metrics:
        together.wait(timeout=120)
        return {"reward": 1.0}

    assert await play(agent, episodes=64, concurrency=64, timeout_s=120, tries=1) == {"reward": [1.0] * 64}


async def test_a_plain_function_that_hangs_does_not_keep_the_process_from_ending() -> None:
    hung = threading.Event()

    def agent(task: EvaluationTask, context: EvaluationContext) -> Metrics:
        hung.wait(600)
        return {"reward": 1.0}

    with pytest.raises(UnavailableError, match="TimeoutError"):
        await play(agent, episodes=1, timeout_s=0.01, tries=1)
    ended = asyncio.get_running_loop().shutdown_default_executor()  # as `asyncio.run` ends
    await asyncio.wait_for(ended, timeout=120)
    (left,) = [thread for thread in threading.enumerate() if thread.name == "evaluation"]
    assert left.daemon
    hung.set()
    left.join()


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ([{"reward": 1.0}, {"win": 1.0}], "has metrics"),
        ([{}, {}], "one at least"),
        ([{"reward": math.nan}, {"reward": 1.0}], "metric 'reward' is nan"),
        ([{"reward": 1.0}, None], "example '1': the agent returned None; it must return numbers by name"),
        ([{"reward": 1.0}, {1: 1.0}], "returned {1: 1.0}"),
        ([{"reward": "1.0"}, {"reward": 1.0}], "metric 'reward' is '1.0'"),
        ([{"reward": None}, {"reward": 1.0}], "metric 'reward' is None"),
        ([{"reward": 10**400}, {"reward": 1.0}], "metric 'reward' is 1000"),
    ],
)
async def test_metrics_that_do_not_fit_together_are_refused(answers: Sequence[Any], message: str) -> None:
    async def agent(task: EvaluationTask, context: EvaluationContext) -> Metrics:
        metrics: Metrics = answers[task.index]
        return metrics

    with pytest.raises(InvalidRecordError, match=message) as caught:
        await play(agent, episodes=2)
    assert isinstance(caught.value, RollbusError)


def test_an_agent_is_found_by_its_path() -> None:
    assert load_agent(f"{__name__}:later_first").__name__ == "later_first"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody", "no evaluation agent 'nobody'"),
        ("json:nothing", "cannot be loaded"),
        ("no_such_module:play", "cannot be loaded"),
        ("math:pi", "must be callable with a task and a context"),
        ("os:getcwd", "must be callable with a task and a context"),
    ],
)
def test_an_agent_that_cannot_be_used_is_a_configuration_error(name: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load_agent(name)
