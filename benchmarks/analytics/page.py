"""What the page asks, and each saved question, over generated trajectories: processor time and the clock, with targets.

A case is asked as the page asks it: in two rounds, the questions of a round side by side. Processor time is
ClickHouse's own count (`system.events`), so other work on the machine changes it less than the clock.
"""

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks.common import Verdict
from rollbus.consumers.clickhouse.questions.saved_questions import LIMITS, bind
from rollbus.consumers.clickhouse.store.client import connection
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.ui.page_questions import CONNECTIONS, questions

ROUNDS = 20
"""Of each question: the slowest but one is its p95."""
QUESTION_ROUNDS = 3
CPU_S, BY_ID_CPU_S, WALL_S, LINEAGE_WALL_S = 0.4, 0.05, 1.0, 0.1
_CPU = "SELECT sum(value) / 1e6 FROM system.events WHERE event IN ('UserTimeMicroseconds', 'SystemTimeMicroseconds')"
_CASE = ("trajectory", "conversation", "fate_of_case", "attempts_alike", "in_replays")


@dataclass(frozen=True, slots=True)
class PageView:
    """What is asked for one look at the page."""

    name: str
    questions: tuple[tuple[str, Mapping[str, str]], ...]
    """Questions with their values, asked side by side."""
    cpu_s: float = CPU_S
    wall_s: float = WALL_S
    rounds: int = ROUNDS
    questions_after: tuple[tuple[str, Mapping[str, str]], ...] = ()
    """Those that wait for the answers of the others."""


def views_of_questions(values: Mapping[str, Mapping[str, str]]) -> list[PageView]:
    """Return a look at each saved question, with its values."""
    return [
        PageView(
            name,
            ((name, values[name]),),
            wall_s=LINEAGE_WALL_S if name.startswith("lineage") else WALL_S,
            rounds=QUESTION_ROUNDS,
        )
        for name in sorted(values)
    ]


def views_of(trajectory: str, episode: str, words: str, after: str) -> list[PageView]:
    """Return what is measured: ids of a case, words that are said in one conversation, and the 50,000th trajectory."""
    case = [(name, {"trajectory": trajectory}) for name in _CASE]
    of_its_episode = (
        ("rewards_of_episode", {"trajectory": trajectory, "episode": episode}),
        ("family", {"episode": episode}),
    )
    compared = {"left_model": "agent", "right_model": "agent"}
    return [
        PageView("find: the newest 100", (("find_episodes", {}),)),
        PageView("find: 100 after 50,000", (("find_episodes", {"after": after}),)),
        PageView("find: skip 50,000", (("find_episodes", {"skip": "50000"}),)),
        PageView("find: words", (("find_episodes", {"text": words}),)),
        PageView("find: by id", (("find_episodes", {"id": episode}),), BY_ID_CPU_S),
        PageView(
            "compare two versions", (("side_by_side", {**compared, "left_version": "100", "right_version": "900"}),)
        ),
        PageView("compare two runs", (("side_by_side", compared),)),
        PageView("fates", (("fate_of_every_trajectory", {}),)),
        PageView("case", (*case, ("why_not_trained", {"id": trajectory})), questions_after=of_its_episode),
    ]


def time_page(settings: ClickHouseSettings, views: list[PageView]) -> None:
    """Print the views with their targets: the median processor time, and the slowest but one by the clock."""
    for view in views:
        cpus, walls = zip(*(look(settings, view) for _ in range(view.rounds)), strict=True)
        cpu_s, wall_s = sorted(cpus)[view.rounds // 2], sorted(walls)[-2]
        figures = f"{cpu_s:.3f} CPU s, target ≤ {view.cpu_s}; {wall_s:.2f} s, target ≤ {view.wall_s}"
        print(Verdict(view.name, figures, cpu_s <= view.cpu_s and wall_s <= view.wall_s), flush=True)


def look(settings: ClickHouseSettings, view: PageView) -> tuple[float, float]:
    """Return the CPU seconds of ClickHouse, and those of the clock."""

    def ask(question: tuple[str, Mapping[str, str]]) -> None:
        name, values = question
        query = questions()[name]
        bound: dict[str, Any] = bind(query, values)
        with connection(settings) as client:
            client.query(query.statement(bound), bound, LIMITS)

    with ThreadPoolExecutor(CONNECTIONS) as pool:
        cpu_s, began = read_cpu_s(settings), time.perf_counter()
        for questions_of_round in (view.questions, view.questions_after):
            list(pool.map(ask, questions_of_round))
        wall_s = time.perf_counter() - began
    return read_cpu_s(settings) - cpu_s, wall_s


def read_cpu_s(settings: ClickHouseSettings) -> float:
    """Return the processor seconds that ClickHouse has counted."""
    with connection(settings) as client:
        return float(client.query(_CPU)[1][0][0])
