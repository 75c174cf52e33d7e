"""What an evaluator sees of an attempt: models, tools and steps of the user's own, in LangGraph and in LlamaIndex."""

import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from nat.builder.builder import Builder
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_function, register_llm_client
from nat.data_models.evaluator import EvalInputItem
from nat.data_models.function import FunctionBaseConfig
from nat.data_models.intermediate_step import (
    IntermediateStep,
    IntermediateStepPayload,
    IntermediateStepType,
    StreamEventData,
)
from nat.data_models.invocation_node import InvocationNode
from nat.llm.openai_llm import OpenAIModelConfig
from openai import AsyncOpenAI

from rollbus.nemo.runs.recorded_steps import turns_of_answers
from tests.builders import make_turn
from tests.nemo.test_custom_components import Buying
from tests.nemo.test_played_steps import report_move
from tests.nemo.world import RUN, Endpoint, document, new_run, run_epochs

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks
SEEN_STEPS = ["LLM_START", "LLM_END", "TOOL_START", "TOOL_END", "LLM_START", "LLM_END", "CUSTOM_START", "CUSTOM_END"]


def price(item: str) -> str:
    """Return the price of an item in euros."""
    return "4"


async def ask_by_langgraph(question: str, llm: Any) -> str:
    from langchain.agents import create_agent

    state = await create_agent(llm, tools=[price]).ainvoke({"messages": [{"role": "user", "content": question}]})
    report_move(1, 0.25)
    return str(state["messages"][-1].content)


class LlamaConfig(FunctionBaseConfig, name="test_llama_index"):
    llm: str


@register_function(config_type=LlamaConfig, framework_wrappers=[LLMFrameworkEnum.LLAMA_INDEX])
async def llama_index_workflow(config: LlamaConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    llm = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.LLAMA_INDEX)

    async def run(question: str) -> str:
        from llama_index.core.agent.workflow import FunctionAgent

        agent = FunctionAgent(tools=[price], llm=llm, streaming=False)
        answer = await agent.run(question)
        report_move(1, 0.25)
        return str(answer)

    yield FunctionInfo.from_fn(run)


class ForeignConfig(FunctionBaseConfig, name="test_foreign"):
    llm: str


@register_llm_client(config_type=OpenAIModelConfig, wrapper_type=LLMFrameworkEnum.AGNO)
async def foreign_model(config: OpenAIModelConfig, builder: Builder) -> AsyncIterator[AsyncOpenAI]:
    """What is beneath the model of a framework whose package is not installed here."""
    yield AsyncOpenAI(base_url=config.base_url, api_key="none")


@register_function(config_type=ForeignConfig, framework_wrappers=[])
async def foreign_workflow(config: ForeignConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    llm = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.AGNO)

    async def run(question: str) -> str:
        answer = await llm.chat.completions.create(model="agent", messages=[{"role": "user", "content": question}])
        return str(answer.choices[0].message.content)

    yield FunctionInfo.from_fn(run)


async def test_a_model_of_a_framework_that_has_no_hooks_is_trained(tmp_path: Path) -> None:
    plain = document(tmp_path)
    plain["workflow"] = {"_type": "test_foreign", "llm": "policy"}
    plain["finetuning"]["target_functions"] = ["<workflow>"]
    async with new_run(tmp_path, plain) as components:
        await run_epochs(components, 1)
        (step,) = components.run.log.view.completed.values()
        records = list(components.run.log.view.trajectories.values())
    assert len(step.trained) == 6
    assert [(record.trainable, len(record.turns)) for record in records] == [(True, 1)] * 6


@pytest.mark.parametrize("framework", ["langgraph", "llama_index"])
async def test_an_evaluator_sees_models_tools_and_steps_of_the_users_own(tmp_path: Path, framework: str) -> None:
    seen: list[list[IntermediateStep]] = []

    def by_steps(item: EvalInputItem) -> float:
        seen.append(item.trajectory)
        return sum(1 - (step.payload.metadata or {}).get("value", 1) for step in steps_of(item.trajectory)[-1:])  # type: ignore[union-attr]

    plain = document(tmp_path, examples=1, workflow=ask_by_langgraph, score=by_steps)
    if framework == "llama_index":
        plain["workflow"] = {"_type": "test_llama_index", "llm": "policy"}
    async with new_run(tmp_path, plain, Buying()) as components:
        await run_epochs(components, 1)
        records = list(components.run.log.view.trajectories.values())
    for steps in map(steps_of, seen):
        assert [step.event_type.value for step in steps] == SEEN_STEPS
        assert [step.payload.name for step in steps[2:4]] == ["price", "price"]
        assert "4" in str(steps[3].payload.data.output)  # type: ignore[union-attr]
        first, last = (str(steps[index].payload.data.input) for index in (0, 4))  # type: ignore[union-attr]
        assert "question 0" in first
        assert "question 0" in last, "every message, and not the added ones alone"
        assert [steps[index].payload.data.logprobs["token_ids"] for index in (1, 5)]  # type: ignore[union-attr]
    assert [(record.trainable, len(record.turns)) for record in records] == [(True, 2)] * 2
    assert [report.value for record in records for report in record.rewards] == [0.75, 0.75]


