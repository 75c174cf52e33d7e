"""JSON is spelled so that its reader gets the same value; a value that it cannot get is refused."""

import json
import random
from typing import Any

import pytest

from rollbus.consumers.export.numbers import UnfitRowError, exact_json


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.3, "0.30"),
        (1.7, "1.700000"),
        (0.5, "0.5"),
        (7.0, "7.0"),
        (1e-12, "1e-12"),
        ({"a": [1, None, True, "é", 0.3]}, '{"a": [1, null, true, "é", 0.30]}'),
        (2**64 - 1, "18446744073709551615"),
    ],
)
def test_a_value_is_spelled_for_its_reader(value: Any, text: str) -> None:
    assert exact_json(value) == text
    assert json.loads(text) == value


@pytest.mark.parametrize(
    "value", [2**64, -(2**63) - 1, 0.12345678901234568, "\ud83d", {"\ud83d": 1}, [[0.1234567890123457]]]
)
def test_a_value_that_would_arrive_as_another_is_refused(value: Any) -> None:
    with pytest.raises(UnfitRowError):
        exact_json(value)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("rewritten", [True, False])
def test_a_number_that_is_not_finite_is_refused(value: float, rewritten: bool) -> None:
    with pytest.raises(UnfitRowError, match="JSON has no form for"):
        exact_json({"a": [value]}, rewritten=rewritten)


@pytest.mark.parametrize("value", [0.3, 1e-12, 1e20, 0.12345678901])
def test_a_number_that_is_written_again_has_to_survive_that(value: float) -> None:
    assert exact_json(0.25, rewritten=True) == "0.25"
    with pytest.raises(UnfitRowError):
        exact_json(value, rewritten=True)


def test_nearly_every_short_number_has_a_spelling() -> None:
    draw = random.Random(7)
    numbers = [round(draw.uniform(-180, 180), draw.randint(1, 9)) for _ in range(5_000)]
    refused = 0
    for number in numbers:
        try:
            assert json.loads(exact_json(number)) == number
        except UnfitRowError:
            refused += 1
    assert refused < 10
