"""What users of agent frameworks complain of, in one workflow: branched calls, a crash, judges that do not judge."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.messages import HumanMessage
from nat.builder.builder import Builder
from nat.builder.evaluator import EvaluatorInfo
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_evaluator, register_function
from nat.data_models.evaluator import EvalInput, EvaluatorBaseConfig
from nat.data_models.function import FunctionBaseConfig
from nat.plugins.eval.data_models.evaluator_io import EvalOutput, EvalOutputItem


class BranchingConfig(FunctionBaseConfig, name="branching"):
    llm: str


class OddJudgeConfig(EvaluatorBaseConfig, name="odd_judge"):
    pass


class BrokenJudgeConfig(EvaluatorBaseConfig, name="broken_judge"):
    pass


@register_function(config_type=BranchingConfig, framework_wrappers=[LLMFrameworkEnum.LANGCHAIN])
async def branching(config: BranchingConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    llm: Any = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.LANGCHAIN)

    async def run(question: str) -> str:
        first = await llm.ainvoke([HumanMessage(question)])
        if question == "crash":
            raise ValueError("no such order")
        sides = (f"{question} left", f"{question} right")
        left, _ = await asyncio.gather(
            *(llm.ainvoke([HumanMessage(question), first, HumanMessage(side)]) for side in sides)
        )
        return str(left.content)

    yield FunctionInfo.from_fn(run)


@register_evaluator(config_type=OddJudgeConfig)
async def odd_judge(config: OddJudgeConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    async def evaluate(items: EvalInput) -> EvalOutput:
        scores = {"nan": math.nan, "none": None}
        outputs = [
            EvalOutputItem(id=item.id, score=scores.get(item.id, int(item.output_obj) % 2), reasoning="")
            for item in items.eval_input_items
            if item.id != "silent"
        ]
        return EvalOutput(average_score=None, eval_output_items=outputs)

    yield EvaluatorInfo(config=config, evaluate_fn=evaluate, description="Judges some.")  # type: ignore[arg-type]  # as all of its own


@register_evaluator(config_type=BrokenJudgeConfig)
async def broken_judge(config: BrokenJudgeConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    async def evaluate(items: EvalInput) -> EvalOutput:
        raise KeyError("no such column")

    yield EvaluatorInfo(config=config, evaluate_fn=evaluate, description="Judges nothing.")  # type: ignore[arg-type]
