"""How fast the demo's traffic comes, on machines that learn at another speed than at the beginning."""

from pathlib import Path

import pytest

from rollbus.demo.pace import MOST_PASSED_OVER, SLOWEST, WINDOW_S, TrafficPace, next_pace, read_rate, write_rate

FIRST = 1.0


def play(learns_per_s: list[float], pace: TrafficPace) -> tuple[TrafficPace, int, int]:
    """Play a minute for each speed of the machine; return the last pace, and what was trained and passed over."""
    trained, passed_over, now_s = pace.trained, pace.passed_over, pace.at_s
    for speed in learns_per_s:
        now_s += WINDOW_S
        newly_trained = min(speed, pace.per_s)
        trained += round(newly_trained * 8 * WINDOW_S)
        passed_over += round((pace.per_s - newly_trained) * 8 * WINDOW_S)
        pace = next_pace(pace, now_s=now_s, trained=trained, passed_over=passed_over)
    return pace, trained, passed_over


def test_a_machine_to_itself_gets_its_first_rate_throughout() -> None:
    pace, _, _ = play([0.9] * 20, TrafficPace(FIRST, FIRST, 0.0))
    assert pace.per_s == FIRST


@pytest.mark.parametrize("speed", [0.5, 0.7])
def test_traffic_slows_down_to_what_a_busy_machine_trains(speed: float) -> None:
    settled, trained, passed_over = play([speed] * 3, TrafficPace(FIRST, FIRST, 0.0))
    _, trained_later, passed_over_later = play([speed] * 20, settled)
    newly_trained, newly_passed_over = trained_later - trained, passed_over_later - passed_over
    assert newly_passed_over < MOST_PASSED_OVER * (newly_trained + newly_passed_over)


def test_traffic_is_as_fast_as_at_first_once_the_other_work_is_over() -> None:
    slow, _, _ = play([0.4] * 5, TrafficPace(FIRST, FIRST, 0.0))
    assert slow.per_s < 0.6
    assert play([1.0] * 8, slow)[0].per_s == FIRST


def test_traffic_goes_on_at_a_share_of_its_first_rate_on_a_machine_that_trains_nothing() -> None:
    assert play([0.0] * 30, TrafficPace(FIRST, FIRST, 0.0))[0].per_s == SLOWEST


def test_the_rate_stays_until_there_was_time_to_train() -> None:
    pace = TrafficPace(FIRST, FIRST, 100.0)
    assert next_pace(pace, now_s=100.0 + WINDOW_S - 1, trained=0, passed_over=1000) == pace


def test_traffic_reads_the_rate_that_was_written_last(tmp_path: Path) -> None:
    file = tmp_path / "traffic-per-second"
    for rate in (1.8, 0.7200000000000001):
        write_rate(file, rate)
        assert read_rate(file) == rate
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
