"""Two runs on one log at once, on a real broker: each groups for itself and obeys its own operator."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    FilterConfig,
    GroupingConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.groups import Group, TrainingBatch
from rollbus.schemas.topics import BATCHES, EPISODE_EVENTS, RUN_LOG
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.operate.operator import list_runs
from rollbus.streams.operate.run_status import RunStatus
from rollbus.streams.pipeline import namespace_stages, run_stages
from tests.builders import make_episode
from tests.services.commands import say_in_thread, write_config
from tests.services.streams.fixtures import read_topic, send, stream_settings
from tests.services.streams.process import running
from tests.waiting import until_found

pytestmark = pytest.mark.services

PAIRS = RunConfig(
    run_id="pairs", grouping=GroupingConfig(group_size=2), batching=BatchingConfig(groups_per_step=1, batches_ahead=9)
)
FOURS = RunConfig(
    run_id="fours",
    model="fours",
    filter=FilterConfig(models=("agent",)),
    grouping=GroupingConfig(group_size=4),
    batching=BatchingConfig(groups_per_step=1, batches_ahead=9),
)


async def test_two_runs_group_one_log_differently_and_pause_apart(kafka: str, namespace: str, tmp_path: Path) -> None:
    settings = stream_settings(kafka, namespace)
    stages = [*namespace_stages(AssemblyConfig(), ScoringConfig()), *run_stages(PAIRS), *run_stages(FOURS)]
    await ensure_topics(settings, stages)
    runs = [{"run_id": run.run_id, "model": run.model} for run in (PAIRS, FOURS)]
    cli = partial(say_in_thread, write_config(tmp_path, kafka, namespace, runs=runs), "run")

    async def play(first: int) -> None:
        events = [event for n in range(first, first + 4) for event in make_episode(f"e{n}", reward=float(n))]
        await send(settings, EPISODE_EVENTS.name, [(event.episode_id.encode(), encode(event)) for event in events])

    async def until(condition: Callable[[Mapping[str, RunStatus]], bool]) -> None:
        await until_found(lambda: list_runs(settings), "the runs do not get there", is_enough=condition)

    async with running(settings, stages):
        await play(0)
        await until(
            lambda statuses: [statuses[name].batches for name in ("pairs", "fours") if name in statuses] == [2, 1]
        )
        assert "pause is in the log of run pairs" in await cli("pause", "pairs", "--comment", "look first")
        await until(lambda statuses: statuses["pairs"].state == "paused")
        await play(4)
        await until(lambda statuses: (statuses["pairs"].groups, statuses["fours"].batches) == (4, 2))
        listed = await cli("list")
    sizes = {
        (record.run_id, len(record.members))
        for record in await read_topic(settings, RUN_LOG.name, 1)
        if _is_group(record)
    }
    assert sizes == {("pairs", 2), ("fours", 4)}
    batches = [
        record.run_id for record in await read_topic(settings, BATCHES.name, 1) if isinstance(record, TrainingBatch)
    ]
    assert sorted(batches) == ["fours", "fours", "pairs", "pairs"]
    rows = {row.split()[0]: row.split() for row in listed.splitlines() if row.strip()}
    assert rows["pairs"][2:5] == ["paused", "4", "2"]
    assert rows["fours"][2:5] == ["running", "2", "2"]


def _is_group(record: object) -> bool:
    return isinstance(record, Group)
