"""A game as the toolkit's finetuning example plays one: a synchronous chain, moves asked again, rewards of steps.

Rules, prompt and rewards are those of the demo's game: no released package holds the toolkit's example. Here is what a
workflow of its kind does that others do not: it calls its chain without `await`, asks again after an illegal move, and
reports a step of its own for each move, of which the evaluator makes the reward.
"""

from pathlib import Path
from typing import Any

import pytest
from nat.builder.context import Context
from nat.data_models.evaluator import EvalInputItem
from nat.data_models.finetuning import TrainingStatusEnum
from nat.data_models.intermediate_step import IntermediateStepPayload, IntermediateStepType

from rollbus.demo.game.game import Opening, begin, free_cells, play, seeded
from rollbus.demo.game.prompt import SYSTEM, board_text, parse_cell, reward
from rollbus.nemo.runs.outputs import Outputs
from tests.nemo.world import Endpoint, document, new_run, run_epochs

pytestmark = pytest.mark.filterwarnings("ignore")  # of what the toolkit imports
GAMES, EPOCHS, TRIES, STEP = 4, 3, 3, "game_move"


class Player(Endpoint):
    """Takes a free cell; every fifth answer is not a move."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = super().answer(request)
        number, free = len(self.requests), [letter for letter in request["messages"][-1]["content"] if letter.isdigit()]
        answer["choices"][0]["message"]["content"] = "I pass." if number % 5 == 0 else free[number % len(free)]
        return answer


async def play_in_steps(question: str, llm: Any) -> str:
    """Play one game; the question seeds the opponent."""
    from langchain_core.output_parsers import StrOutputParser
    from langchain_core.prompts import ChatPromptTemplate

    chain = ChatPromptTemplate.from_messages([("system", SYSTEM), ("human", "{board}")]) | llm | StrOutputParser()
    reply = seeded(question)
    position, move = begin(Opening("X", ()), reply), 0
    while position.result is None:
        cells = (parse_cell(chain.invoke({"board": board_text(position.board)})) for _ in range(TRIES))
        cell = next((cell for cell in cells if cell in free_cells(position.board)), None)
        position, move = play(position, cell, reply), move + 1
        report_move(move, 0.5 if position.result is None else reward(position.result))
    return position.result.value


def report_move(move: int, value: float) -> None:
    manager = Context.get().intermediate_step_manager  # knows which of its steps are open
    for kind in (IntermediateStepType.CUSTOM_START, IntermediateStepType.CUSTOM_END):
        step = IntermediateStepPayload(event_type=kind, name=STEP, UUID=f"move-{move}", metadata={"value": value})
        manager.push_intermediate_step(step)


def mean_of_steps(item: EvalInputItem) -> float:
    """The reward: what the moves were worth, on average."""
    ends = [step.payload for step in item.trajectory if step.event_type is IntermediateStepType.CUSTOM_END]
    values = [end.metadata["value"] for end in ends if end.name == STEP]  # type: ignore[index]
    return float(sum(values) / len(values))


async def test_a_game_with_repeated_moves_is_scored_by_its_steps_and_trained(
    tmp_path: Path,
) -> None:
    plain = document(tmp_path, examples=GAMES, workflow=play_in_steps, score=mean_of_steps)
    plain["trajectory_builders"]["b"]["num_generations"] = 1
    async with new_run(tmp_path, plain, player := Player()) as components:
        statuses = await run_epochs(components, EPOCHS)
        view = components.run.log.view
    assert [status.status for status in statuses] == [TrainingStatusEnum.COMPLETED] * EPOCHS
    records = list(view.trajectories.values())
    assert len(records) == GAMES * EPOCHS
    assert all(record.trainable for record in records)
    assert sum(len(record.turns) for record in records) == len(player.requests), "also the moves that were asked again"
    assert view.completed, "an attempt is compared with the earlier ones of its example"
    assert len({report.value for record in records for report in record.rewards}) > 1
    assert all(row["num_trajectories"] == GAMES for row in Outputs(tmp_path / "output").training_rows())
