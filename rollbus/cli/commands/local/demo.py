"""`rollbus demo`: run the whole loop on one machine, in minutes."""

from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from rollbus.cli.groups import Verb
from rollbus.cli.number_option import Number

PLAIN_WIDTH = 110
"""Columns of the tables if the output is a file."""


@click.command(cls=Verb)
@click.option(
    "--job",
    type=click.Choice(["routing", "orders", "game"]),
    default="routing",
    show_default=True,
    help="Let SmolLM2, which is fetched once, learn which team answers a ticket, or to look orders up by a tool first; "
    "or let a tiny model learn tic-tac-toe.",
)
@click.option("--seed", type=int, default=0, help="Decide traffic, evaluation and the tiny model.")
@click.option(
    "--episodes",
    type=click.IntRange(min=8),
    help="Bring this many tickets (1600, on a slower machine down to 1000; orders 600), or games (6144).",
)
@click.option(
    "--rate",
    type=Number(min=0, min_open=True),
    help="Begin this many a second (1.8, or fewer on a slower machine; orders 0.5, games 14).",
)
@click.option(
    "--evaluated", type=click.IntRange(min=29), help="Measure this many before and after (832, orders 416, games 812)."
)
@click.option("--keep", is_flag=True, help="Leave Kafka, ClickHouse and art-server up; `rollbus … down` stops them.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".rollbus/demo"),
    help="Write here, into a folder per seed; it replaces what an earlier demo left there.",
)
def demo(
    job: str,
    seed: int,
    episodes: int | None,
    rate: float | None,
    evaluated: int | None,
    keep: bool,
    data_dir: Path,
) -> None:
    """Watch an agent get better at its job from its own traffic.

    It starts everything it needs on free ports, learns, evaluates before and after, answers five questions in SQL,
    and stops everything again.
    """
    from rollbus.demo.game.job import GameJob
    from rollbus.demo.job import DemoJob
    from rollbus.demo.routing.job import LookUp, RoutingJob
    from rollbus.demo.run import Demo, DemoOptions

    jobs: dict[str, DemoJob] = {"routing": RoutingJob(), "orders": LookUp(), "game": GameJob()}
    demo_job = jobs[job]
    usual = demo_job.amounts
    amounts = replace(usual, evaluated=evaluated or usual.evaluated)
    if episodes:
        amounts = replace(amounts, episodes=episodes, min_episodes=None)
    if rate:
        amounts = replace(amounts, episodes_per_s=rate, share_of_evaluation_rate=None)
    console = Console()
    if not console.is_terminal:
        console = Console(width=PLAIN_WIDTH)
    Demo(demo_job, DemoOptions(amounts, seed, keep=keep, data_dir=data_dir), console).run()
