"""An evaluator of the toolkit's ATIF kind, which is given samples and not items."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nat.builder.evaluator import EvaluatorInfo
from nat.cli.register_workflow import register_evaluator
from nat.data_models.evaluator import EvaluatorBaseConfig
from nat.plugins.eval.data_models.evaluator_io import EvalOutput, EvalOutputItem

from rollbus.nemo.trainer import BusTrainer
from tests.nemo.world import document, new_run

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks


class AtifConfig(EvaluatorBaseConfig, name="test_atif"):
    pass


@register_evaluator(config_type=AtifConfig)
async def atif_evaluator(config: AtifConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    async def evaluate(samples: Any) -> EvalOutput:
        items = [EvalOutputItem(id=sample.item_id, score=1.0, reasoning="") for sample in samples]
        return EvalOutput(average_score=None, eval_output_items=items)

    info = EvaluatorInfo(config=config, evaluate_fn=None, description="a test's")
    info.evaluate_atif_fn = evaluate  # type: ignore[attr-defined]  # where the toolkit looks
    yield info


async def crash_at_two(question: str, llm: Any) -> str:
    if question.endswith("2"):
        raise ValueError("no such question")
    return str((await llm.ainvoke(question)).content)


async def test_an_example_that_crashes_counts_once(tmp_path: Path) -> None:
    plain = document(tmp_path, workflow=crash_at_two)
    plain["eval"]["evaluators"]["good"] = {"_type": "test_atif"}
    async with new_run(tmp_path, plain, validation_dataset=str(tmp_path / "train.json")) as components:
        assert isinstance(components.trainer, BusTrainer)
        metrics = await components.trainer.run_validation_evaluation(0, "run")
    assert (metrics["num_examples"], metrics["rewards"]) == (3, [1.0, 1.0, 0.0])
