"""A board → the chat messages of one turn; a reply → a cell or None; a result → its reward; such turns → a game.

Every turn is a fresh prompt: with earlier boards in sight a model this small names digits that are no
longer free.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from rollbus.demo.game.game import MODEL, OPPONENT, Board, Opening, Reply, Result, begin, line_cells, play

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam
    from openai.types.chat.chat_completion import Choice

TASK = "tictactoe"
SYSTEM = "you play x. answer with the digit of a free cell."
MAX_REPLY_TOKENS = 2
"""The digit and the end of the message; a longer reply is not a move."""

REWARDS = {Result.WIN: 1.0, Result.DRAW: 0.5, Result.LOSS: 0.0, Result.ILLEGAL: -0.25}
"""Illegal is worse than a loss, or a lost position would give no reason to stay legal."""
Ask = Callable[[Board, int], Awaitable[str | None]]
"""A board and the number of the turn, from 0 → the model's reply."""


def board_text(board: Board) -> str:
    """Three rows, a free cell as the digit that takes it; then the cells that complete a line of x, and of o.

    Every X is the same token wherever it stands, so a model this small does not find lines by itself.
    """
    x, o = ("".join(map(str, line_cells(board, mark))) for mark in (MODEL, OPPONENT))
    return f"{board[:3]}\n{board[3:6]}\n{board[6:]}\nx {x}\no {o}"


def messages(board: Board) -> "list[ChatCompletionMessageParam]":
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": board_text(board)}]


def parse_cell(reply: str | None) -> int | None:
    """The cell the reply names; None if it is anything but one digit from 1 to 9."""
    return int(reply) if reply and len(reply) == 1 and reply in "123456789" else None


def reward(result: Result) -> float:
    return REWARDS[result]


async def play_game(opening: Opening, reply: Reply, ask: Ask) -> Result:
    """Play to the end; every turn is one request."""
    position, turn = begin(opening, reply), 0
    while position.result is None:
        answer = await ask(position.board, turn)
        position, turn = play(position, parse_cell(answer), reply), turn + 1
    return position.result


def read_whole_reply(choice: "Choice") -> str | None:
    """Return the text of a reply that the model ended itself; None if it was cut off, and so is not a move."""
    return choice.message.content if choice.finish_reason == "stop" else None
