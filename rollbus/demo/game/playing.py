"""One game between a model behind an OpenAI-compatible endpoint and an opponent: what agents and evaluation share."""

from collections.abc import Awaitable, Callable

from openai.types.chat.chat_completion import Choice

from rollbus.demo.game.game import Board, Opening, Reply, Result, begin, play
from rollbus.demo.game.prompt import parse_cell

Ask = Callable[[Board, int], Awaitable[str | None]]
"""A board and the number of the turn, from 0 → the model's reply."""


async def play_game(opening: Opening, reply: Reply, ask: Ask) -> Result:
    """Play to the end; every turn is one request."""
    position, turn = begin(opening, reply), 0
    while position.result is None:
        answer = await ask(position.board, turn)
        position, turn = play(position, parse_cell(answer), reply), turn + 1
    return position.result


def read_whole_reply(choice: Choice) -> str | None:
    """Return the text of a reply that the model ended itself; None if it was cut off, and so is not a move."""
    return choice.message.content if choice.finish_reason == "stop" else None
