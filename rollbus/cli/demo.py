"""`rollbus demo`: the whole loop on one machine, in minutes."""

from pathlib import Path

import click
from rich.console import Console

PLAIN_WIDTH = 110
"""Columns of the tables where the output is a file."""


@click.command()
@click.option("--seed", type=int, default=0, show_default=True, help="Base model, openings, opponents, evaluation.")
@click.option("--episodes", type=click.IntRange(min=8), default=4096, show_default=True, help="Games the agents play.")
@click.option("--rate", type=float, default=14.0, show_default=True, help="Games a second that the agents begin.")
@click.option("--games", type=click.IntRange(min=29), default=812, show_default=True, help="Games of each evaluation.")
@click.option("--keep", is_flag=True, help="Leave Kafka, ClickHouse and art-server up; `rollbus … down` ends them.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".rollbus/demo"),
    show_default=True,
    help="Where everything goes, in a folder for each seed; what an earlier demo left there is replaced.",
)
def demo(seed: int, episodes: int, rate: float, games: int, keep: bool, data_dir: Path) -> None:
    """Watch an agent get better at tic-tac-toe from its own traffic.

    Starts everything it needs on ports that are free, plays, learns, evaluates before and after, answers five
    questions in SQL and ends everything again.
    """
    from rollbus.demo.run import Demo, DemoOptions

    options = DemoOptions(seed, episodes, games, episodes_per_s=rate, keep=keep, data_dir=data_dir)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    Demo(options, console).run()
