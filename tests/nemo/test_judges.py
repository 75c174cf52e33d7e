"""What users of other frameworks complain of: scores that are not numbers, judges that say nothing, branched calls."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from nat.builder.evaluator import EvaluatorInfo
from nat.cli.register_workflow import register_evaluator
from nat.data_models.evaluator import EvalInput, EvalInputItem, EvaluatorBaseConfig
from nat.plugins.eval.data_models.evaluator_io import EvalOutput, EvalOutputItem

from rollbus.schemas.errors import RunStoppedError
from tests.nemo.test_groups import last_digit
from tests.nemo.world import RUN, document, new_run, parity, rows_in, run_epochs

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks

SCORES: dict[str, Any] = {}
"""What the first example is worth."""


class SilentConfig(EvaluatorBaseConfig, name="test_silent"):
    silent_about: list[str]


@register_evaluator(config_type=SilentConfig)
async def silent_evaluator(config: SilentConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    async def evaluate(items: EvalInput) -> EvalOutput:
        judged = [item for item in items.eval_input_items if item.id not in config.silent_about]
        outputs = [EvalOutputItem(id=item.id, score=parity(item), reasoning="") for item in judged]
        return EvalOutput(average_score=None, eval_output_items=outputs)

    yield EvaluatorInfo(config=config, evaluate_fn=evaluate, description="a test's")  # type: ignore[arg-type]  # as the toolkit's own evaluators do


def odd_one_out(item: EvalInputItem) -> Any:
    return SCORES["e0"] if item.id == "e0" else parity(item)


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, None, 10**400, 1e308])
async def test_a_score_that_is_not_finite_drops_its_attempts_alone(
    tmp_path: Path, score: Any, caplog: pytest.LogCaptureFixture
) -> None:
    SCORES["e0"] = score
    plain, dataset = document(tmp_path, score=odd_one_out), str(tmp_path / "train.json")
    async with new_run(tmp_path, plain, validation_dataset=dataset) as components:
        (status,) = await run_epochs(components, 1)
        metrics = await components.trainer.run_validation_evaluation(0, RUN)
    (row,) = rows_in(tmp_path / "output" / "training_metrics.jsonl")
    assert (row["num_trajectories"], row["num_groups"], row["avg_reward"]) == (4, 2, 0.5)
    assert (status.status.value, metrics["num_examples"]) == ("completed", 2)
    assert math.isfinite(metrics["avg_reward"])
    assert f"example e0, generation 1 has no reward: the evaluator gave it {score!r}; it says no more" in caplog.text


def silent_document(tmp_path: Path, *examples: str) -> dict[str, Any]:
    plain = document(tmp_path)
    plain["eval"]["evaluators"]["good"] = {"_type": "test_silent", "silent_about": list(examples)}
    return plain


async def test_an_example_that_a_judge_says_nothing_of_is_left_out(tmp_path: Path) -> None:
    plain, dataset = silent_document(tmp_path, "e1"), str(tmp_path / "train.json")
    async with new_run(tmp_path, plain, validation_dataset=dataset) as components:
        (status,) = await run_epochs(components, 1)
        metrics = await components.trainer.run_validation_evaluation(0, RUN)
        examples = {record.example_id for record in components.run.log.view.trajectories.values()}
    assert (status.status.value, metrics["num_examples"]) == ("completed", 2)
    (row,) = rows_in(tmp_path / "output" / "training_metrics.jsonl")
    assert (row["num_trajectories"], row["num_groups"]) == (4, 2)
    assert examples == {"e0", "e1", "e2"}, "what was played is on record"


async def test_a_silent_judge_ends_the_run_with_a_remedy(tmp_path: Path) -> None:
    async with new_run(tmp_path, silent_document(tmp_path, "e0", "e1", "e2")) as components:
        with pytest.raises(RunStoppedError, match=r"score_missing .*: 6\): see .* that the evaluator returns a score"):
            await run_epochs(components, 1)


async def branching(question: str, llm: Any) -> str:
    """One answer, and two conversations that go on from it at once."""
    first = await llm.ainvoke([HumanMessage(question)])
    sides = (f"{question} left", f"{question} right")
    branches = [llm.ainvoke([HumanMessage(question), first, HumanMessage(side)]) for side in sides]
    return str((await asyncio.gather(*branches))[0].content)


async def test_calls_that_branch_from_one_answer_are_each_trained_once(tmp_path: Path) -> None:
    async with new_run(tmp_path, document(tmp_path, workflow=branching, score=last_digit)) as components:
        await run_epochs(components, 1)
        view = components.run.log.view
        (step,) = view.completed.values()
    assert sorted(len(group.members) for group in view.groups.values()) == [2, 2, 2]
    assert len(step.trained) == 6
    for record in view.trajectories.values():
        spans = Counter(span.turn for history in record.histories for span in history.spans)
        assert spans == {0: 1, 1: 1, 2: 1}
