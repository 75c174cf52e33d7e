"""Two demos do not share a folder, and what is in flight at the end is waited for."""

import io
from pathlib import Path

import click
import pytest
from rich.console import Console

from rollbus.cli.commands.local.demo import demo as command
from rollbus.demo.game.job import GameJob
from rollbus.demo.job import Amounts
from rollbus.demo.pace import SLOWEST
from rollbus.demo.routing.job import LookUp, RoutingJob
from rollbus.demo.run import STUCK_S, Demo, DemoOptions, drain
from rollbus.demo.show.status import DemoStatus
from rollbus.schemas.errors import ConfigurationError, UnavailableError


def demo(data_dir: Path, seed: int = 0) -> Demo:
    return Demo(GameJob(), DemoOptions(GameJob.amounts, seed, data_dir=data_dir), Console(file=io.StringIO()))


def test_a_demo_leaves_the_folder_of_one_that_plays_alone(tmp_path: Path) -> None:
    with demo(tmp_path).hold_folder():
        playing = demo(tmp_path)._fresh_stack().data_dir / "kafka"
        playing.mkdir()
        with pytest.raises(ConfigurationError, match="another demo plays in"), demo(tmp_path).hold_folder():
            raise AssertionError
        assert playing.exists()
        with demo(tmp_path, seed=1).hold_folder():
            demo(tmp_path, seed=1)._fresh_stack()
    with demo(tmp_path).hold_folder():
        demo(tmp_path)._fresh_stack()
    assert not playing.exists()


class Draining:
    """Looks at a demo whose traffic has ended; each look takes eight seconds."""

    def __init__(self, *statuses: DemoStatus) -> None:
        self.statuses, self.now = list(statuses), 0.0

    async def look(self, _: str) -> DemoStatus:
        self.now += 8.0
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def clock(self) -> float:
        return self.now


async def test_the_demo_waits_for_attempts_in_flight_while_they_move() -> None:
    trained = [DemoStatus(events=9, groups=100, batches=100, steps=step) for step in range(101)]
    draining = Draining(*trained)
    assert (await drain(draining.look, draining.clock)).steps == 100
    assert draining.now > 5 * STUCK_S


async def test_attempts_that_stop_moving_end_the_demo_with_their_count() -> None:
    draining = Draining(DemoStatus(episodes=9, trajectories=7, batches=3, steps=2))
    with pytest.raises(UnavailableError, match="2 attempts are not yet trajectories and 1 batches are not yet steps"):
        await drain(draining.look, draining.clock)
    assert STUCK_S < draining.now < 2 * STUCK_S


async def test_a_paused_run_is_not_waited_for() -> None:
    draining = Draining(DemoStatus(batches=3, steps=2), DemoStatus(batches=3, steps=2, pause="mismatch_kl is 1.2"))
    assert (await drain(draining.look, draining.clock)).pause == "mismatch_kl is 1.2"
    assert draining.now < STUCK_S


def test_traffic_comes_no_faster_than_the_machine_learns() -> None:
    amounts = Amounts(episodes=1600, episodes_per_s=1.8, evaluated=800, share_of_evaluation_rate=0.2)
    assert amounts.slow_to_machine(50.0) == amounts
    assert amounts.slow_to_machine(200.0).episodes_per_s == pytest.approx(0.8)
    assert amounts.slow_to_machine(200.0).time_limit_s == pytest.approx(1.2 * 2000 / SLOWEST)
    assert GameJob.amounts.slow_to_machine(1e6) == GameJob.amounts


def test_a_slow_machine_gets_fewer_tickets_down_to_a_minimum() -> None:
    amounts = Amounts(episodes=1600, episodes_per_s=1.8, evaluated=800, share_of_evaluation_rate=0.2, min_episodes=1000)
    assert [amounts.slow_to_machine(evaluation_s).episodes for evaluation_s in (50.0, 128.0, 1000.0)] == [
        1600,
        1500,
        1000,
    ]


def test_the_help_names_the_amounts_of_each_job() -> None:
    helps = {option.name: option.help for option in command.params if isinstance(option, click.Option)}
    tickets, orders, games = RoutingJob.amounts, LookUp.amounts, GameJob.amounts
    slower = f"({tickets.episodes}, on a slower machine down to {tickets.min_episodes}; orders {orders.episodes})"
    assert f"{slower}, or games ({games.episodes})" in (helps["episodes"] or "")
    assert f"({tickets.episodes_per_s:g}, or fewer" in (helps["rate"] or "")
    assert f"orders {orders.episodes_per_s:g}, games {games.episodes_per_s:g})" in (helps["rate"] or "")
    assert f"({tickets.evaluated}, orders {orders.evaluated}, games {games.evaluated})" in (helps["evaluated"] or "")
