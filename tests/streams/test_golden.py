"""Changelog rows that a release has written are read for ever, and written back as they were or in a newer version."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rollbus.schemas.errors import UndecodableError
from rollbus.schemas.records.trajectories import Location
from rollbus.streams.state.stage import Incoming
from tests.builders import make_tick
from tests.streams.golden import FOLDER, SEPARATOR, STAGES, rows

RELEASED_FILES = sorted(FOLDER.glob("*.hex"))
REMEDY = "run python -m tests.streams.golden --write"


def read_released(path: Path) -> tuple[Any, bytes, bytes]:
    """The stage of a file, the row's whole key and its bytes."""
    stage, table, _ = path.stem.split(".")
    key, value = (bytes.fromhex(line) for line in path.read_text().split("\n")[:2])
    return STAGES[stage], table.encode() + SEPARATOR + key, value


def written_back(state: Any, key: bytes) -> bytes:
    """The bytes of a restored row, put once more."""
    name, _, row_key = key.partition(SEPARATOR)
    table = state._tables[name.decode()]
    table.put(row_key.decode(), table.rows[row_key.decode()])
    ((_, value),) = table.drain()
    return bytes(value)


@pytest.mark.parametrize("path", RELEASED_FILES, ids=lambda path: path.stem)
def test_a_released_row_is_read_and_written_back(path: Path) -> None:
    stage, key, value = read_released(path)
    state = stage.new_state()
    state.restore(key, value)
    again = written_back(state, key)
    assert again == value or again[0] > value[0]
    other = stage.new_state()
    other.restore(key, again)
    assert written_back(other, key) == again


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_goes_on_from_released_rows(name: str) -> None:
    """All rows of a stage together, in the oldest version of each: their records are decoded, and a tick passes."""
    oldest: dict[str, Path] = {}
    for path in RELEASED_FILES:
        if path.stem.startswith(f"{name}."):
            oldest.setdefault(path.stem.rpartition(".")[0], path)
    state = STAGES[name].new_state()
    for path in oldest.values():
        _, key, value = read_released(path)
        state.restore(key, value)
    tick = Incoming(make_tick(10**6), "", Location(topic="t", partition=0, offset=0), b"")
    list(STAGES[name].step(state, tick, *[{}] * hasattr(STAGES[name], "answer")))
    assert state.clock.now_ms == make_tick(10**6).stream_time_ms


def test_every_table_of_every_stage_has_its_rows_kept() -> None:
    tables = {name: set(stage.new_state()._tables) for name, stage in STAGES.items()}
    kept_tables = defaultdict[str, set[str]](set)
    for path in RELEASED_FILES:
        kept_tables[path.stem.split(".")[0]].add(path.stem.split(".")[1])
    assert kept_tables == tables, REMEDY
    newest = {f"{stage}.{table}.{value[0]}" for stage, table, _, value in rows()}
    assert newest <= {path.stem for path in RELEASED_FILES}, REMEDY


def test_a_row_of_a_newer_release_is_refused_by_name() -> None:
    stage, key, value = read_released(RELEASED_FILES[0])
    with pytest.raises(UndecodableError, match="has version 255"):
        stage.new_state().restore(key, b"\xff" + value[1:])
