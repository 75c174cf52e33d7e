"""What scores an example: the base for users' own evaluators, the built-in ones, and how one is called.

An evaluator is an `EvaluatorInfo`, a `BaseEvaluator`, or a function from an EvalInput to an EvalOutput, or from an
EvalInputItem to an EvalOutputItem or a number. A score of None says that there is none, which is not 0.
"""

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, get_type_hints

from pydantic import Field

from rollbus.harness.builder import Builder
from rollbus.harness.calling import accepted, call, find
from rollbus.harness.evaluation_models import EvalInput, EvalInputItem, EvalOutput, EvalOutputItem, number_of
from rollbus.harness.registry import register_evaluator
from rollbus.harness.typed import EvaluatorConfig
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.events import Message
from rollbus.schemas.records.trajectories import Trajectory, Turn

MAX_ERROR_CHARACTERS = 500
MAX_CONCURRENCY = 4
"""Items that an evaluator scores at a time, where it does not say."""


@dataclass(frozen=True, slots=True)
class EvaluatorInfo:
    """One configured evaluator."""

    config: EvaluatorConfig
    evaluate_fn: Callable[..., Any]
    """An EvalInput → an EvalOutput; or one item → its score."""
    description: str = ""

    async def evaluate(self, items: list[EvalInputItem]) -> EvalOutput:
        """Score items; one that cannot be scored has no score and says why."""
        if not _takes_one_item(self.evaluate_fn):
            return await call(self.evaluate_fn, EvalInput(eval_input_items=items))  # type: ignore[no-any-return]
        return output_of(await _each(self._one, items, MAX_CONCURRENCY))

    async def evaluate_item(self, item: EvalInputItem) -> EvalOutputItem:
        """Score one item with a number or None; never raises for what the evaluator does."""
        try:
            return _checked((await self.evaluate([item])).eval_output_items[0])
        except Exception as error:
            return EvalOutputItem(id=item.id, score=None, error=_text(error))

    async def _one(self, item: EvalInputItem) -> EvalOutputItem:
        found = await call(self.evaluate_fn, item)
        return found if isinstance(found, EvalOutputItem) else EvalOutputItem(id=item.id, score=found)


class BaseEvaluator(ABC):
    """Scores one item at a time; subclass it."""

    def __init__(self, max_concurrency: int = MAX_CONCURRENCY, tqdm_desc: str = "Evaluating") -> None:
        self.max_concurrency, self.tqdm_desc = max_concurrency, tqdm_desc

    @abstractmethod
    async def evaluate_item(self, item: EvalInputItem) -> EvalOutputItem:
        """Return the item's score."""

    async def evaluate(self, eval_input: EvalInput) -> EvalOutput:
        """Score all items, `max_concurrency` at a time; one that raises has no score and says why."""
        return output_of(await _each(self.evaluate_item, eval_input.eval_input_items, self.max_concurrency))


def as_evaluator(made: Any, config: EvaluatorConfig) -> EvaluatorInfo:
    """Return whatever a registered function yielded as an EvaluatorInfo."""
    if isinstance(made, EvaluatorInfo):
        return made
    if isinstance(made, BaseEvaluator):
        return EvaluatorInfo(config, made.evaluate)
    if callable(made):
        return EvaluatorInfo(config, made)
    raise ConfigurationError(f"evaluator {config.type!r} yields {made!r}; it must yield an EvaluatorInfo or a function")


def output_of(items: list[EvalOutputItem]) -> EvalOutput:
    """Return the output with its average; None where nothing has a score."""
    scores = [score for item in items if (score := number_of(item.score)) is not None]
    return EvalOutput(average_score=fmean(scores) if scores else None, eval_output_items=items)


