"""A workflow whose n-th answer to a question is the same in any process, and a reward that tells answers apart."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from zlib import crc32

from nat.builder.builder import Builder
from nat.builder.evaluator import EvaluatorInfo
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_evaluator, register_function
from nat.data_models.evaluator import EvalInputItem, EvaluatorBaseConfig
from nat.data_models.function import FunctionBaseConfig
from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem
from nat.plugins.eval.evaluator.base_evaluator import BaseEvaluator

MAX_TOKENS = 6
CALLS_BY_QUESTION: Counter[str] = Counter()


class SeededConfig(FunctionBaseConfig, name="seeded"):
    llm: str


class ChecksumConfig(EvaluatorBaseConfig, name="checksum"):
    pass


class Checksum(BaseEvaluator):
    async def evaluate_item(self, item: EvalInputItem) -> EvalOutputItem:
        return EvalOutputItem(id=item.id, score=crc32(str(item.output_obj).encode()) % 1000 / 1000, reasoning="")


@register_function(config_type=SeededConfig, framework_wrappers=[LLMFrameworkEnum.LANGCHAIN])
async def seeded(config: SeededConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    llm: Any = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.LANGCHAIN)

    async def run(question: str) -> str:
        CALLS_BY_QUESTION[question] += 1
        seed = crc32(f"{question} {CALLS_BY_QUESTION[question]}".encode()) % 2**31
        return str((await llm.ainvoke(question, max_tokens=MAX_TOKENS, seed=seed)).content)

    yield FunctionInfo.from_fn(run)


@register_evaluator(config_type=ChecksumConfig)
async def checksum(config: ChecksumConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    yield EvaluatorInfo(config=config, evaluate_fn=Checksum().evaluate, description="A number of the answer.")  # type: ignore[arg-type]  # as all of its own
