"""The opponent: it may choose any free cell, among which a hash of seed and board decides.

So it is a pure function: all attempts of a group meet the same replies wherever they reach the same board, and an
evaluation can be repeated game by game.
"""

from hashlib import blake2b

from rollbus.demo.game.game import Board, Reply, free_cells


def seeded(seed: int | str) -> Reply:
    """The opponent whose chance is fixed by `seed`."""

    def reply(board: Board) -> int:
        cells = free_cells(board)
        digest = blake2b(f"{seed}:{board}".encode(), digest_size=8).digest()
        return cells[int.from_bytes(digest) % len(cells)]

    return reply
