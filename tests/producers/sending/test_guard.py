"""What fails again and again is switched off, and what fails now and then is not."""

import logging
from typing import Any

import pytest

from rollbus.producers.sending.counters import Counters
from rollbus.producers.sending.guard import MOST_FAILURES, HostGuard


class Hook:
    """Fails as told, and counts its calls."""

    def __init__(self) -> None:
        self.calls, self.fails = 0, True

    def look(self) -> str:
        self.calls += 1
        if self.fails:
            raise AttributeError("other version")
        return "seen"

    def other(self) -> str:
        return "other"


def test_a_hook_that_always_raises_is_switched_off_named_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    guard, hook = HostGuard(Counters()), Hook()
    with caplog.at_level(logging.WARNING):
        answers = [guard.call("hook", hook.look, default="nothing") for _ in range(MOST_FAILURES + 7)]
    assert set(answers) == {"nothing"}
    assert hook.calls == MOST_FAILURES
    assert guard.counters.get("hook_errors.hook") == MOST_FAILURES
    assert guard.counters.get("hook_calls_skipped.hook") == 7
    assert [record.getMessage() for record in caplog.records if "switched off" in record.getMessage()] == [
        "rollbus: hook failed 100 times in a row and is switched off: AttributeError('other version')"
    ]
    assert guard.call("hook", hook.other, default="nothing") == "other"


def test_a_hook_that_raises_now_and_then_goes_on() -> None:
    guard, hook = HostGuard(Counters()), Hook()
    for number in range(5 * MOST_FAILURES):
        hook.fails = number % MOST_FAILURES != 0
        guard.call("hook", hook.look, default="nothing")
    assert hook.calls == 5 * MOST_FAILURES
    assert not guard.counters.get("hook_calls_skipped.hook")


def test_a_logging_error_does_not_reach_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(*args: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("rollbus.producers.sending.guard.logger.warning", raises)
    guard, hook = HostGuard(Counters()), Hook()
    assert {guard.call("hook", hook.look, default=None) for _ in range(MOST_FAILURES + 1)} == {None}