def steps_of(trajectory: list[IntermediateStep]) -> list[IntermediateStep]:
    return [step for step in trajectory if step.event_type.value in SEEN_STEPS]


class SlowFirst(Endpoint):
    """Answers calls side by side, the last one first: "1", "12" and again "12", each of other tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.before = self.wait_for_later_calls
        self.answered_letters = {letter: threading.Event() for letter in "abc"}

    def wait_for_later_calls(self, request: dict[str, Any]) -> None:
        later = {"a": "b", "b": "c"}.get(request["messages"][-1]["content"][-1])
        if later is not None:
            assert self.answered_letters[later].wait(20.0)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        answer, letter = super().answer(request), request["messages"][-1]["content"][-1]
        answer["choices"][0]["message"]["content"] = "1" if letter == "a" else "12"
        answer["choices"][0]["token_ids"] = [ord(letter)]
        self.answered_letters[letter].set()
        return answer


@pytest.mark.parametrize("call", ["invoked", "streamed"])
async def test_calls_side_by_side_have_their_own_tokens(tmp_path: Path, call: str) -> None:
    token_ids_by_input: dict[str, list[int]] = {}

    async def ask_side_by_side(question: str, llm: Any) -> str:
        prompts = [[HumanMessage(f"{question} {letter}")] for letter in "abc"]
        await llm.agenerate(prompts, stream=call == "streamed")
        return "2"

    def by_steps(item: EvalInputItem) -> float:
        for step in item.trajectory:
            if step.event_type is IntermediateStepType.LLM_END:
                token_ids_by_input[str(step.payload.data.input)] = step.payload.data.logprobs["token_ids"]  # type: ignore[union-attr]
        return 1.0

    plain = document(tmp_path, examples=1, workflow=ask_side_by_side, score=by_steps)
    plain["trajectory_builders"]["b"]["num_generations"] = 1
    endpoint = SlowFirst()
    async with new_run(tmp_path, plain, endpoint) as components:
        await components.builder.start_run(RUN, {"epoch": 0})
        await components.builder.finalize(RUN, {"epoch": 0})
    assert {bool(request.get("stream")) for request in endpoint.requests} == {call == "streamed"}
    assert token_ids_by_input == {f"question 0 {letter}": [ord(letter)] for letter in "abc"}


def model_end(text: str, name: str = "", **payload: Any) -> IntermediateStep:
    """The end of a model's call, as a framework reports it."""
    data = StreamEventData(output=text, payload=payload or None)
    return IntermediateStep(
        parent_id="root",
        function_ancestry=InvocationNode(function_name="f", function_id="f"),
        payload=IntermediateStepPayload(
            event_type=IntermediateStepType.LLM_END,
            event_timestamp=2.0,
            span_event_timestamp=1.0,
            UUID=f"call-{name}",
            data=data,
        ),
    )


@pytest.mark.parametrize(
    "payloads",
    [
        [{"message": {"response_metadata": {"id": name}}} for name in "abc"],
        [{"message": {"role": "assistant"}, "raw": {"id": name}} for name in "abc"],
    ],
    ids=["langchain", "llama_index"],
)
def test_an_answer_has_the_tokens_of_the_call_with_its_id(payloads: list[dict[str, Any]]) -> None:
    texts = ("1", "12", "12")
    turns = [
        make_turn(sequence=number, text=text, response_id=name)
        for number, (name, text) in enumerate(zip("abc", texts, strict=True), 1)
    ]
    steps = [model_end(text, **payload) for text, payload in zip(texts, payloads, strict=True)]
    assert turns_of_answers(steps[::-1], turns) == {0: turns[2], 1: turns[1], 2: turns[0]}
    second = make_turn(sequence=4, text="12", response_id="b", choice=1)
    assert turns_of_answers(steps, [*turns, second]) == dict(enumerate(turns)), "frameworks go on with the first choice"


@pytest.mark.parametrize(
    ("step_texts", "turn_texts", "pairs"),
    [
        (("12", "1", "1 and more"), ("1", "12"), {0: 1, 1: 0}),
        (("1 and more",), ("1", "2"), {0: 0}),
        (("12 and more",), ("1", "12"), {}),
        (("12", "12"), ("12", "12"), {}),
        (("12", "12"), ("12", "3"), {}),
        (("12", "3"), ("12", "12", "3"), {1: 2}),
    ],
)
def test_an_answer_without_an_id_has_tokens_if_its_text_fits_one_call(
    step_texts: tuple[str, ...],
    turn_texts: tuple[str, ...],
    pairs: dict[int, int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    turns = [make_turn(sequence=number, text=text, response_id="same") for number, text in enumerate(turn_texts, 1)]
    steps = [model_end(text, str(index)) for index, text in enumerate(step_texts)]
    assert turns_of_answers(steps, turns) == {index: turns[place] for index, place in pairs.items()}
    for index in range(len(steps)):
        is_refused = index not in pairs and step_texts[index] != "1 and more"
        assert (f"model call call-{index} " in caplog.text) is is_refused
