"""Attempts at one example are one group, whatever each of them asked and in whatever order."""

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from nat.data_models.evaluator import EvalInputItem

from tests.nemo.world import document, new_run, rows_in, run_epochs

pytestmark = pytest.mark.filterwarnings("ignore")  # of the frameworks


def last_digit(item: EvalInputItem) -> float:
    return float(int(str(item.output_obj)[-1]) % 2 == 0)


async def again(question: str, llm: Any) -> str:
    """The second function: what it asks begins with what the first was answered."""
    return f"{(await llm.ainvoke(f'And {question}?')).content} of {question}"


async def first_of_two(question: str, llm: Any) -> str:
    return f"{question} is {(await llm.ainvoke(question)).content}"


async def test_a_targeted_second_function_is_trained_by_example(tmp_path: Path) -> None:
    plain = document(tmp_path, workflow=first_of_two, score=last_digit, target_functions=["second"])
    document(tmp_path, workflow=again, score=last_digit)
    first = plain["workflow"]
    plain["functions"] = {"first": first, "second": {**first, "how": again.__name__}}
    plain["workflow"] = {"_type": "sequential_executor", "tool_list": ["first", "second"]}
    async with new_run(tmp_path, plain) as components:
        await run_epochs(components, 1)
        view = components.run.log.view
        (step,) = view.completed.values()
    assert sorted(len(group.members) for group in view.groups.values()) == [2, 2, 2]
    assert len(step.trained) == 6
    functions = {
        record.turns[span.turn].function
        for record in view.trajectories.values()
        for history in record.histories
        for span in history.spans
    }
    assert functions == {"second"}, "what the first was answered is not trained"
    assert dict(view.drop_reasons) == {}


ORDER = itertools.count()


async def side_by_side(question: str, llm: Any) -> str:
    """Two calls at once; which of them is recorded first changes from attempt to attempt."""
    sides = ["left", "right"] if next(ORDER) % 2 else ["right", "left"]
    answers = await asyncio.gather(*(llm.ainvoke(f"{question} {side}") for side in sides))
    return str(answers[sides.index("left")].content)


async def test_two_calls_side_by_side_lose_no_attempt(tmp_path: Path) -> None:
    plain = document(tmp_path, workflow=side_by_side, score=last_digit)
    async with new_run(tmp_path, plain) as components:
        await run_epochs(components, 1)
        view = components.run.log.view
    (row,) = rows_in(tmp_path / "output" / "training_metrics.jsonl")
    assert (row["num_trajectories"], row["num_groups"]) == (6, 3)
    assert not [reason for reason in view.drop_reasons.values() if reason.startswith("group_mismatch")]
