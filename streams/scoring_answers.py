"""Ask reward functions, and write down what they said: a value, nothing yet, or why not.

Whatever a function does, the answer comes: exceptions, time-outs and values that are no numbers become errors of one
component of one trajectory, or of one group where the function is over groups.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from rollbus.schemas.cancelling import all_or_none, is_being_cancelled
from rollbus.schemas.config import RewardConfig
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.trajectories import Trajectory
from rollbus.streams.rewards.contract import Ask, RewardContext, RewardFunction, computable
from rollbus.streams.rewards.registry import Registry, function_of
from rollbus.streams.threads import Threads

MAX_ERROR_CHARACTERS = 2_000
"""Of what stands in a score about a component that failed: an error may hold all that the function was given."""
RETRY_S = 0.1
"""Half of the first pause before a function that gave no answer is called again; each pause is twice the last."""
Subject = Trajectory | Sequence[Trajectory]
"""What a function is over."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one component said."""

    value: float | None = None
    """None where there is nothing to say yet."""
    error: str | None = None
    members: "tuple[Answer, ...] | None" = None
    """Of a function over a group: what it said of each member, in their order; None where it said nothing at all."""


class Asker:
    """Calls reward functions with a bound on how many are in flight."""

    def __init__(self, registry: Registry, ask: Ask | None = None, *, retry_s: float = RETRY_S) -> None:
        """With a `retry_s` of 0 whatever failed is called again at once: for functions that wait for nobody."""
        self._registry, self._ask, self._retry_s = registry, ask, retry_s
        self._threads = Threads("reward")
        self._left: set[asyncio.Task[Answer]] = set()
        """Calls that were given up and have not ended."""
        self.answered = 0
        """Calls that have been answered or given up."""

    async def ask_all(
        self, subject: Subject, rewards: tuple[RewardConfig, ...], slots: asyncio.Semaphore
    ) -> dict[str, Answer]:
        """Return one answer per component; `subject` is what its functions are over."""
        slow = [reward for reward in rewards if not self.is_quick(reward)]
        if not slow:
            return {reward.name: self._ask_in_place(subject, reward) for reward in rewards}
        answers = {reward.name: self._ask_in_place(subject, reward) for reward in rewards if reward not in slow}
        found = await all_or_none(self._ask_one(subject, reward, slots) for reward in slow)
        answers.update((reward.name, answer) for reward, answer in zip(slow, found, strict=True))
        return {reward.name: answers[reward.name] for reward in rewards}

    def is_quick(self, reward: RewardConfig) -> bool:
        """Say whether a component is called in place."""
        function = self._registry.get(reward.type)
        return function is not None and function.quick

    def _ask_in_place(self, subject: Subject, reward: RewardConfig) -> Answer:
        context = RewardContext(reward.name, reward.options, self._ask)
        try:
            function: Any = self._registry[reward.type]
            return _checked_for(subject, _drawn(function.call(subject, context), subject), reward.name)
        except Exception as error:
            return _raised(reward.name, error)

    async def _ask_one(self, subject: Subject, reward: RewardConfig, slots: asyncio.Semaphore) -> Answer:
        context = RewardContext(reward.name, reward.options, self._ask)
        try:
            function = function_of(self._registry, reward)
        except ConfigurationError as error:
            return Answer(error=str(error))
        answer = Answer(error="never asked")
        timeout_s = None if function.patient else reward.timeout_s
        for attempt in range(reward.attempts):
            if attempt:
                await asyncio.sleep(self._retry_s * 2**attempt)
            async with slots:
                answer = await self._attempt(function, subject, context, timeout_s)
            if answer.error is None:
                break
        return answer

    async def _attempt(
        self, function: RewardFunction, subject: Any, context: RewardContext, timeout_s: float | None
    ) -> Answer:
        """Call once, in a task of its own: one that does not even heed its cancellation is left behind."""
        call = asyncio.create_task(self._call(function, subject, context))
        try:
            await asyncio.wait([call], timeout=timeout_s)
            if call.done():
                return call.result()
            return Answer(error=f"reward {context.name!r} gave no answer within {timeout_s} s")
        finally:
            self.answered += 1
            if not call.done():
                call.cancel()
                self._left.add(call)
                call.add_done_callback(self._left.discard)

    async def _call(self, function: RewardFunction, subject: Any, context: RewardContext) -> Answer:
        try:
            if inspect.iscoroutinefunction(function.call):
                value: Any = function.call(subject, context)
            else:
                value = await self._threads.call(lambda: _drawn(function.call(subject, context), subject))
            if isinstance(value, Awaitable):
                value = await value
            return _checked_for(subject, value, context.name)
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            return _raised(context.name, error)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            return _raised(context.name, error)  # of a task of the function's own: nobody has cancelled this one


def _raised(name: str, error: BaseException) -> Answer:
    try:
        told = repr(error)
    except Exception:  # what a user's class says of itself may fail too
        told = type(error).__name__
    return Answer(error=f"reward {name!r} raised {told}"[:MAX_ERROR_CHARACTERS])


def _drawn(value: Any, subject: Subject) -> Any:
    """Return the values that a generator yields of a group, drawn where it may take its time, and not without end."""
    if isinstance(value, Iterator) and not isinstance(subject, Trajectory):
        return list(islice(value, len(subject) + 1))
    return value


def _checked_for(subject: Subject, value: Any, name: str) -> Answer:
    """Return what a function said of a trajectory, or of each member of a group."""
    if isinstance(subject, Trajectory):
        return _checked(value, name)
    if value is None:
        return Answer()
    if isinstance(value, str) or not isinstance(value, Iterable):
        return Answer(error=f"reward {name!r} returned {value!r:.200}, which is no sequence")
    values = list(value)
    if len(values) != len(subject):
        return Answer(error=f"reward {name!r} returned {len(values)} values for {len(subject)} members")
    return Answer(members=tuple(_checked(each, name) for each in values))


def _checked(value: Any, name: str) -> Answer:
    if value is None:
        return Answer()
    try:
        number = float(value)
    except (TypeError, ValueError):
        return Answer(error=f"reward {name!r} returned {value!r:.200}, which is no number")
    if not computable(number):
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
    return (total, None) if computable(total) else (None, f"the weighted sum is {total}")
