"""Tic-tac-toe as a workflow and its reward: the toolkit's own example, on rollbus' demo game.

An example is an opening and an opponent; the model plays X from there, one request a move.
"""

from typing import Any

from rollbus.demo.game.game import Board, Opening, Result
from rollbus.demo.game.opponents import seeded
from rollbus.demo.game.playing import play_game, read_whole_reply
from rollbus.demo.game.prompt import MAX_REPLY_TOKENS, messages, reward
from rollbus.harness import EvalInputItem, EvalOutputItem


async def play(example: dict[str, Any], llm: Any) -> str:
    """Play one game and return how it ended: win, draw, loss or illegal."""

    async def ask(board: Board, turn: int) -> str | None:
        answer = await llm.chat(messages(board), max_completion_tokens=MAX_REPLY_TOKENS)
        return read_whole_reply(answer.choices[0])

    opening = Opening(example["first"], tuple(example["moves"]))
    result = await play_game(opening, seeded(example["opponent"]), ask)
    return result.value


def score(item: EvalInputItem) -> EvalOutputItem:
    """Return what a game was worth."""
    return EvalOutputItem(id=item.id, score=reward(Result(item.output_obj)), reasoning=item.output_obj)
