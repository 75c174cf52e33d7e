"""`rollbus demo`: run the whole loop on one machine, in minutes."""

from pathlib import Path

import click
from rich.console import Console

PLAIN_WIDTH = 110
"""Columns of the tables if the output is a file."""


@click.command()
@click.option("--seed", type=int, default=0, help="Decide base model, openings, opponents, evaluation.")
@click.option("--episodes", type=click.IntRange(min=8), default=4096, help="Let the agents play this many games.")
@click.option("--rate", type=float, default=14.0, help="Begin this many games a second.")
@click.option("--games", type=click.IntRange(min=29), default=812, help="Play this many games in each evaluation.")
@click.option("--keep", is_flag=True, help="Leave Kafka, ClickHouse and art-server up; `rollbus … down` stops them.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".rollbus/demo"),
    help="Write here, into a folder per seed; it replaces what an earlier demo left there.",
)
def demo(seed: int, episodes: int, rate: float, games: int, keep: bool, data_dir: Path) -> None:
    """Watch an agent get better at tic-tac-toe from its own traffic.

    It starts everything it needs on free ports, plays, learns, evaluates before and after, answers five questions in
    SQL, and stops everything again.
    """
    from rollbus.demo.run import Demo, DemoOptions

    options = DemoOptions(seed, episodes, games, episodes_per_s=rate, keep=keep, data_dir=data_dir)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    Demo(options, console).run()
