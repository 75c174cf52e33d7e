"""Tic-tac-toe as pure functions: a board and a move in, a board and perhaps a result out.

A board is its nine cells in reading order as one string: `X`, `O`, or the cell's own digit where it is
free, so that the text the model reads is the board itself. The model always plays X and the opponent O;
either may move first. Among the opponent's free cells a hash of seed and board decides: so all attempts of a group meet
the same replies wherever they reach the same board, and an evaluation can be repeated game by game.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from hashlib import blake2b

Board = str
Reply = Callable[[Board], int]
"""The opponent: a board with O to move → the cell it takes."""

EMPTY: Board = "123456789"
MODEL, OPPONENT = "X", "O"
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
HELD_OUT_EVERY = 5
"""29 of the 144 openings with two moves; agents never start a game from one of these."""


class Result(StrEnum):
    """How a game ended, seen from the model's side."""

    WIN = "win"
    DRAW = "draw"
    LOSS = "loss"
    ILLEGAL = "illegal"


@dataclass(frozen=True, slots=True)
class GamePosition:
    """A board with the model to move, or a finished game."""

    board: Board
    result: Result | None = None


@dataclass(frozen=True)
class Opening:
    """The moves made before the game starts; `X51` means X took 5, then O took 1."""

    first: str
    """The mark that moved, or will move, first."""
    moves: tuple[int, ...]

    @cached_property
    def id(self) -> str:
        return self.first + "".join(map(str, self.moves))

    @cached_property
    def board(self) -> Board:
        board, mark = EMPTY, self.first
        for cell in self.moves:
            board, mark = place(board, cell, mark), other(mark)
        return board

    @cached_property
    def to_move(self) -> str:
        return self.first if len(self.moves) % 2 == 0 else other(self.first)


def other(mark: str) -> str:
    return OPPONENT if mark == MODEL else MODEL


def free_cells(board: Board) -> tuple[int, ...]:
    return tuple(int(cell) for cell in board if cell.isdigit())


def place(board: Board, cell: int, mark: str) -> Board:
    if cell not in free_cells(board):
        raise ValueError(f"cell {cell} of board {board} is not free; ask `free_cells` first")
    return board[: cell - 1] + mark + board[cell:]


def has_line(board: Board, mark: str) -> bool:
    return any(board[a] == board[b] == board[c] == mark for a, b, c in LINES)


def line_cells(board: Board, mark: str) -> tuple[int, ...]:
    """Return the free cells that would complete a line of `mark`."""
    return tuple(cell for cell in free_cells(board) if has_line(place(board, cell, mark), mark))


def result_of(board: Board) -> Result | None:
    """Return the result on the board, or None while the game continues."""
    if has_line(board, MODEL):
        return Result.WIN
    if has_line(board, OPPONENT):
        return Result.LOSS
    return None if free_cells(board) else Result.DRAW


def begin(opening: Opening, reply: Reply) -> GamePosition:
    """The first position the model sees; the opponent moves first if it is its turn."""
    if opening.to_move == MODEL:
        return GamePosition(opening.board)
    return _after_reply(opening.board, reply)


def play(position: GamePosition, cell: int | None, reply: Reply) -> GamePosition:
    """The model takes `cell` and the opponent answers. None, or a taken cell, ends the game as illegal."""
    if cell is None or cell not in free_cells(position.board):
        return GamePosition(position.board, Result.ILLEGAL)
    board = place(position.board, cell, MODEL)
    result = result_of(board)
    return GamePosition(board, result) if result else _after_reply(board, reply)


def _after_reply(board: Board, reply: Reply) -> GamePosition:
    board = place(board, reply(board), OPPONENT)
    return GamePosition(board, result_of(board))


def openings() -> tuple[Opening, ...]:
    """All 164: either side first, none to two moves made."""
    return tuple(Opening(first, moves) for first in (MODEL, OPPONENT) for moves in _move_lists())


def held_out_openings() -> tuple[Opening, ...]:
    """The openings of the evaluation: of those with two moves every fifth, in the order of their kind.

    Openings of one kind are the same but for turning and mirroring the board; so each kind has its share, and the
    held-out ones are about as hard as the others.
    """
    two_moves = [opening for opening in openings() if len(opening.moves) == 2]
    by_kind = sorted(two_moves, key=lambda opening: (_kind(opening), opening.first, _digest(opening.id)))
    return tuple(sorted(by_kind[::HELD_OUT_EVERY], key=lambda opening: opening.id))


def training_openings() -> tuple[Opening, ...]:
    held_out = {opening.id for opening in held_out_openings()}
    return tuple(opening for opening in openings() if opening.id not in held_out)


def _move_lists() -> Iterator[tuple[int, ...]]:
    cells = range(1, 10)
    yield ()
    yield from ((a,) for a in cells)
    yield from ((a, b) for a in cells for b in cells if a != b)


def _kind(opening: Opening) -> tuple[int, ...]:
    """The least of the eight ways to turn and mirror the moves."""
    return min(tuple(cells[cell - 1] for cell in opening.moves) for cells in _symmetries())


@cache
def _symmetries() -> tuple[tuple[int, ...], ...]:
    """For each turn and mirror image of the board, where every cell goes."""
    turned: list[tuple[int, ...]] = [(1, 2, 3, 4, 5, 6, 7, 8, 9)]
    for _ in range(3):
        last = turned[-1]
        turned.append(tuple(last[cell] for cell in (6, 3, 0, 7, 4, 1, 8, 5, 2)))
    mirrored = [tuple(cells[cell] for cell in (2, 1, 0, 5, 4, 3, 8, 7, 6)) for cells in turned]
    return (*turned, *mirrored)


def _digest(text: str) -> bytes:
    return blake2b(text.encode(), digest_size=8).digest()


def seeded(seed: int | str) -> Reply:
    """The opponent whose chance is fixed by `seed`."""

    def reply(board: Board) -> int:
        cells = free_cells(board)
        digest = blake2b(f"{seed}:{board}".encode(), digest_size=8).digest()
        return cells[int.from_bytes(digest) % len(cells)]

    return reply
