"""Time the sink against bare inserts of the same blocks, and the page and saved questions over generated trajectories.

python -m benchmarks.analytics.run [trajectories] [rounds]

No number here is a test. Without trajectories (0) only the sink is timed, without rounds (0) only the questions.
"""

import asyncio
import hashlib
import sys
import tempfile
import time
from pathlib import Path

from rich.progress import track

from benchmarks.analytics.page import PageView, time_page, views_of, views_of_questions
from benchmarks.analytics.sink import compare_sink
from benchmarks.common import running
from rollbus.consumers.clickhouse.questions.saved_questions import list_queries
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.migrator import migrate
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.local.clickhouse.service import clickhouse_service
from rollbus.local.kafka.service import kafka_service
from rollbus.local.process.ports import find_free_port
from rollbus.stack_settings import HOST
from tests.trajectories.generate import fill
from tests.trajectories.shape import NAMESPACE, REPLAY

DEFAULT_NUMBERS = (1_000_000, 3)
"""Trajectories and rounds."""
POLL_S = 0.05
IDLE_S, MERGES_END_S = 3.0, 90.0


def main(trajectories: int, rounds: int) -> None:
    """Start a broker and a ClickHouse of their own, measure, and stop them."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), find_free_port()
        kafka = kafka_service(folder=folder / "kafka", client_port=find_free_port())
        with running(folder, [kafka, clickhouse_service(folder=folder / "clickhouse", port=port)]):
            if rounds:
                asyncio.run(compare_sink(kafka.address, port, rounds))
            if trajectories:
                time_questions(port, trajectories)


def time_questions(port: int, trajectories: int) -> None:
    """Print what the page and every saved question take."""
    settings = ClickHouseSettings(host=HOST, port=port, database="questions", timeout_s=300)
    migrate(settings)
    client = ClickHouse(settings)
    delete_merged_parts_soon(client)
    start_s = time.perf_counter()
    for table in track(fill(client, trajectories), description="filling tables", transient=True):
        del table
    wait_for_merges(client)
    print(f"{trajectories} trajectories made in {time.perf_counter() - start_s:.0f} s, {describe_size(client)}")
    values = {query.name: choose_values(query.name, trajectories) for query in list_queries()}
    time_page(settings, [*make_middle_views(client, trajectories), *views_of_questions(values)])
    client.close()


def make_middle_views(client: ClickHouse, trajectories: int) -> list[PageView]:
    """Return looks at a trajectory in the middle, at a word that only it has, and past the 50,000 newest ones."""
    middle = trajectories // 2
    (only_word,) = client.query(f"SELECT hex(cityHash64({middle}, 3))")[1][0]
    return views_of(
        trajectory=make_id("t", middle),
        episode=make_id("e", middle),
        words=only_word,
        after=make_id("t", max(0, trajectories - 50_000)),
    )


def delete_merged_parts_soon(client: ClickHouse) -> None:
    """Let merged parts leave the disk after seconds instead of minutes, since all the rows come at once."""
    _, tables = client.query(
        "SELECT name FROM system.tables WHERE database = currentDatabase() AND engine LIKE '%Tree'"
    )
    for (table,) in tables:
        client.command(f"ALTER TABLE {table} MODIFY SETTING old_parts_lifetime = 5")


def wait_for_merges(client: ClickHouse) -> None:
    """Wait until no merge has run for IDLE_S, as in a database that is some days old and has few parts."""
    deadline, idle_since = time.monotonic() + MERGES_END_S, time.monotonic()
    while time.monotonic() < min(deadline, idle_since + IDLE_S):
        if client.query("SELECT count() FROM system.merges WHERE database = currentDatabase()")[1][0][0]:
            idle_since = time.monotonic()
        time.sleep(POLL_S)


def describe_size(client: ClickHouse) -> str:
    """Return the rows, the parts and the bytes on disk as a text."""
    _, ((rows, bytes_on_disk, parts),) = client.query(
        "SELECT sum(rows), formatReadableSize(sum(bytes_on_disk)), count() FROM system.parts "
        "WHERE active AND database = currentDatabase()"
    )
    return f"{rows:,} rows in {parts} parts, {bytes_on_disk}"


def choose_values(name: str, trajectories: int) -> dict[str, str]:
    """Return values for a question's parameters that find rows in the middle of the data."""
    question = next(query for query in list_queries() if query.name == name)
    middle = trajectories // 2 // 128 * 128
    values = {
        "namespace": NAMESPACE,
        "episode": make_id("e", middle + 25),
        "id": make_id("e", middle + 25) + ("2" if name == "lineage_of_event" else ""),
        "group": make_id("g", middle // 8 + 3),
        "step": str(middle // 128 + 1),
        "value": "user-77",
        "version": str(middle // 128),
        "replay": REPLAY,
        "other": REPLAY,
    }
    parameter_names = {parameter.name for parameter in question.parameters}
    return {key: value for key, value in values.items() if key in parameter_names}


def make_id(kind: str, number: int) -> str:
    """Return an id as `generate` makes it."""
    return hashlib.md5(f"{kind}{number}".encode(), usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    main(*numbers, *DEFAULT_NUMBERS[len(numbers) :])
