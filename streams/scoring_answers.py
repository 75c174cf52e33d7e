"""Ask reward functions, and write down what they said: a value, nothing yet, or why not.

Whatever a function does, the answer comes: exceptions, time-outs and values that are no numbers become errors of one
component of one trajectory.
"""

import asyncio
import inspect
import math
import threading
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.config import RewardConfig
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.trajectories import Trajectory
from rollbus.streams.rewards.contract import Ask, RewardContext, RewardFunction
from rollbus.streams.rewards.registry import Registry, function_of

MAX_HUNG_THREADS = 64
"""A thread cannot be ended; beyond so many that hang, a function is refused instead of started."""
_RETRY_S = 0.1


@dataclass(frozen=True, slots=True)
class Answer:
    """What one component said."""

    value: float | None = None
    """None where there is nothing to say yet."""
    error: str | None = None


class Asker:
    """Calls reward functions with a bound on how many are in flight."""

    def __init__(self, registry: Registry, ask: Ask | None = None) -> None:
        self._registry, self._ask = registry, ask
        self._hung = 0

    async def ask_all(
        self, trajectory: Trajectory, rewards: tuple[RewardConfig, ...], slots: asyncio.Semaphore
    ) -> dict[str, Answer]:
        """Return one answer per component."""
        slow = [reward for reward in rewards if not self.is_quick(reward)]
        answers = {reward.name: self._ask_in_place(trajectory, reward) for reward in rewards if reward not in slow}
        found = await asyncio.gather(*(self._ask_one(trajectory, reward, slots) for reward in slow))
        answers.update((reward.name, answer) for reward, answer in zip(slow, found, strict=True))
        return {reward.name: answers[reward.name] for reward in rewards}

    def is_quick(self, reward: RewardConfig) -> bool:
        """Say whether a component is called in place."""
        function = self._registry.get(reward.type)
        return function is not None and function.quick

    def _ask_in_place(self, trajectory: Trajectory, reward: RewardConfig) -> Answer:
        context = RewardContext(reward.name, reward.options, self._ask)
        try:
            return _checked(self._registry[reward.type].call(trajectory, context), reward.name)
        except Exception as error:
            return Answer(error=f"reward {reward.name!r} raised {error!r}")

    async def _ask_one(self, trajectory: Trajectory, reward: RewardConfig, slots: asyncio.Semaphore) -> Answer:
        context = RewardContext(reward.name, reward.options, self._ask)
        try:
            function = function_of(self._registry, reward)
        except ConfigurationError as error:
            return Answer(error=str(error))
        answer = Answer(error="never asked")
        for attempt in range(reward.attempts):
            if attempt:
                await asyncio.sleep(_RETRY_S * 2**attempt)
            async with slots:
                answer = await self._attempt(function, trajectory, context, reward.timeout_s)
            if answer.error is None:
                break
        return answer

    async def _attempt(
        self, function: RewardFunction, trajectory: Trajectory, context: RewardContext, timeout_s: float
    ) -> Answer:
        try:
            async with asyncio.timeout(timeout_s):
                if inspect.iscoroutinefunction(function.call):
                    value: Any = function.call(trajectory, context)
                else:
                    value = await self._in_thread(function, trajectory, context)
                if isinstance(value, Awaitable):
                    value = await value
            return _checked(value, context.name)
        except TimeoutError:
            return Answer(error=f"reward {context.name!r} gave no answer within {timeout_s} s")
        except Exception as error:  # a user's function may raise anything
            return Answer(error=f"reward {context.name!r} raised {error!r}")

    async def _in_thread(self, function: RewardFunction, trajectory: Trajectory, context: RewardContext) -> Any:
        """Call a sync function in a thread of its own, so that one that hangs holds up no other."""
        if self._hung >= MAX_HUNG_THREADS:
            raise RuntimeError(f"{self._hung} calls hang already; restart the worker and mend the function")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            self._hung -= 1
            if not done.done():
                done.set_exception(error) if error else done.set_result(result)

        def call() -> None:
            result, failure = None, None
            try:
                result = function.call(trajectory, context)
            except Exception as error:
                failure = error
            try:
                loop.call_soon_threadsafe(settle, result, failure)
            except RuntimeError:
                return  # the loop has ended meanwhile

        self._hung += 1
        threading.Thread(target=call, name=f"reward-{context.name}", daemon=True).start()
        return await done


def _checked(value: Any, name: str) -> Answer:
    if value is None:
        return Answer()
    try:
        number = float(value)
    except (TypeError, ValueError):
        return Answer(error=f"reward {name!r} returned {value!r}, which is no number")
    if not math.isfinite(number):
        return Answer(error=f"reward {name!r} returned {number}")
    return Answer(number)


def combined(
    answers: Mapping[str, Answer], rewards: tuple[RewardConfig, ...], low: float | None, high: float | None
) -> tuple[float | None, str | None]:
    """Return the weighted, clipped sum, or why there is none; (None, None) while a component has nothing to say."""
    errors = [answer.error for answer in answers.values() if answer.error]
    if errors:
        return None, "; ".join(errors)
    total = 0.0
    for reward in rewards:
        value = answers.get(reward.name, Answer()).value
        if value is None:
            return None, None
        total += reward.weight * value
    if low is not None:
        total = max(low, total)
    if high is not None:
        total = min(high, total)
    return (total, None) if math.isfinite(total) else (None, f"the weighted sum is {total}")
