"""Prompts, replies and rewards."""

import pytest

from rollbus.demo.game.game import Result
from rollbus.demo.game.prompt import messages, parse_cell, reward


def test_a_prompt_is_the_rules_and_the_board_of_this_turn_only() -> None:
    system, user = messages("1OXOX6789")
    assert system["role"] == "system"
    assert user == {"role": "user", "content": "1OX\nOX6\n789\nx 7\no "}


@pytest.mark.parametrize(
    ("reply", "cell"),
    [("5", 5), ("1", 1), ("0", None), ("", None), (None, None), ("55", None), ("x", None), ("²", None)],
)
def test_only_a_single_digit_is_a_move(reply: str | None, cell: int | None) -> None:
    assert parse_cell(reply) == cell


def test_rewards_fall_from_win_to_illegal() -> None:
    assert [reward(result) for result in Result] == [1.0, 0.5, 0.0, -0.25]
