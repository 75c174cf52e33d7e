"""What an evaluator sees of an attempt: models, tools and steps of the user's own, in LangGraph and in LlamaIndex."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nat.builder.builder import Builder
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_function
from nat.data_models.evaluator import EvalInputItem
from nat.data_models.function import FunctionBaseConfig
from nat.data_models.intermediate_step import (
    IntermediateStep,
    IntermediateStepPayload,
    IntermediateStepType,
    StreamEventData,
)
from nat.data_models.invocation_node import InvocationNode

from rollbus.nemo.runs.recording import turns_of_answers
from tests.builders import make_turn
from tests.nemo.test_custom_components import Buying
from tests.nemo.test_played_steps import report_move
from tests.nemo.world import document, new_run, run_epochs

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks
SEEN = ["LLM_START", "LLM_END", "TOOL_START", "TOOL_END", "LLM_START", "LLM_END", "CUSTOM_START", "CUSTOM_END"]


def price(item: str) -> str:
    """Return the price of an item in euros."""
    return "4"


async def ask_by_langgraph(question: str, llm: Any) -> str:
    from langchain.agents import create_agent

    found = await create_agent(llm, tools=[price]).ainvoke({"messages": [{"role": "user", "content": question}]})
    report_move(1, 0.25)
    return str(found["messages"][-1].content)


class LlamaConfig(FunctionBaseConfig, name="test_llama_index"):
    llm: str


@register_function(config_type=LlamaConfig, framework_wrappers=[LLMFrameworkEnum.LLAMA_INDEX])
async def llama_index_workflow(config: LlamaConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    llm = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.LLAMA_INDEX)

    async def run(question: str) -> str:
        from llama_index.core.agent.workflow import FunctionAgent

        agent = FunctionAgent(tools=[price], llm=llm, streaming=False)
        found = await agent.run(question)
        report_move(1, 0.25)
        return str(found)

    yield FunctionInfo.from_fn(run)


@pytest.mark.parametrize("framework", ["langgraph", "llama_index"])
async def test_an_evaluator_sees_models_tools_and_steps_of_the_users_own(tmp_path: Path, framework: str) -> None:
    seen: list[list[IntermediateStep]] = []

    def by_steps(item: EvalInputItem) -> float:
        seen.append(item.trajectory)
        return sum(1 - (step.payload.metadata or {}).get("value", 1) for step in steps_of(item.trajectory)[-1:])  # type: ignore[union-attr]

    plain = document(tmp_path, examples=1, workflow=ask_by_langgraph, score=by_steps)
    if framework == "llama_index":
        plain["workflow"] = {"_type": "test_llama_index", "llm": "policy"}
    async with new_run(tmp_path, plain, Buying()) as made:
        await run_epochs(made, 1)
        records = list(made.run.log.view.trajectories.values())
    for steps in map(steps_of, seen):
        assert [step.event_type.value for step in steps] == SEEN
        assert [step.payload.name for step in steps[2:4]] == ["price", "price"]
        assert "4" in str(steps[3].payload.data.output)  # type: ignore[union-attr]
        first, last = (str(steps[index].payload.data.input) for index in (0, 4))  # type: ignore[union-attr]
        assert "question 0" in first
        assert "question 0" in last, "every message, and not the added ones alone"
        assert [steps[index].payload.data.logprobs["token_ids"] for index in (1, 5)]  # type: ignore[union-attr]
    assert [(record.trainable, len(record.turns)) for record in records] == [(True, 2)] * 2
    assert [report.value for record in records for report in record.rewards] == [0.75, 0.75]


def steps_of(trajectory: list[IntermediateStep]) -> list[IntermediateStep]:
    return [one for one in trajectory if one.event_type.value in SEEN]


def test_an_answer_has_the_tokens_of_its_own_call() -> None:
    turns = [make_turn(sequence=1, text="1"), make_turn(sequence=2, text="12")]
    node = InvocationNode(function_name="f", function_id="f")
    steps = [
        IntermediateStep(
            parent_id="root",
            function_ancestry=node,
            payload=IntermediateStepPayload(
                event_type=IntermediateStepType.LLM_END,
                event_timestamp=2.0,
                span_event_timestamp=1.0,
                data=StreamEventData(output=text),
            ),
        )
        for text in ("12", "1", "1 and more")
    ]
    assert turns_of_answers(steps, turns) == {0: turns[1], 1: turns[0]}
    assert turns_of_answers(steps[2:], turns) == {0: turns[0]}, "what a framework adds to an answer is passed over"
