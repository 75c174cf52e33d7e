"""One game between a model behind an OpenAI-compatible endpoint and an opponent: what agents and evaluation share."""

from collections.abc import Awaitable, Callable

from openai.types.chat.chat_completion import Choice

from rollbus.demo.game import Board, Opening, Reply, Result, begin, play
from rollbus.demo.prompt import cell_named

Ask = Callable[[Board, int], Awaitable[str | None]]
"""A board and the number of the turn, from 0 → what the model said."""


async def play_game(opening: Opening, reply: Reply, ask: Ask) -> Result:
    """Play to the end; every turn is one request."""
    position, turn = begin(opening, reply), 0
    while position.result is None:
        said = await ask(position.board, turn)
        position, turn = play(position, cell_named(said), reply), turn + 1
    return position.result


def whole_reply(choice: Choice) -> str | None:
    """The text of a reply that the model ended itself; None if it was cut off, and so is no move."""
    return choice.message.content if choice.finish_reason == "stop" else None
