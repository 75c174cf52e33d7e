"""Call reward functions and return their answers: a value, nothing yet, or an error.

Each call gives an answer: exceptions, time-outs and values that are not numbers become errors of one component of one
trajectory, or of one group if the function is over groups.
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Iterable, Mapping, Sequence, Set, Sized
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import islice
from typing import Any, NamedTuple

from rollbus.runtime.cancelling import all_or_none, is_being_cancelled
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import SEPARATOR
from rollbus.schemas.numbers import computable
from rollbus.schemas.read_only import ReadOnlyMapping
from rollbus.schemas.record_makers import copier
from rollbus.schemas.records.config import ComponentConfig, RewardConfig
from rollbus.schemas.records.trajectories import Trajectory, TurnReward
from rollbus.streams.rewards.contract import (
    Ask,
    Option,
    RewardContext,
    RewardFunction,
    TurnValues,
    plain_hint,
)
from rollbus.streams.rewards.registry import Registry, function_of
from rollbus.streams.stages.scoring.threads import CallThreads

MAX_ERROR_CHARACTERS = 2_000
"""Limit on an error in a score: its text may hold the whole input of the function."""
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
UNORDERED = (str, bytes, bytearray, Mapping, Set)
"""What can be iterated over without being one value for each member: keys, letters, values that lost their place."""
TEXTS = (str, bytes, bytearray)
"""`float` reads some of them as numbers, such as "1_000"."""
ATTEMPTS = 3
"""Calls of a function until it answers: an endpoint that is away for a moment has come back by the third."""
RETRY_S = 0.1
"""Half of the first pause before a function that gave no answer is called again; each pause is twice the last."""
_with_labels = copier(Trajectory, Trajectory, "labels")
Subject = Trajectory | Sequence[Trajectory]
"""The input of a function."""


@dataclass(frozen=True, slots=True)
class ComponentAnswer:
    """The answer of one component."""

    value: float | None = None
    """None if the component has no value yet."""
    error: str | None = None
    members: "tuple[ComponentAnswer, ...] | None" = None
    """Of a function over a group: the answer for each member, in their order; None if it returned nothing."""
    turns: tuple[TurnReward, ...] = ()
    """What it says of single turns."""


@dataclass(frozen=True, slots=True)
class Before:
    """What was said of a trajectory before its rewards were revised."""

    turns: tuple[TurnReward, ...] = ()
    revision: int = 0


FIRST_TIME = Before()


class Asker:
    """Calls reward functions with a bound on how many are in flight."""

    def __init__(
        self, registry: Registry, ask: Ask | None = None, *, retry_s: float = RETRY_S, attempts: int = ATTEMPTS
    ) -> None:
        """With a `retry_s` of 0 a failed function is called again at once: for functions that do not ask a model."""
        self._registry, self._ask, self._retry_s, self._attempts = registry, ask, retry_s, attempts
        self._threads = CallThreads("reward")
        self._abandoned: set[asyncio.Task[ComponentAnswer]] = set()
        """Abandoned calls that have not ended."""
        self.answered = 0
        """Calls that have been answered or abandoned."""

    async def ask_all(
        self,
        subject: Subject,
        rewards: tuple[ComponentConfig, ...],
        slots: asyncio.Semaphore,
        before: Before = FIRST_TIME,
    ) -> dict[str, ComponentAnswer]:
        """Return one answer per component; `subject` is the input of its functions, which cannot change it."""
        rewards = tuple(reward for reward in rewards if _is_asked(reward, subject))
        subject = _read_only(subject)
        slow = [reward for reward in rewards if not self.is_quick(reward)]
        if not slow:
            return {reward.name: self._ask_in_place(subject, reward, before) for reward in rewards}
        answers = {reward.name: self._ask_in_place(subject, reward, before) for reward in rewards if reward not in slow}
        slow_answers = await all_or_none(self._ask_one(subject, reward, slots, before) for reward in slow)
        answers.update((reward.name, answer) for reward, answer in zip(slow, slow_answers, strict=True))
        return {reward.name: answers[reward.name] for reward in rewards}

    def is_quick(self, reward: ComponentConfig) -> bool:
        """Say whether a component is called in place."""
        function = self._registry.get(reward.type)
        return function is not None and function.quick

    def _context_of(self, reward: ComponentConfig, before: Before) -> RewardContext:
        earlier = tuple(turn for turn in before.turns if turn.component == reward.name)
        options: Mapping[str, Option] = ReadOnlyMapping(reward.options, "context.options")
        return RewardContext(reward.name, options, self._ask, earlier, before.revision)

    def _ask_in_place(self, subject: Subject, reward: ComponentConfig, before: Before) -> ComponentAnswer:
        context = self._context_of(reward, before)
        try:
            function: Any = self._registry[reward.type]
            return _check_answer(subject, _draw_values(function.call(subject, context), subject), reward.name)
        except BaseException as error:  # a user's function may raise anything, and each is one trajectory's failure
            return _error_answer(reward.name, error)

    async def _ask_one(
        self, subject: Subject, reward: ComponentConfig, slots: asyncio.Semaphore, before: Before
    ) -> ComponentAnswer:
        context = self._context_of(reward, before)
        try:
            function = function_of(self._registry, reward)
        except ConfigurationError as error:
            return _failed_answer(str(error))
        answer = _failed_answer("never asked")
        timeout_s = None if function.patient else reward.timeout_s
        for attempt in range(self._attempts):
            if attempt:
                await asyncio.sleep(self._retry_s * 2**attempt)
            async with slots:
                answer = await self._call_once(function, subject, context, timeout_s)
            if answer.error is None:
                break
        return answer

    async def _call_once(
        self, function: RewardFunction, subject: Any, context: RewardContext, timeout_s: float | None
    ) -> ComponentAnswer:
        """Call once, in a separate task: a task that ignores its cancellation is left behind."""
        call = asyncio.create_task(self._call_function(function, subject, context))
        try:
            await asyncio.wait([call], timeout=timeout_s)
            if call.done():
                return call.result()
            return _failed_answer(f"reward {context.name!r} gave no answer within {timeout_s} s")
        finally:
            self.answered += 1
            if not call.done():
                call.cancel()
                self._abandoned.add(call)
                call.add_done_callback(self._abandoned.discard)

    async def _call_function(self, function: RewardFunction, subject: Any, context: RewardContext) -> ComponentAnswer:
        try:
            if inspect.iscoroutinefunction(function.call):
                value: Any = function.call(subject, context)
            else:
                value = await self._threads.call(lambda: _draw_values(function.call(subject, context), subject))
            if isinstance(value, Awaitable):
                answer = await value
                value = await self._threads.call(lambda: _draw_values(answer, subject)) if _is_drawn(answer) else answer
            return _check_answer(subject, value, context.name)
        except BaseException as error:  # a user's function may raise anything; Rust's panics are not an Exception
            if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                raise  # this task was cancelled, and not one inside the function
            return _error_answer(context.name, error)


def _read_only(subject: Subject) -> Subject:
    """Return a function's input with views in place of what it could change."""
    if isinstance(subject, Trajectory):
        return _with_labels(subject, labels=ReadOnlyMapping(subject.labels, "trajectory.labels"))
    return tuple(_with_labels(member, labels=ReadOnlyMapping(member.labels, "trajectory.labels")) for member in subject)


