"""What libraries repeat is said once in a while; what we say is said."""

import json
import logging
import sys

from rollbus.terminal.log_lines import MOST_KINDS, JsonFormatter, RepeatFilter


def line(at_s: float, message: str = "node %s is away", name: str = "aiokafka") -> logging.LogRecord:
    record = logging.LogRecord(name, logging.ERROR, "", 0, message, (at_s,), None)
    record.created = at_s
    return record


def test_a_repeated_line_passes_once_a_period_and_counts_what_was_left_out() -> None:
    repeats = RepeatFilter(period_s=10)
    lines = [line(second) for second in range(12)]
    passed = [line.getMessage() for line in lines if repeats.filter(line)]
    assert passed == ["node 0 is away", "node 10 is away (9 more like it)"]


def test_another_line_passes_at_once() -> None:
    repeats = RepeatFilter(period_s=10)
    assert repeats.filter(line(0))
    assert repeats.filter(line(1, "node %s is back"))
    assert repeats.filter(line(1, name="faust"))


def test_our_own_lines_all_pass() -> None:
    repeats = RepeatFilter(period_s=10)
    assert all(repeats.filter(line(second, name="rollbus.streams.worker.worker")) for second in range(5))


def test_a_library_that_never_repeats_a_line_takes_bounded_memory() -> None:
    repeats = RepeatFilter(period_s=10)
    assert all(repeats.filter(line(number / 100, f"request {number} failed")) for number in range(5 * MOST_KINDS))
    assert len(repeats._last_by_kind) <= MOST_KINDS
    assert not repeats.filter(line(5 * MOST_KINDS / 100, f"request {5 * MOST_KINDS - 1} failed"))


def test_a_json_line_is_one_object_with_the_error_in_it() -> None:
    try:
        raise ValueError("bad\nnews")
    except ValueError:
        record = logging.LogRecord("rollbus.x", logging.WARNING, "", 0, "step %d\nfailed", (7,), sys.exc_info())
    text = JsonFormatter().format(record)
    assert "\n" not in text
    entry = json.loads(text)
    assert (entry["level"], entry["logger"], entry["message"]) == ("WARNING", "rollbus.x", "step 7\nfailed")
    assert entry["exception"].endswith("ValueError: bad\nnews")
