"""Workers are killed while partitions lag, settings change and runs go: groups are those that the log says."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollbus.hosted_stages import all_stages
from rollbus.schemas.codec import decode
from rollbus.schemas.records.control import RunCommand, Tick
from rollbus.schemas.records.groups import Group
from rollbus.schemas.topics import RUN_LOG
from rollbus.settings import Settings
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.operate.operator import list_runs
from tests.faults import episodes
from tests.faults.conftest import SESSION_S, NewWorker, open_worker
from tests.faults.episodes import Traffic, windowed_configs, windowed_stages
from tests.services.commands import say_installed
from tests.services.replay.live import CommandWorker, frames, publish, records, settings_of, write_settings
from tests.services.streams.test_watermarks import GROUPS, PROBLEMS, SIZE, WINDOW_MS, events, sizes
from tests.waiting import until_found

pytestmark = [pytest.mark.services, pytest.mark.faults, pytest.mark.timeout(600)]


async def test_a_partition_that_lags_behind_killed_workers_cuts_no_group(
    settings: StreamSettings, workers: NewWorker, chance: random.Random
) -> None:
    """A partition takes two windows for each batch, while the others are done at once."""
    traffic, lag_s = Traffic(settings), 2 * episodes.WINDOW_MS / 1000
    slow: dict[str, Any] = {
        "stages": f"{windowed_stages.__module__}:{windowed_stages.__name__}",
        "configs": f"{windowed_configs.__module__}:{windowed_configs.__name__}",
        "slow": ["assembly", chance.randrange(settings.event_partitions), lag_s],
    }
    worker = await open_worker(workers, settings, **slow)
    await traffic.send(range(10))
    await asyncio.sleep(chance.uniform(0, lag_s))
    await worker.kill()
    heir = await open_worker(workers, settings, **slow)
    await traffic.send(range(10, 20))
    await traffic.until_trained()
    heir.send(signal.SIGTERM)
    assert await heir.ended() == 0, heir.log()
    await traffic.check(windowed_stages)


def settings_in(folder: Path, kafka: str, namespace: str, *, waiting_run: bool = False, group_size: int = SIZE) -> Path:
    """Write settings of a run, perhaps with a second one whose groups lack members; return the file."""
    runs: list[dict[str, Any]] = [
        {"grouping": {"group_size": group_size, "window_ms": WINDOW_MS}, "batching": {"groups_per_step": 1}}
    ]
    if waiting_run:
        grouping = {"group_size": 50, "window_ms": 3_600_000}
        runs.append({"run_id": "waiting", "model": "waiting", "filter": {"models": ["agent"]}, "grouping": grouping})
    folder.mkdir(exist_ok=True)
    worker = {"event_partitions": 3, "tick_interval_ms": 100, "linger_ms": 0}
    return write_settings(folder, kafka, namespace, worker=worker, runs=runs)


@asynccontextmanager
async def working(config: Path, log: Path) -> AsyncIterator[CommandWorker]:
    """A worker with these settings; it is killed with the block."""
    worker = CommandWorker(config, log)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.kill()


async def ticks_of_the_run(stream: StreamSettings) -> list[Tick]:
    values = [value for of_partition in (await frames(stream, RUN_LOG.name)).values() for _, value in of_partition]
    return [record for value in values if isinstance(record := decode(value), Tick)]


async def work_to_a_tick(config: Path, log: Path) -> Settings:
    """Let a worker run until a tick has come through every stage, and kill it; return the settings."""
    settings = settings_of(config)
    await ensure_topics(settings.stream_settings(), all_stages(settings))
    async with working(config, log):
        await until_found(lambda: ticks_of_the_run(settings.stream_settings()), "no tick gets to the run's log")
    return settings


async def test_settings_changed_behind_a_killed_worker_apply_to_later_records(
    kafka: str, namespace: str, tmp_path: Path, chance: random.Random
) -> None:
    before = settings_in(tmp_path / "before", kafka, namespace, group_size=2 * SIZE)
    settings = await work_to_a_tick(before, tmp_path / "log")
    stream = settings.stream_settings()
    await publish(stream, events(2 * SIZE, PROBLEMS), chunks=1, pause_s=0)
    after = settings_in(tmp_path / "after", kafka, namespace, group_size=SIZE)
    for _ in range(2):
        async with working(after, tmp_path / "log"):
            await asyncio.sleep(chance.uniform(2, 2 * SESSION_S))
    async with working(after, tmp_path / "log"):
        await until_found(
            lambda: sizes(settings), "groups are missing", is_enough=lambda group_sizes: group_sizes.total() >= GROUPS
        )
        await publish(stream, events(SIZE, ["late"]), chunks=1, pause_s=0)
        await until_found(
            lambda: sizes(settings), "no late group", is_enough=lambda group_sizes: group_sizes.total() > GROUPS
        )
    assert await sizes(settings) == {2 * SIZE: GROUPS, SIZE: 1}
    output = await say_installed(after, "replay --from earliest --as same --diff live")
    assert "no difference inside the range" in output
    assert "2 groups" not in output


async def test_a_run_removed_behind_a_killed_worker_is_removed_once(
    kafka: str, namespace: str, tmp_path: Path, chance: random.Random
) -> None:
    before = settings_in(tmp_path / "before", kafka, namespace, waiting_run=True)
    settings = await work_to_a_tick(before, tmp_path / "log")
    stream = settings.stream_settings()
    await publish(stream, events(SIZE, PROBLEMS[: GROUPS // 2]), chunks=1, pause_s=0)
    after = settings_in(tmp_path / "after", kafka, namespace)
    for _ in range(2):
        async with working(after, tmp_path / "log"):
            await asyncio.sleep(chance.uniform(2, 2 * SESSION_S))
    async with working(after, tmp_path / "log"):
        await publish(stream, events(SIZE, PROBLEMS[GROUPS // 2 :]), chunks=1, pause_s=0)
        await until_found(
            lambda: sizes(settings), "groups are missing", is_enough=lambda group_sizes: group_sizes.total() >= GROUPS
        )
    of_runs = await records(stream, RUN_LOG.name)
    groups = Counter((record.run_id, len(record.members)) for record in of_runs if isinstance(record, Group))
    assert groups == {("main", SIZE): GROUPS}
    commands = [(record.run_id, record.command) for record in of_runs if isinstance(record, RunCommand)]
    assert commands == [("waiting", "removed")]
    assert (await list_runs(stream))["waiting"].state == "removed"
