"""What people see: counts, time left, and the picture of what was learned."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress_bar import ProgressBar

from rollbus.demo.game.job import GameJob
from rollbus.demo.job import DemoJob
from rollbus.demo.routing.job import LookUp, RoutingJob
from rollbus.demo.show.comparison import BeforeAndAfter, rate_of
from rollbus.demo.show.plot import build_figure, draw, points
from rollbus.demo.show.report import print_next_steps, shorten
from rollbus.demo.show.status import COUNTS, DROPS, DemoStatus, GroupWins, VersionReward, read_status
from rollbus.demo.show.view import LiveView, describe_traffic, line, render, sparkline, time_left_s
from rollbus.schemas.records.steps import Evaluation
from rollbus.trainer.validation.evaluation import build_evaluation

STATUS = DemoStatus(
    events=700,
    episodes=100,
    from_traffic=25,
    trajectories=96,
    groups=12,
    without_signal=2,
    batches=1,
    steps=1,
    trained=80,
    version=1,
    rewards=(VersionReward(0, 64, 0.5, 0.4, 0.45), VersionReward(1, 32, 0.6, 0.4, 0.55)),
    drops={"no_signal": 16},
    lag={"assembly": 3, "sink": 5},
)


def make_evaluation(version: int, **counts: int) -> Evaluation:
    games = {name: [float(count == name) for count in counts for _ in range(counts[count])] for name in counts}
    return build_evaluation(games, model="agent", policy_version=version, name="held out", now_ms=1)


def make_comparison() -> BeforeAndAfter:
    before = make_evaluation(0, win=360, draw=100, loss=340, illegal=12)
    return BeforeAndAfter(before, make_evaluation(31, win=500, draw=80, loss=226, illegal=6), "win")


def test_the_status_line_has_every_count() -> None:
    text = line(STATUS, phase="customers write", so_far="25 of 400 tickets", elapsed_s=12.3)
    assert text == (
        "  12 s  customers write: 25 of 400 tickets; attempts 100, trajectories 96, groups 12 (2 without signal), "
        "batches 1, steps 1, policy version 1, reward 0.60, lag 8"
    )


def test_the_view_draws_every_stage_and_why_trajectories_were_dropped() -> None:
    so_far = describe_traffic(25, 400, "tickets", 540.0)
    view = render(
        STATUS, RoutingJob.words, phase="customers write", so_far=so_far, bar=ProgressBar(total=400), elapsed_s=30
    )
    text = _draw_text(view)
    attempts, left = "100 attempts at 25 tickets", "25 of 400 tickets, about 9 minutes left"
    for part in ("agents → episode-events", "grouping → groups", "2 without signal", "16 no_signal", attempts, left):
        assert part in text


def test_without_a_terminal_each_look_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with LiveView(Console(force_terminal=False), GameJob.words, replace(GameJob.amounts, episodes=400)) as view:
        view.show(STATUS, phase="agents play")
    (printed_line,) = capsys.readouterr().out.splitlines()
    assert "agents play: 25 of 400 games, about" in printed_line


def test_a_long_answer_shows_its_first_rows_and_its_last() -> None:
    assert shorten([["trained"], ["dropped"]]) == [["trained"], ["dropped"]]
    rows = [["trained"], *([reason] for reason in "abcdefghij"), ["all"]]
    assert [row[0] for row in shorten(rows, 4)] == ["trained", "a", "…", "j", "all"]


def test_a_view_of_nothing_yet_can_be_drawn() -> None:
    bar = ProgressBar(total=8)
    nothing = render(DemoStatus(), GameJob.words, phase="x", so_far="0 of 8 games", bar=bar, elapsed_s=0)
    assert "no rewards yet" in _draw_text(nothing)


@pytest.mark.parametrize(
    ("done", "elapsed_s", "left_s"), [(0, 10, None), (100, 50, 50), (50, 50, 70), (200, 130, 0), (1, 10, 110)]
)
def test_time_left_follows_the_rate_and_never_passes_the_limit(
    done: int, elapsed_s: float, left_s: float | None
) -> None:
    assert time_left_s(done, 200 if done != 50 else 400, elapsed_s, 120) == left_s


def test_a_sparkline_runs_from_the_least_to_the_greatest() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.3, 0.3]) == "▁▁"
    assert sparkline([]) == ""
    assert len(sparkline([float(n) for n in range(100)], width=10)) == 10


def test_neighbouring_groups_become_points_with_the_rest_in_the_last() -> None:
    groups = [GroupWins(version, 0.5) for version in range(7)]
    assert [point.version for point in points(groups, size=3)] == [1, 4.5]
    assert points(groups[:1], size=3)[0].wins.value == 0.5
    assert points([]) == ()


def test_the_band_is_of_groups_since_attempts_at_one_opening_end_alike() -> None:
    alike = points([GroupWins(0, wins) for wins in (0.0, 1.0) * 16], size=32)[0].wins
    mixed = points([GroupWins(0, 0.5)] * 32, size=32)[0].wins
    assert alike.value == mixed.value == 0.5
    assert alike.high - alike.low > mixed.high - mixed.low == 0


def test_reference_lines_rise_with_the_skill_of_the_player() -> None:
    shares = [share for _, share in GameJob().references(0, GameJob.amounts)]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(0.930, abs=5e-4)


def test_the_plot_is_a_png(tmp_path: Path) -> None:
    path = tmp_path / "plots" / "learning.png"
    job, groups = GameJob(), [GroupWins(0, 0.4), GroupWins(1, 0.6)]
    draw(path, job, groups, make_comparison(), [("words", 0.5)], seed=0)
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("job", [RoutingJob(), LookUp(), GameJob()], ids=lambda job: job.run)
def test_every_text_of_the_plot_is_inside_it(job: DemoJob) -> None:
    names = [name for name, _ in job.outcomes]
    before, after = (make_evaluation(n, **dict.fromkeys(names, 100 + 50 * n)) for n in range(2))
    figure = build_figure(job, [GroupWins(0, 0.4)], BeforeAndAfter(before, after, names[0]), [("words", 0.5)], seed=0)
    figure.draw_without_rendering()
    assert len(figure.texts) == 2
    for text in figure.texts:
        box = text.get_window_extent()
        assert figure.bbox.x0 < box.x0 < box.x1 < figure.bbox.x1, text.get_text()


def test_a_gain_is_above_zero_when_its_whole_interval_is() -> None:
    comparison = make_comparison()
    assert comparison.is_above_zero
    assert comparison.gain.value == pytest.approx(140 / 812)
    assert not BeforeAndAfter(comparison.after, comparison.before, "win").is_above_zero
    assert not BeforeAndAfter(comparison.before, comparison.before, "win").is_above_zero


def test_a_rate_reads_as_percent() -> None:
    assert rate_of(make_evaluation(0, win=400, loss=400), "win").percent() == "50.0 % [46.5, 53.5]"


def test_the_status_is_read_with_three_questions() -> None:
    def query(sql: str, parameters: Mapping[str, Any]) -> tuple[list[str], list[tuple[Any, ...]]]:
        assert parameters["namespace"] == "demo."
        if sql == COUNTS:
            return ["events", "episodes", "trajectories", "version", "pause"], [(10, 2, 2, None, "too far")]
        return (["reason", "count"], [("stale", 4)]) if sql == DROPS else ([], [(0, 2, 0.5, None, 0.5)])

    status = read_status(query, namespace="demo.", run="tictactoe")
    assert (status.episodes, status.version, status.pause, status.drops) == (2, 0, "too far", {"stale": 4})
    assert status.rewards == (VersionReward(0, 2, 0.5, 0.0, 0.5),)
    assert status.is_drained


def _draw_text(view: object) -> str:
    console = Console(width=110, force_terminal=False)
    with console.capture() as captured:
        console.print(view)
    return captured.get()


def test_the_next_steps_can_be_copied_from_any_folder(tmp_path: Path) -> None:
    console, folder = Console(width=400, record=True), tmp_path / "my runs" / "[red]"
    print_next_steps(console, folder, is_kept=False)
    lines = console.export_text().splitlines()
    assert lines[0].split(maxsplit=1)[1] == str(folder / "learning.png")
    command = lines[-1].split(maxsplit=1)[1]
    assert shlex.split(command)[-3:] == ["--config", str(folder / "settings.yaml"), "down"]
