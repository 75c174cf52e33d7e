"""What a trainer keeps between its steps: the window that the alarm looks at."""

from typing import Any

import pytest

from rollbus.trainer.ledger.alarm import AlarmLimits
from rollbus.trainer.loop.between_steps import BetweenSteps
from rollbus.trainer.loop.waiting import Stop
from tests.trainer.scenario import SETTINGS

FAR = {"mismatch_kl": 50.0}


@pytest.fixture
def between() -> BetweenSteps:
    settings = SETTINGS.model_copy(update={"alarm": AlarmLimits(window_steps=3)})
    return BetweenSteps(settings, None, Stop())


def commands(between: BetweenSteps, steps: range) -> list[Any]:
    return [between.alarm(step, FAR) for step in steps]


def test_a_step_that_is_closed_again_after_a_transaction_that_failed_raises_the_same_alarm(
    between: BetweenSteps,
) -> None:
    *_, first = commands(between, range(1, 4))
    assert first is not None
    assert between.alarm(3, FAR) == first


def test_what_led_to_an_alarm_does_not_raise_another_after_it(between: BetweenSteps) -> None:
    raised = commands(between, range(1, 8))
    assert [step for step, command in enumerate(raised, start=1) if command is not None] == [3, 6]