def _is_asked(reward: ComponentConfig, subject: Subject) -> bool:
    """Say whether a trajectory is in a component's sample: always the same; groups are all in it."""
    if not isinstance(reward, RewardConfig) or reward.share == 1 or not isinstance(subject, Trajectory):
        return True
    draw_digest = blake2b(f"{reward.name}\0{subject.trajectory_id}".encode(), digest_size=7).digest()
    return int.from_bytes(draw_digest, "big") < reward.share * 2**56


def _error_answer(name: str, error: BaseException) -> ComponentAnswer:
    try:
        text = repr(error)
    except BaseException:  # the `__repr__` of a user's class may fail too
        text = type(error).__name__
    return _failed_answer(f"reward {name!r} raised {text}")


def _failed_answer(error: str) -> ComponentAnswer:
    """Return the answer of a call that failed; an address in memory would give each replay other bytes."""
    return ComponentAnswer(error=_ADDRESS.sub("", error[: 2 * MAX_ERROR_CHARACTERS])[:MAX_ERROR_CHARACTERS])


def _draw_values(value: Any, subject: Subject) -> Any:
    """Return a limited number of the values that a generator yields for a group, drawn in the function's thread."""
    if _is_drawn(value) and not isinstance(subject, Trajectory):
        return list(islice(value, len(subject) + 1))
    return value


def _is_drawn(value: Any) -> bool:
    """Say whether values come one by one, and nothing says how many: each may take long, and they need not end."""
    return isinstance(value, Iterable) and not isinstance(value, Sized)