async def _each(
    score: Callable[[EvalInputItem], Awaitable[EvalOutputItem]], items: Sequence[EvalInputItem], at_a_time: int
) -> list[EvalOutputItem]:
    """Score items side by side; one that cannot be scored says why and costs no other."""
    places = asyncio.Semaphore(at_a_time)

    async def one(item: EvalInputItem) -> EvalOutputItem:
        async with places:
            try:
                return await score(item)
            except Exception as error:
                return EvalOutputItem(id=item.id, score=None, error=_text(error))

    return list(await asyncio.gather(*(one(item) for item in items)))


def _checked(item: EvalOutputItem) -> EvalOutputItem:
    """Return an item that can be a reward; one that is not a number loses its score and gets the reason."""
    shaped = list(getattr(item, "shaped_rewards", None) or ())
    wrong = next((value for value in shaped if number_of(value) is None), None)
    if wrong is not None:
        error = f"shaped_rewards {shaped!r}: {wrong!r} is not a finite number"
    elif item.score is not None and number_of(item.score) is None:
        error = f"score {item.score!r} is not a finite number"
    else:
        return item
    return EvalOutputItem(id=item.id, score=None, error=error[:MAX_ERROR_CHARACTERS])


def _takes_one_item(function: Callable[..., Any]) -> bool:
    """Whether a function is annotated to take one item; if not, it takes an EvalInput."""
    try:
        hints = get_type_hints(function)
    except (NameError, TypeError):
        return False
    hints.pop("return", None)
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    return bool(parameters) and hints.get(parameters[0]) is EvalInputItem


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARACTERS]


# Built in


class PythonEvaluatorConfig(EvaluatorConfig, name="python"):
    """A function of yours: of `item`, or of `output` and `expected`, and of `options`."""

    function: str = Field(description="module:name")
    options: dict[str, Any] = Field(default_factory=dict)


class RewardFunctionEvaluatorConfig(EvaluatorConfig, name="reward_function"):
    """A reward function of the stream by name: exact_match, regex, json_valid, length, judge or your own."""

    function: str
    options: dict[str, str | int | float | bool | None] = Field(default_factory=dict)


@register_evaluator(config_type=PythonEvaluatorConfig)
async def python_evaluator(config: PythonEvaluatorConfig, builder: Builder) -> AsyncIterator[EvaluatorInfo]:
    """Yield a user's function."""
    function = find(config.function, what="evaluator")

    async def evaluate(item: EvalInputItem) -> Any:
        offered = {"item": item, "output": item.output_obj, "expected": item.expected_output_obj}
        return await call(function, **accepted(function, {**offered, "options": config.options}))

    yield EvaluatorInfo(config, evaluate)


@register_evaluator(config_type=RewardFunctionEvaluatorConfig)
async def reward_function(config: RewardFunctionEvaluatorConfig, builder: Builder) -> AsyncIterator[EvaluatorInfo]:
    """Yield a reward function of the stream, given the workflow's output as the last completion."""
    from rollbus.schemas.records.config import RewardConfig
    from rollbus.streams.rewards.contract import RewardContext
    from rollbus.streams.rewards.registry import function_of, installed

    function = function_of(installed(), RewardConfig(type=config.function))

    async def evaluate(item: EvalInputItem) -> Any:
        context = RewardContext(config.function, config.options)
        return await call(function.call, _as_trajectory(item), context)

    yield EvaluatorInfo(config, evaluate)


def _as_trajectory(item: EvalInputItem) -> Trajectory:
    said = Turn(
        event_id="",
        completion=Message(role="assistant", content=str(item.output_obj)),
        occurred_at_ms=0,
        trainable=False,
    )
    labels = {} if item.expected_output_obj is None else {"answer": str(item.expected_output_obj)}
    return Trajectory(
        trajectory_id="",
        episode_id="",
        root_episode_id="",
        task="",
        example_id=str(item.id),
        group_hint="",
        labels=labels,
        started_at_ms=0,
        ended_at_ms=0,
        assembled_at_ms=0,
        closed_by="ended",
        turns=(said,),
        trainable=False,
    )
