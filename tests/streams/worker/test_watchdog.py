"""A worker that is behind and does not move is found; one that moves or has nothing to do is left alone."""

import json
import subprocess
import sys
import threading
from types import SimpleNamespace

from rollbus.runtime.health.alarms.stall import StandstillWatch
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.metrics import PartitionMetrics
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.worker.watchdog import EXIT_STALLED, Watchdog
from rollbus.streams.worker.worker import Worker


def test_lag_without_movement_is_found_after_the_limit_and_named() -> None:
    progress = StandstillWatch(10.0)
    assert progress.observe([("grouping[2]", 7, True)], now_s=100.0) == []
    assert progress.observe([("grouping[2]", 7, True)], now_s=109.0) == []
    (words,) = progress.observe([("grouping[2]", 7, True)], now_s=110.0)
    assert "grouping[2] has been at 7 for 10 s" in words


def test_movement_and_idleness_restart_the_count() -> None:
    progress = StandstillWatch(10.0)
    progress.observe([("a", 7, True)], now_s=0.0)
    progress.observe([("a", 8, True)], now_s=9.0)
    assert progress.observe([("a", 8, True)], now_s=18.0) == []
    progress.observe([("a", 8, False)], now_s=18.5)
    assert progress.observe([("a", 8, True)], now_s=28.0) == []


def test_the_longest_wait_is_named_while_others_move() -> None:
    progress = StandstillWatch(10.0)
    assert progress.longest_wait(now_s=0.0) is None
    progress.observe([("a", 7, True), ("b", 1, True), ("c", 0, False)], now_s=0.0)
    progress.observe([("a", 7, True), ("b", 2, True), ("c", 0, False)], now_s=3.0)
    assert progress.longest_wait(now_s=4.0) == ("a at 7", 4.0)
    progress.observe([("a", 8, False), ("b", 2, True)], now_s=5.0)
    assert progress.longest_wait(now_s=5.0) == ("b at 2", 2.0)


def test_restored_rows_and_incoming_answers_are_movement() -> None:
    progress = StandstillWatch(10.0)
    progress.observe([("a", "7 (after 1 rows or answers)", True)], now_s=0.0)
    assert progress.observe([("a", "7 (after 2 rows or answers)", True)], now_s=19.0) == []
    (words,) = progress.observe([("a", "7 (after 2 rows or answers)", True)], now_s=29.0)
    assert "a has been at 7 (after 2 rows or answers) for 10 s" in words


def test_a_partition_that_was_given_away_is_forgotten() -> None:
    progress = StandstillWatch(10.0)
    progress.observe([("a", 7, True)], now_s=0.0)
    progress.observe([], now_s=5.0)
    assert progress.observe([("a", 7, True)], now_s=10.0) == []


def test_a_loop_that_does_not_answer_is_ended() -> None:
    ended, reasons = threading.Event(), []

    def end(reason: str) -> None:
        reasons.append(reason)
        ended.set()

    watchdog = Watchdog(0.0, end=end)
    watchdog.start()
    assert ended.wait(120)
    watchdog.stop()
    assert "has not answered" in reasons[0]


def test_a_process_ends_even_where_its_last_words_cannot_be_written() -> None:
    code = "from rollbus.streams.worker.watchdog import end_process; end_process('it hangs')"
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-c", code], stderr=full, check=False)
    assert ended.returncode == EXIT_STALLED


def test_a_held_log_lock_does_not_stop_the_last_log_line() -> None:
    code = (
        "import logging, threading; from rollbus.terminal.log_lines import JsonFormatter; "
        "from rollbus.streams.worker.watchdog import end_process; "
        "logging.basicConfig(); (handler,) = logging.getLogger().handlers; handler.setFormatter(JsonFormatter()); "
        "handler.acquire(); threading.Thread(target=end_process, args=('it hangs',)).start()"
    )
    ended = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, check=False, timeout=120)
    (line,) = ended.stderr.splitlines()
    log_line = json.loads(line)
    assert (ended.returncode, log_line["level"]) == (EXIT_STALLED, "CRITICAL")
    assert log_line["message"] == "it hangs; ending so that another worker takes over"


async def test_a_partition_without_a_known_position_has_no_lag() -> None:
    worker, place = Worker(StreamSettings(), []), Partition("t.episode-events", 0)
    metrics = PartitionMetrics("counter", 0)
    runner = SimpleNamespace(
        partition=place, metrics=metrics, is_position_known=False, has_work=True, progress_mark="0"
    )
    worker.apps = [SimpleNamespace(runners={place: runner})]  # type: ignore[list-item]
    worker._ends._last_ends = {place: 1_000}
    assert await worker._progress_of_parts() == [("stage counter[0]", "0", True)]
    assert metrics.lag == 0
    runner.is_position_known, metrics.position = True, 990
    await worker._progress_of_parts()
    assert metrics.lag == 10