def _check_answer(subject: Subject, value: Any, name: str) -> ComponentAnswer:
    """Return a function's answer for a trajectory, or for each member of a group."""
    if isinstance(value, TurnValues) and isinstance(subject, Trajectory):
        return _check_turns(value, name)
    if isinstance(subject, Trajectory):
        return _check_value(value, name)
    if value is None:
        return ComponentAnswer()
    if isinstance(value, UNORDERED) or not isinstance(value, Iterable):
        return _failed_answer(f"reward {name!r} returned {value!r:.200}, which is not a sequence")
    values = list(value)
    if len(values) != len(subject):
        return _failed_answer(f"reward {name!r} returned {len(values)} values for {len(subject)} members")
    return ComponentAnswer(members=tuple(_check_value(member_value, name) for member_value in values))


def _check_turns(values: TurnValues, name: str) -> ComponentAnswer:
    """Return an answer about single turns, each in the component's name."""
    for turn in values.turns:
        if turn.value is not None and not computable(turn.value):
            return _failed_answer(f"reward {name!r} gave turn {turn.turn_event_id} {turn.value}")
        if not 0 <= turn.confidence <= 1:
            return _failed_answer(
                f"reward {name!r} gave turn {turn.turn_event_id} confidence {turn.confidence}, not 0 … 1"
            )
        if not isinstance(turn.hint, str):
            return _failed_answer(
                f"reward {name!r} gave turn {turn.turn_event_id} a hint that is not a text: {turn.hint!r:.200}"
            )
        if not isinstance(turn.share, int | float) or not computable(turn.share):
            return _failed_answer(f"reward {name!r} gave turn {turn.turn_event_id} the share {turn.share!r:.200}")
        texts = (turn.turn_event_id, turn.event_id, turn.signal)
        if not all(isinstance(text, str) and SEPARATOR not in text for text in texts):
            return _failed_answer(
                f"reward {name!r} gave a turn {texts!r:.200}, which are not ids of events and a signal"
            )
    answer = _check_value(values.total, name)
    if answer.error:
        return answer
    return replace(answer, turns=tuple(_checked_turn(turn, name) for turn in values.turns))


def _checked_turn(turn: TurnReward, name: str) -> TurnReward:
    """Return a turn in its component's name, with a hint that fits."""
    hint = plain_hint(turn.hint)
    return replace(turn, component=name, hint=hint, is_hint=turn.is_hint or bool(hint))


def _check_value(value: Any, name: str) -> ComponentAnswer:
    if value is None:
        return ComponentAnswer()
    if isinstance(value, TEXTS):
        return _failed_answer(f"reward {name!r} returned {value!r:.200}, which is text and not a number")
    try:
        number = float(value)
    except (TypeError, ValueError):
        return _failed_answer(f"reward {name!r} returned {value!r:.200}, which is not a number")
    if not computable(number):
        return _failed_answer(f"reward {name!r} returned {number}")
    return ComponentAnswer(number)


class Combination(NamedTuple):
    """What the components of a trajectory are worth together."""

    value: float | None = None
    """Weighted, summed and clipped; None while a component has no value, or with an error."""
    error: str | None = None
    total: float = 0.0
    """Before it was clipped."""


def combine_answers(
    answers: Mapping[str, ComponentAnswer], rewards: tuple[ComponentConfig, ...], low: float | None, high: float | None
) -> Combination:
    """Return the weighted, clipped sum, or an error.

    A component of weight 0 is only measured: the sum needs neither its value nor its success.
    """
    rewards = tuple(reward for reward in rewards if reward.weight)
    errors = [answer.error for reward in rewards if (answer := answers.get(reward.name)) and answer.error]
    if errors:
        return Combination(error="; ".join(errors))
    total = 0.0
    for reward in rewards:
        value = answers.get(reward.name, ComponentAnswer()).value
        if value is None:
            return Combination()
        total += reward.weight * value
    clipped = total if low is None else max(low, total)
    clipped = clipped if high is None else min(high, clipped)
    return (
        Combination(clipped, None, total)
        if computable(clipped)
        else Combination(error=f"the weighted sum is {clipped}")
    )


def fit_turns(
    turns: Sequence[TurnReward], combination: Combination, low: float | None, high: float | None
) -> tuple[TurnReward, ...]:
    """Return turns that weigh less, all by one factor, where the sum was clipped: what they earn is clipped with it.

    With both bounds, no turn earns more than lies between them.
    """
    factor, value, total = 1.0, combination.value, combination.total
    if value is not None and value != total and total:
        factor = min(1.0, max(0.0, value / total))
    largest = max((abs(turn.weight * turn.value) for turn in turns if turn.value is not None), default=0.0)
    if low is not None and high is not None and factor * largest > high - low:
        factor = (high - low) / largest
    return tuple(turns) if factor == 1 else tuple(replace(turn, weight=factor * turn.weight) for turn in turns)
