"""What the page asks, over the generated trajectories: processor time and the slow end of the clock, with targets.

A case is asked as the page asks it: in two rounds, the questions of a round side by side. Each question is also asked
of plain tables: the same rows without order, indexes and repeats' absence, as somebody has them who writes records to
ClickHouse and no more. Processor time is ClickHouse's own count (`system.events`), so other work on the machine changes
it less than the clock.
"""

import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from rollbus.consumers.clickhouse.questions.saved_questions import LIMITS, bind
from rollbus.consumers.clickhouse.store.client import ClickHouse, connection
from rollbus.consumers.clickhouse.store.migrator import statements_of
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.ui.page_questions import CONNECTIONS, questions

ROUNDS = 20
"""Of each question: the slowest but one is its p95."""
QUESTION_ROUNDS = PLAIN_ROUNDS = 3
CPU_S, BY_ID_CPU_S, WALL_S = 0.4, 0.05, 1.0
PLAIN = "plain"
_CPU = "SELECT sum(value) / 1e6 FROM system.events WHERE event IN ('UserTimeMicroseconds', 'SystemTimeMicroseconds')"
_CASE = ("trajectory", "conversation", "fate_of_case", "attempts_alike", "in_replays")


@dataclass(frozen=True, slots=True)
class PageView:
    """What is asked for one look at the page."""

    name: str
    questions: tuple[tuple[str, Mapping[str, str]], ...]
    """Questions with their values, asked side by side."""
    cpu_s: float = CPU_S
    rounds: int = ROUNDS
    questions_after: tuple[tuple[str, Mapping[str, str]], ...] = ()
    """Those that wait for the answers of the others."""


def views_of_questions(values: Mapping[str, Mapping[str, str]]) -> list[PageView]:
    """Return a look at each saved question, with its values."""
    return [PageView(name, ((name, values[name]),), rounds=QUESTION_ROUNDS) for name in sorted(values)]


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
    """Print the views, beside their targets and beside plain tables."""
    make_plain_tables(settings)
    plain = settings.model_copy(update={"database": PLAIN})
    print(
        f"the page, median CPU s and p95 of {ROUNDS}, and saved questions, of {QUESTION_ROUNDS}; "
        f"targets {CPU_S} CPU s ({BY_ID_CPU_S} by id), {WALL_S} s:"
    )
    for view in views:
        cpus, walls = zip(*(look(settings, view) for _ in range(view.rounds)), strict=True)
        plain_cpu, _ = min(look(plain, view, is_plain=True) for _ in range(PLAIN_ROUNDS))
        cpu, wall = sorted(cpus)[view.rounds // 2], sorted(walls)[-2]
        is_met = cpu <= view.cpu_s and wall <= WALL_S
        print(
            f"  {view.name:24} {cpu:6.3f} CPU s  {wall:6.2f} s  plain tables {plain_cpu:6.2f} CPU s, "
            f"{plain_cpu / cpu:5.1f} ×{'' if is_met else '  above'}"
        )


def look(settings: ClickHouseSettings, view: PageView, *, is_plain: bool = False) -> tuple[float, float]:
    """Return the CPU seconds of ClickHouse, and those of the clock."""

    def ask(question: tuple[str, Mapping[str, str]]) -> None:
        name, values = question
        query = questions()[name]
        bound: dict[str, Any] = bind(query, values)
        sql = query.statement(bound)
        with connection(settings) as client:
            client.query(without_final(sql) if is_plain else sql, bound, LIMITS)

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


def make_plain_tables(settings: ClickHouseSettings) -> None:
    """Make the tables and views a second time without order, indexes and FINAL, and copy the rows."""
    client = ClickHouse(settings.model_copy(update={"database": PLAIN}))
    ClickHouse(settings).command(f"CREATE DATABASE IF NOT EXISTS {PLAIN}")
    for statement in statements_of():
        client.command(plain_statement(statement))
    columns = client.query(
        "SELECT table, arrayStringConcat(groupArray(name), ', ') FROM system.columns "
        f"WHERE database = '{PLAIN}' AND default_kind != 'MATERIALIZED' AND table IN "
        f"(SELECT name FROM system.tables WHERE database = '{PLAIN}' AND endsWith(engine, 'MergeTree')) GROUP BY table"
    )[1]
    for table, names in columns:
        client.command(f"INSERT INTO {table} ({names}) SELECT {names} FROM {settings.database}.{table}")
    client.close()


def plain_statement(statement: str) -> str:
    """Return a migration's statement for a table without order and indexes, or for a view of such tables."""
    if not statement.startswith("CREATE TABLE"):
        return without_final(statement)
    lines = statement[: statement.index("\nENGINE =")].splitlines()
    columns = "\n".join(line for line in lines if not line.startswith("    INDEX ")).replace(",\n)", "\n)")
    return f"{columns}\nENGINE = MergeTree ORDER BY tuple()"


def without_final(sql: str) -> str:
    """Return a question without FINAL, which plain tables do not know."""
    return re.sub(r" FINAL\b", "", sql)
