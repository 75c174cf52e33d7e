"""What libraries repeat is said once in a while; what we say is said."""

import logging

from rollbus.cli.log_filter import RepeatFilter


def line(at_s: float, message: str = "node %s is away", name: str = "aiokafka") -> logging.LogRecord:
    record = logging.LogRecord(name, logging.ERROR, "", 0, message, (at_s,), None)
    record.created = at_s
    return record


def test_a_repeated_line_passes_once_a_period_and_counts_what_was_left_out() -> None:
    repeats = RepeatFilter(period_s=10)
    lines = [line(second) for second in range(12)]
    passed = [one.getMessage() for one in lines if repeats.filter(one)]
    assert passed == ["node 0 is away", "node 10 is away (9 more like it)"]


def test_another_line_passes_at_once() -> None:
    repeats = RepeatFilter(period_s=10)
    assert repeats.filter(line(0))
    assert repeats.filter(line(1, "node %s is back"))
    assert repeats.filter(line(1, name="faust"))


def test_our_own_lines_all_pass() -> None:
    repeats = RepeatFilter(period_s=10)
    assert all(repeats.filter(line(second, name="rollbus.streams.worker")) for second in range(5))
