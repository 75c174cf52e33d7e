"""Tic-tac-toe as a workflow and its reward, as in the toolkit's own example, by the rules of rollbus' demo game.

An example is an opening and an opponent; the model plays X from there, one request a move.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

from nat.builder.builder import Builder
from nat.builder.evaluator import EvaluatorInfo
from nat.builder.framework_enum import LLMFrameworkEnum
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_evaluator, register_function
from nat.data_models.evaluator import EvalInputItem, EvaluatorBaseConfig
from nat.data_models.function import FunctionBaseConfig
from nat.plugins.eval.data_models.evaluator_io import EvalOutputItem
from nat.plugins.eval.evaluator.base_evaluator import BaseEvaluator

from rollbus.demo.game.game import Board, Opening, Result, seeded
from rollbus.demo.game.prompt import MAX_REPLY_TOKENS, messages, play_game, reward


class PlayConfig(FunctionBaseConfig, name="tictactoe"):
    """Chosen in YAML as `_type: tictactoe`."""

    llm: str


class OutcomeConfig(EvaluatorBaseConfig, name="tictactoe_outcome"):
    """Chosen in YAML as `_type: tictactoe_outcome`."""


class Outcome(BaseEvaluator):
    """Says what a game was worth."""

    async def evaluate_item(self, item: EvalInputItem) -> EvalOutputItem:
        """Return the game's reward."""
        return EvalOutputItem(id=item.id, score=reward(Result(item.output_obj)), reasoning=item.output_obj)


@register_function(config_type=PlayConfig, framework_wrappers=[LLMFrameworkEnum.LANGCHAIN])
async def tictactoe(config: PlayConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    """Yield the workflow."""
    llm: Any = await builder.get_llm(config.llm, wrapper_type=LLMFrameworkEnum.LANGCHAIN)

    async def play(example: str) -> str:
        """Play one game and return how it ended: win, draw, loss or illegal."""

        async def ask(board: Board, turn: int) -> str | None:
            answer = await llm.ainvoke(messages(board), max_completion_tokens=MAX_REPLY_TOKENS)
            is_whole = answer.response_metadata.get("finish_reason") == "stop"  # cut off, it is not a move
            return str(answer.content) if is_whole else None

        row = json.loads(example)
        opening = Opening(row["first"], tuple(row["moves"]))
        result = await play_game(opening, seeded(row["opponent"]), ask)
        return result.value

    yield FunctionInfo.from_fn(play, description="One game of tic-tac-toe.")


@register_evaluator(config_type=OutcomeConfig)
async def tictactoe_outcome(config: OutcomeConfig, builder: Any) -> AsyncIterator[EvaluatorInfo]:
    """Yield the evaluator."""
    evaluator = Outcome(max_concurrency=64, tqdm_desc="Scoring games")
    yield EvaluatorInfo(config=config, evaluate_fn=evaluator.evaluate, description="What a game was worth.")
