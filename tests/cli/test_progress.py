"""Work that takes long says what it does and how far it is, on stderr."""

import pytest

from rollbus.cli import progress
from rollbus.cli.progress import QUIET_S, Progress, Silence, describe_progress, format_duration, show_progress
from tests.waiting import wait_until


def test_what_is_left_is_counted_in_its_unit_and_in_time() -> None:
    assert describe_progress(412, 1_000, "tickets", 378.0) == "412 of 1,000 tickets, about 9 minutes left"
    assert describe_progress(0, 1_000, "tickets", 3.0) == "0 of 1,000 tickets"
    assert describe_progress(49, 1_000, "tickets", 3.0) == "49 of 1,000 tickets"
    assert describe_progress(8, 8, "", 3.0) == "8 of 8"
    assert describe_progress(0, 0, "", 12.4) == "12 s so far"


def test_two_lines_about_a_long_wait_never_say_the_same_time() -> None:
    waits_s = (89, 92.5, 96, 125, 3_599, 3_602.5, 7_325)
    assert [describe_progress(0, 0, "", waited_s) for waited_s in waits_s] == [
        *("89 s so far", "1 min 32 s so far", "1 min 36 s so far", "2 min 5 s so far", "59 min 59 s so far"),
        *("1 h 0 min 2 s so far", "2 h 2 min 5 s so far"),
    ]


def test_a_time_has_the_unit_that_people_would_use() -> None:
    assert [format_duration(seconds) for seconds in (0.2, 89, 91, 600, 7_200)] == [
        *("1 s", "89 s", "2 minutes", "10 minutes", "2.0 hours")
    ]


def test_the_next_step_begins_its_own_count() -> None:
    shown = Progress("fetching", began_s=0.0)
    shown(3, 4)
    shown.begin("converting")
    assert shown.line(shown.began_s + 5) == "converting: 5 s so far"


def test_a_wait_without_a_terminal_writes_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_S", 0.01)
    written = ""

    def has_written() -> bool:
        nonlocal written
        written += capsys.readouterr().err
        return "evaluating: 3 of 4 tickets" in written

    with show_progress("evaluating", "tickets") as shown:
        shown(3, 4)
        wait_until(has_written, "no line came")


def test_pieces_of_work_that_follow_one_another_are_silent_together_for_no_longer_than_one() -> None:
    silence = Silence()
    silence.begin(100.0)
    assert silence.wait_s(102.0) == QUIET_S - 2.0
    silence.ended_s = 103.0
    silence.begin(103.2)
    assert silence.wait_s(103.2) == pytest.approx(QUIET_S - 3.2)
    silence.ended_s = 110.0
    silence.begin(110.1)
    assert silence.wait_s(110.1) == 0.0
    silence.ended_s = 111.0
    silence.begin(120.0)
    assert silence.wait_s(120.0) == QUIET_S


def test_what_is_over_soon_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("reading") as shown:
        shown(1, 1)
    assert capsys.readouterr().err == ""
