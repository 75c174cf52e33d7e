"""Times are UTC and say so, in whatever zone the sink, a question, the page or an export runs."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rollbus.consumers.clickhouse.store.client import ClickHouse
from tests.builders import START_MS
from tests.services.clickhouse.test_queries import new_database

pytestmark = pytest.mark.services

ROOT = Path(__file__).parents[3]
ZONES = ["UTC", "America/St_Johns", "Asia/Kolkata", "Pacific/Auckland"]
"""The last three are 2½ or 3½ hours behind UTC, 5½ before it, and 12 or 13 before it."""


def test_every_zone_gives_the_same_times_and_names_utc(clickhouse: tuple[str, int], tmp_path: Path) -> None:
    settings = new_database(clickhouse)
    answers: dict[str, dict[str, Any]] = {}
    for number, zone in enumerate(ZONES):
        command = [sys.executable, "-m", "tests.services.clickhouse.in_zone", settings.host, str(settings.port)]
        completed = subprocess.run(
            [*command, settings.database, f"zone{number}.", str(tmp_path / str(number))],
            env={**os.environ, "TZ": zone},
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        assert completed.returncode == 0, completed.stderr[-4000:]
        answers[zone] = json.loads(completed.stdout)
    ((stamp, at, text),) = answers["UTC"]["sql"]
    start = datetime.fromtimestamp(START_MS / 1000, UTC)
    assert (stamp, datetime.fromisoformat(at)) == (START_MS, start), "the text of a time names its zone"
    assert text == start.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    assert [datetime.fromisoformat(value) for value in answers["UTC"]["parquet"]] == [start]
    assert [datetime.fromisoformat(value) for value in answers["UTC"]["jsonl"]] == [start]
    assert datetime.fromisoformat(answers["UTC"]["question"][0][0]) == start.replace(second=0, microsecond=0)
    for zone in ZONES:
        assert answers[zone] == answers["UTC"], zone


def test_every_column_of_a_time_names_utc(clickhouse: tuple[str, int]) -> None:
    settings = new_database(clickhouse)
    client = ClickHouse(settings)
    try:
        _, columns = client.query(
            "SELECT table, name, type FROM system.columns WHERE database = {database:String} AND type LIKE '%Date%'",
            {"database": settings.database},
        )
    finally:
        client.close()
    assert len(columns) > 60
    assert [column for column in columns if "'UTC'" not in column[2]] == []
