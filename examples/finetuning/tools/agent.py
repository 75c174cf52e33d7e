"""A tool of one's own for the toolkit's agent, and its reward: right answers, less a little per needless call."""

from collections.abc import AsyncIterator
from typing import Any

from nat.builder.builder import Builder
from nat.builder.evaluator import EvaluatorInfo
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_evaluator, register_function
from nat.data_models.evaluator import EvalInputItem, EvaluatorBaseConfig
from nat.data_models.function import FunctionBaseConfig
from nat.data_models.intermediate_step import IntermediateStepType
from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem
from nat.plugins.eval.evaluator.base_evaluator import BaseEvaluator

CALL_COST = 0.05
NEEDED_CALLS = 1
EUROS = {"apple": 0.4, "bread": 3.2, "cheese": 5.6, "milk": 1.3}


class PriceConfig(FunctionBaseConfig, name="shop_price"):
    """Chosen in YAML as `_type: shop_price`."""


class HelpfulConfig(EvaluatorBaseConfig, name="shop_helpful"):
    """Chosen in YAML as `_type: shop_helpful`."""


class Helpful(BaseEvaluator):
    """Compares an answer with the right one, and counts the tool calls."""

    async def evaluate_item(self, item: EvalInputItem) -> EvalOutputItem:
        """Return 1 for the right answer, less a little for each call beyond the one that is needed."""
        right = str(item.expected_output_obj) in str(item.output_obj)
        calls = sum(step.event_type is IntermediateStepType.TOOL_START for step in item.trajectory)
        spent = CALL_COST * max(0, calls - NEEDED_CALLS)
        return EvalOutputItem(id=item.id, score=float(right) - spent, reasoning=f"right={right}, calls={calls}")


@register_function(config_type=PriceConfig)
async def shop_price(config: PriceConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    """Yield the tool."""

    async def price(item: str) -> float:
        """Return the price of an item in euros."""
        return EUROS.get(item.lower(), 0.0)

    yield FunctionInfo.from_fn(price, description="Return the price of an item in euros.")


@register_evaluator(config_type=HelpfulConfig)
async def shop_helpful(config: HelpfulConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    """Yield the evaluator."""
    yield EvaluatorInfo(config=config, evaluate_fn=Helpful().evaluate, description="Right, with few calls.")
