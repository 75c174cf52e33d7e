"""The opponents: each is the cells it may choose from, among which a hash of seed and board decides.

So an opponent is a pure function: all attempts of a group meet the same replies wherever they reach the
same board, and an evaluation can be repeated game by game.
"""

from collections.abc import Callable
from enum import StrEnum
from hashlib import blake2b

from rollbus.demo.game import MODEL, OPPONENT, Board, Reply, free_cells, has_line, place

Candidates = Callable[[Board], tuple[int, ...]]
"""A board with O to move → the cells O chooses from, all equally likely."""


class OpponentName(StrEnum):
    RANDOM = "random"
    WIN_OR_BLOCK = "win-or-block"


def random_cells(board: Board) -> tuple[int, ...]:
    return free_cells(board)


def win_or_block_cells(board: Board) -> tuple[int, ...]:
    """A cell that wins at once; else one that stops X from winning at once; else any."""
    free = free_cells(board)
    for mark in (OPPONENT, MODEL):
        if winning := tuple(cell for cell in free if has_line(place(board, cell, mark), mark)):
            return winning
    return free


CANDIDATES: dict[OpponentName, Candidates] = {
    OpponentName.RANDOM: random_cells,
    OpponentName.WIN_OR_BLOCK: win_or_block_cells,
}


def seeded(opponent: OpponentName, seed: int | str) -> Reply:
    """The opponent whose chance is fixed by `seed`."""
    candidates = CANDIDATES[opponent]

    def reply(board: Board) -> int:
        cells = candidates(board)
        digest = blake2b(f"{seed}:{board}".encode(), digest_size=8).digest()
        return cells[int.from_bytes(digest) % len(cells)]

    return reply
