"""Write an episode, and print its times as SQL, a saved question, the page and the exports give them.

    TZ=Asia/Kolkata python -m tests.services.clickhouse.in_zone HOST PORT DATABASE NAMESPACE FOLDER

Runs as a process of its own, because a process takes its zone when it starts.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollbus.consumers.clickhouse.questions.output import make_plain
from rollbus.consumers.clickhouse.questions.saved_questions import run_query
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.consumers.export.run import ExportRequest, export
from rollbus.ui.page_questions import Asking
from tests.builders import make_ended, make_score, make_started, make_trajectory, make_turn
from tests.readers.files import rows_of
from tests.services.clickhouse.test_queries import write


def main(host: str, port: str, database: str, namespace: str, target: str) -> None:
    folder = Path(target)
    settings = ClickHouseSettings(host=host, port=int(port), database=database)
    client = ClickHouse(settings)
    records: list[tuple[str, str, Any]] = [
        ("episode-events", "e1", event) for event in (make_started("e1"), make_turn("e1"), make_ended("e1"))
    ]
    trajectory = make_trajectory("e1", group_hint="example:play:x1")
    records.append(("trajectories", "k", trajectory))
    records.append(("scores", "k", make_score(trajectory.trajectory_id, 1.0, episode_id="e1")))
    write(client, namespace, records)
    _, rows = client.query(
        "SELECT toUnixTimestamp64Milli(started_at), started_at, toString(started_at) FROM trajectories "
        "WHERE namespace = {namespace:String}",
        {"namespace": namespace},
    )
    export_of: dict[str, Any] = {"kind": "trajectories", "namespace": namespace}
    for file_format in ("parquet", "jsonl"):
        export(client, ExportRequest(**export_of, file_format=file_format), folder / file_format)
    answers = {
        "sql": make_plain(rows),
        "question": make_plain(asdict(run_query(settings, "tokens_per_minute", {"namespace": namespace}))["rows"]),
        "page": make_plain(Asking(settings, namespace, {"main": "agent"}).ask("find_episodes", {"id": "e1"})[1]),
        "parquet": [row["started_at"].isoformat() for row in rows_of(folder / "parquet" / "train.parquet")],
        "jsonl": [row["started_at"] for row in rows_of(folder / "jsonl" / "train.jsonl")],
    }
    print(json.dumps(answers))
    client.close()


if __name__ == "__main__":
    main(*sys.argv[1:6])
