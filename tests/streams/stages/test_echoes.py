"""An answer that two sides recorded is one turn."""

from typing import Any

from rollbus.streams.stages.assembly.trajectory import without_echoes
from tests.builders import make_turn

HOOK: dict[str, Any] = {"untrainable": "not_captured", "writer": "hook", "function": "planner"}


def test_a_hooks_echo_goes_and_leaves_its_functions_name() -> None:
    echo, real = make_turn(response_id="r1", **HOOK), make_turn(response_id="r1", writer="proxy")
    (turn,) = without_echoes([echo, real])
    assert (turn.writer_id, turn.function, turn.trainable) == ("proxy", "planner", True)


def test_a_hooks_turn_without_another_record_of_its_answer_stays() -> None:
    echo, other = make_turn(response_id="r1", **HOOK), make_turn(response_id="r2", writer="proxy")
    assert list(without_echoes([echo, other])) == [echo, other]


def test_answers_without_ids_are_never_taken_for_one_another() -> None:
    echo, other = make_turn(response_id=None, **HOOK), make_turn(response_id=None, writer="proxy")
    assert list(without_echoes([echo, other])) == [echo, other]


def test_only_the_choice_that_was_recorded_twice_goes() -> None:
    first, second = (make_turn(response_id="r1", choice=choice, **HOOK) for choice in (0, 1))
    real = make_turn(response_id="r1", choice=1, writer="proxy", function="own")
    assert list(without_echoes([first, second, real])) == [first, real]
