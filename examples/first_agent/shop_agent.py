"""An agent with two tools, and its evaluator: which tool answers a customer's question, and about which item?

The model sees two examples of each tool and answers with a line such as `price milk`. The entry point in pyproject.toml
makes all of it known to `nat` and to `rollbus`.
"""

from collections.abc import AsyncIterator
from typing import Any

from nat.builder.builder import Builder
from nat.builder.evaluator import EvaluatorInfo
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_evaluator, register_function
from nat.data_models.component_ref import FunctionRef, LLMRef
from nat.data_models.evaluator import EvalInputItem, EvaluatorBaseConfig
from nat.data_models.function import FunctionBaseConfig
from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem
from nat.plugins.eval.evaluator.base_evaluator import BaseEvaluator

ITEMS = (
    *("apple", "bread", "cheese", "milk", "rice", "honey", "coffee", "soap", "onion", "pasta", "juice", "yogurt"),
    *("carrot", "pepper", "cocoa", "lemon", "beer", "wine", "jam", "fish", "garlic", "cream", "corn"),
)
CENTS = {item: 40 + 35 * number for number, item in enumerate(ITEMS)}
PIECES_BY_ITEM = {item: 3 + 2 * number for number, item in enumerate(ITEMS)}
EXAMPLES = (
    ("system", "Tools: price, stock."),
    ("user", "What does butter cost?"),
    ("assistant", "price butter"),
    ("user", "How much salt is left?"),
    ("assistant", "stock salt"),
    ("user", "What does sugar cost?"),
    ("assistant", "price sugar"),
    ("user", "How much tea is left?"),
    ("assistant", "stock tea"),
)


class PriceConfig(FunctionBaseConfig, name="shop_item_price"):
    """Chosen in YAML as `_type: shop_item_price`."""


class StockConfig(FunctionBaseConfig, name="shop_item_stock"):
    """Chosen in YAML as `_type: shop_item_stock`."""


class AgentConfig(FunctionBaseConfig, name="shop_agent"):
    """Chosen in YAML as `_type: shop_agent`."""

    llm: LLMRef
    tools: list[FunctionRef]


class AnswerConfig(EvaluatorBaseConfig, name="shop_answer"):
    """Chosen in YAML as `_type: shop_answer`."""


@register_function(config_type=PriceConfig)
async def item_price(config: PriceConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    """Yield the first tool."""

    async def price(item: str) -> str:
        """Return the price of an item."""
        return f"{CENTS[item]} cents" if item in CENTS else f"no item {item}"

    yield FunctionInfo.from_fn(price, description="Return the price of an item.")


@register_function(config_type=StockConfig)
async def item_stock(config: StockConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    """Yield the second tool."""

    async def stock(item: str) -> str:
        """Return how many pieces of an item are left."""
        return f"{PIECES_BY_ITEM[item]} pieces" if item in PIECES_BY_ITEM else f"no item {item}"

    yield FunctionInfo.from_fn(stock, description="Return how many pieces of an item are left.")


@register_function(config_type=AgentConfig, framework_wrappers=[LLMFrameworkEnum.LANGCHAIN])
async def shop_agent(config: AgentConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    """Yield the agent."""
    llm: Any = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.LANGCHAIN)
    tools: dict[str, Any] = {
        tool.name: tool for tool in await builder.get_tools(config.tools, wrapper_type=LLMFrameworkEnum.LANGCHAIN)
    }

    async def answer(question: str) -> str:
        """Ask the model for a tool and an item, and return what the tool says."""
        reply = await llm.ainvoke([*EXAMPLES, ("user", question)])
        name, _, item = str(reply.content).strip().lower().partition(" ")
        return str(await tools[name].ainvoke({"item": item})) if name in tools else "no such tool"

    yield FunctionInfo.from_fn(answer, description="Answer a customer's question.")


class Answer(BaseEvaluator):
    """Compares an answer with the right one."""

    async def evaluate_item(self, item: EvalInputItem) -> EvalOutputItem:
        """Return 1 for the right answer, 0.2 for the right tool with another item, else 0."""
        answer, right_answer = str(item.output_obj), str(item.expected_output_obj)
        unit = "cents" if right_answer.endswith("cents") else "pieces"
        score = 1.0 if answer == right_answer else 0.2 if answer.endswith(unit) else 0.0
        return EvalOutputItem(id=item.id, score=score, reasoning=f"{answer!r}, right is {right_answer!r}")


@register_evaluator(config_type=AnswerConfig)
async def shop_answer(config: AnswerConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    """Yield the evaluator."""
    yield EvaluatorInfo(config=config, evaluate_fn=Answer().evaluate, description="Whether an answer is right.")
