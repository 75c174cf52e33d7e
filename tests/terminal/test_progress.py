"""Work that takes long says what it does and how far it is, on stderr."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollbus.terminal import silence
from rollbus.terminal.progress import Progress, describe_progress, format_duration, show_progress
from rollbus.terminal.silence import QUIET_S, Silence, SilenceWatch
from tests.waiting import wait_until


def test_remaining_work_is_counted_in_its_unit_and_in_time() -> None:
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
    progress = Progress("fetching", began_s=0.0)
    progress(3, 4)
    progress.begin("converting")
    assert progress.line(progress.began_s + 5) == "converting: 5 s so far"


def test_a_wait_without_a_terminal_writes_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence, "QUIET_S", 0.01)
    written = ""

    def has_written() -> bool:
        nonlocal written
        written += capsys.readouterr().err
        return "evaluating: 3 of 4 tickets" in written

    with show_progress("evaluating", "tickets") as progress:
        progress(3, 4)
        wait_until(has_written, "no line came")


def test_consecutive_pieces_of_work_share_one_silent_period() -> None:
    shared = Silence()
    shared.begin(100.0)
    assert shared.wait_s(102.0) == QUIET_S - 2.0
    shared.ended_s = 103.0
    shared.begin(103.2)
    assert shared.wait_s(103.2) == pytest.approx(QUIET_S - 3.2)
    shared.ended_s = 110.0
    shared.begin(110.1)
    assert shared.wait_s(110.1) == 0.0
    shared.ended_s = 111.0
    shared.begin(120.0)
    assert shared.wait_s(120.0) == QUIET_S


def test_short_work_writes_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress("reading") as progress:
        progress(1, 1)
    assert capsys.readouterr().err == ""


def test_a_long_import_is_named_by_the_package_that_ours_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "heavy").mkdir()
    (tmp_path / "heavy" / "__init__.py").write_text("import heavy_part")
    (tmp_path / "heavy_part.py").write_text("import looks; looks.look()")
    watch, lines = SilenceWatch(Silence()), list[str | None]()

    def look() -> None:
        lines.extend(watch.look(sys._getframe(), now_s) for now_s in (100.0, 103.0, 104.0, 105.0, 108.0))

    monkeypatch.setitem(sys.modules, "looks", SimpleNamespace(look=look))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("heavy")
    assert lines == [None, None, "importing heavy: 4 s so far", None, "importing heavy: 8 s so far"]
    assert watch.look(sys._getframe(), 120.0) is None


def test_a_silent_command_says_how_long_it_has_run() -> None:
    watch = SilenceWatch(Silence(command="rollbus sql run"))
    assert [watch.look(None, now_s) for now_s in (100.0, 103.0, 104.0)] == [None, None, "rollbus sql run: 4 s so far"]
    watch.silence.command = ""
    assert watch.look(None, 104.4) is None
    watch.silence.begin(104.5)
    assert watch.silence.wait_s(104.5) == QUIET_S - 0.5


@pytest.mark.parametrize(("options", "is_written"), [((), True), (("--log-format", "json"), False)])
def test_a_command_says_what_it_imports_unless_programs_read_its_lines(
    options: tuple[str, ...], is_written: bool
) -> None:
    slow_import = "find_spec=lambda name, *rest: time.sleep(0.5 * (name == 'click.core'))"
    program = f"""
import sys, time, types
sys.meta_path.insert(0, types.SimpleNamespace({slow_import}))
from rollbus.cli import main
from rollbus.terminal import silence
silence.QUIET_S = 0
silence.LOOK_S = 0.001
main()
"""
    process = subprocess.run(
        [sys.executable, "-c", program, *options, "sql", "--help"], capture_output=True, text=True, check=True
    )
    assert ("importing click: 0 s so far" in process.stderr) == is_written
