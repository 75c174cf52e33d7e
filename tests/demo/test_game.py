"""The rules, the openings, the opponents, and what reference players score against them."""

import pytest

from rollbus.demo.game.game import (
    EMPTY,
    GamePosition,
    Opening,
    Result,
    begin,
    free_cells,
    held_out_openings,
    line_cells,
    openings,
    place,
    play,
    result_of,
    seeded,
    training_openings,
)
from rollbus.demo.game.reference import Combine, fixed_order, lines_first, optimum, uniform, value_on


def reply_first_free(board: str) -> int:
    return free_cells(board)[0]


def test_a_board_shows_the_digits_of_its_free_cells() -> None:
    board = place(place(EMPTY, 5, "X"), 1, "O")
    assert board == "O234X6789"
    assert free_cells(board) == (2, 3, 4, 6, 7, 8, 9)


def test_a_cell_that_completes_a_line_is_known_for_either_side() -> None:
    board = "XX3OO6X89"
    assert (line_cells(board, "X"), line_cells(board, "O")) == ((3,), (6,))
    assert line_cells(EMPTY, "X") == ()


def test_placing_on_a_taken_cell_is_refused() -> None:
    with pytest.raises(ValueError, match="cell 5 of board 1234X6789 is not free"):
        place("1234X6789", 5, "O")


@pytest.mark.parametrize(
    ("board", "result"),
    [
        (EMPTY, None),
        ("XXX4O6O89", Result.WIN),
        ("OX3XO67XO", Result.LOSS),
        ("XOXXOOOXX", Result.DRAW),
        ("XOXXOO7XX", None),
    ],
)
def test_the_result_is_read_off_the_board(board: str, result: Result | None) -> None:
    assert result_of(board) == result


def test_the_opponent_moves_first_where_the_opening_leaves_it_the_move() -> None:
    assert begin(Opening("O", ()), reply_first_free) == GamePosition("O23456789")
    assert begin(Opening("X", (5,)), reply_first_free) == GamePosition("O234X6789")
    assert begin(Opening("O", (5,)), reply_first_free) == GamePosition("1234O6789")


def test_a_turn_is_the_models_move_and_the_opponents_answer() -> None:
    assert play(GamePosition("O234X6789"), 9, reply_first_free) == GamePosition("OO34X678X")


def test_a_line_of_the_model_wins_before_the_opponent_answers() -> None:
    assert play(GamePosition("OO34X67XX"), 7, reply_first_free) == GamePosition("OO34X6XXX", Result.WIN)


@pytest.mark.parametrize("cell", [None, 1, 5])
def test_no_move_or_a_taken_cell_is_illegal_and_ends_the_game(cell: int | None) -> None:
    assert play(GamePosition("O234X6789"), cell, reply_first_free) == GamePosition("O234X6789", Result.ILLEGAL)


def test_twenty_nine_of_164_openings_are_held_out() -> None:
    assert len(openings()) == len({(o.board, o.to_move) for o in openings()}) == 164
    assert len(held_out_openings()) == 29
    assert {len(o.moves) for o in held_out_openings()} == {2}
    assert sum(o.first == "X" for o in held_out_openings()) == 15
    assert not {o.id for o in held_out_openings()} & {o.id for o in training_openings()}
    assert len(training_openings()) == 135


def test_the_held_out_openings_are_about_as_hard_as_those_played_from() -> None:
    for player in (uniform, fixed_order, optimum):
        held_out, played = (value_on(some, player) for some in (held_out_openings(), training_openings()))
        assert held_out.win == pytest.approx(played.win, abs=0.02)


def test_an_opponent_gives_the_same_reply_for_the_same_seed_and_board() -> None:
    boards = [o.board for o in openings()]
    first, again, another = (seeded(seed) for seed in (1, 1, 2))
    assert [first(board) for board in boards] == [again(board) for board in boards]
    assert [first(board) for board in boards] != [another(board) for board in boards]
    assert all(first(board) in free_cells(board) for board in boards)


def test_random_players_on_the_empty_board_have_the_known_score() -> None:
    value = value_on([Opening("X", ())], uniform)
    assert (value.win, value.draw, value.loss) == pytest.approx((0.5849, 0.1270, 0.2881), abs=5e-5)


@pytest.mark.parametrize(
    ("player", "win", "draw", "loss"),
    [
        (uniform, 44.9, 12.5, 42.6),
        (fixed_order, 62.4, 9.8, 27.8),
        (lines_first, 87.4, 10.9, 1.7),
        (optimum, 93.0, 5.2, 1.8),
    ],
)
def test_reference_players_on_the_held_out_openings(player: Combine, win: float, draw: float, loss: float) -> None:
    value = value_on(held_out_openings(), player)
    assert (100 * value.win, 100 * value.draw, 100 * value.loss) == pytest.approx((win, draw, loss), abs=0.051)
