"""The player that the game's base model copies."""

import pytest

from rollbus.demo.warm_start import beginner


def test_a_beginner_completes_a_line_now_and_then() -> None:
    assert beginner("XX3OO6789", sees_lines=0.25) == pytest.approx({3: 0.4, 6: 0.15, 7: 0.15, 8: 0.15, 9: 0.15})


def test_a_beginner_blocks_where_there_is_no_line_to_complete() -> None:
    assert beginner("X23OO6789", sees_lines=0.5)[6] == pytest.approx(0.5 + 0.5 / 6)


def test_a_beginner_takes_any_free_cell_where_there_is_no_line() -> None:
    assert beginner("123456789", sees_lines=0.25) == pytest.approx(dict.fromkeys(range(1, 10), 1 / 9))
