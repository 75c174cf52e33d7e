"""What the finetuning test trains: a model without any sense is to prefer tokens with even ids."""

from collections.abc import AsyncIterator
from typing import Any

from nat.builder.builder import Builder
from nat.builder.evaluator import EvaluatorInfo
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_evaluator, register_function
from nat.data_models.evaluator import EvalInputItem, EvaluatorBaseConfig
from nat.data_models.function import FunctionBaseConfig
from nat.data_models.intermediate_step import IntermediateStepType
from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem
from nat.plugins.eval.evaluator.base_evaluator import BaseEvaluator

MAX_TOKENS = 6


class BabbleConfig(FunctionBaseConfig, name="babble"):
    llm: str


class EvennessConfig(EvaluatorBaseConfig, name="evenness"):
    pass


class Evenness(BaseEvaluator):
    async def evaluate_item(self, item: EvalInputItem) -> EvalOutputItem:
        answers = [step.payload.data for step in item.trajectory if step.event_type is IntermediateStepType.LLM_END]
        ids: list[int] = [token for answer in answers for token in answer.logprobs["token_ids"]]  # type: ignore[union-attr]
        return EvalOutputItem(id=item.id, score=sum(token % 2 == 0 for token in ids) / len(ids), reasoning="share")


@register_function(config_type=BabbleConfig, framework_wrappers=[LLMFrameworkEnum.LANGCHAIN])
async def babble(config: BabbleConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    llm: Any = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.LANGCHAIN)

    async def run(question: str) -> str:
        return str((await llm.ainvoke(question, max_tokens=MAX_TOKENS)).content)

    yield FunctionInfo.from_fn(run)


@register_evaluator(config_type=EvennessConfig)
async def evenness(config: EvennessConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    yield EvaluatorInfo(config=config, evaluate_fn=Evenness().evaluate, description="Share of even ids.")  # type: ignore[arg-type]  # as all of its own
