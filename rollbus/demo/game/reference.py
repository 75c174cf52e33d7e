"""What players of known strength score, by exact recursion: the reference lines of the demo.

A player is how it combines the values of the free cells into the value of the board: the mean of those it
chooses from, or the greatest.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache

from rollbus.demo.game.game import MODEL, OPPONENT, Board, Opening, Result, free_cells, line_cells, place, result_of

CELL_ORDER = (5, 1, 9, 3, 7, 2, 8, 4, 6)
"""Centre, corners, edges: the best order for a player that ignores lines."""


@dataclass(frozen=True, slots=True)
class Value:
    """Shares of games, which add up to 1."""

    win: float
    draw: float
    loss: float

    @property
    def score(self) -> float:
        return self.win + self.draw / 2


_FINAL = {
    Result.WIN: Value(1.0, 0.0, 0.0),
    Result.DRAW: Value(0.0, 1.0, 0.0),
    Result.LOSS: Value(0.0, 0.0, 1.0),
}

Combine = Callable[[Board, dict[int, Value]], Value]
"""A board with X to move and the value of each free cell → the value of the board for this player."""


def uniform(board: Board, values: dict[int, Value]) -> Value:
    """Any legal cell."""
    return _mean(values.values())


def fixed_order(board: Board, values: dict[int, Value]) -> Value:
    """The first free cell of `CELL_ORDER`."""
    return values[next(cell for cell in CELL_ORDER if cell in values)]


def lines_first(board: Board, values: dict[int, Value]) -> Value:
    """A cell that completes a line; else one that blocks a line; else the first free cell of `CELL_ORDER`."""
    line_moves = line_cells(board, MODEL) or line_cells(board, OPPONENT)
    return _mean(values[cell] for cell in line_moves) if line_moves else fixed_order(board, values)


def optimum(board: Board, values: dict[int, Value]) -> Value:
    """The cell with the greatest wins + draws/2."""
    return max(values.values(), key=lambda value: value.score)


def value_on(openings: Iterable[Opening], player: Combine) -> Value:
    """The mean over the openings, each equally likely, against an opponent that plays any free cell."""

    @cache
    def value(board: Board, to_move: str) -> Value:
        if result := result_of(board):
            return _FINAL[result]
        if to_move == MODEL:
            cells = {cell: value(place(board, cell, MODEL), OPPONENT) for cell in free_cells(board)}
            return player(board, cells)
        return _mean(value(place(board, cell, OPPONENT), MODEL) for cell in free_cells(board))

    return _mean(value(opening.board, opening.to_move) for opening in openings)


def _mean(values: Iterable[Value]) -> Value:
    rows = list(values)
    return Value(
        win=sum(row.win for row in rows) / len(rows),
        draw=sum(row.draw for row in rows) / len(rows),
        loss=sum(row.loss for row in rows) / len(rows),
    )
