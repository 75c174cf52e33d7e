"""Time travels with the data, on a real broker: neither lag nor a pause without workers changes a group."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollbus.hosted_stages import all_stages, stage_configurations
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.groups import Group
from rollbus.settings import Settings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.replay.kafka.run import Replay
from rollbus.streams.replay.plan.plan import ReplayPlan, chain_of
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.rewards.registry import BUILT_IN
from rollbus.streams.worker.worker import Worker
from tests.builders import make_episode
from tests.services.commands import say_in_thread
from tests.services.replay.live import publish, records, settings_of, write_settings
from tests.services.streams.process import running
from tests.waiting import until, until_found

pytestmark = pytest.mark.services

WINDOW_MS = 2_000
GROUPS, SIZE = 20, 4
PROBLEMS = [f"x{number}" for number in range(GROUPS)]


def settings_with(folder: Path, kafka: str, namespace: str, group_size: int) -> Settings:
    runs = [{"grouping": {"group_size": group_size, "window_ms": WINDOW_MS}, "batching": {"groups_per_step": 1}}]
    worker = {"event_partitions": 3, "tick_interval_ms": 100, "linger_ms": 0}
    path = write_settings(folder, kafka, namespace, worker=worker, runs=runs)
    return settings_of(path)


@asynccontextmanager
async def working(settings: Settings) -> AsyncIterator[Worker]:
    stages = all_stages(settings)
    await ensure_topics(settings.stream_settings(), stages)
    async with running(settings.stream_settings(), stages, stage_configurations(settings)) as worker:
        yield worker


def events(attempts: int, problems: Iterable[str]) -> list[Any]:
    """Of so many attempts at each problem, as they come from agents that take turns."""
    episodes = [
        make_episode(f"{problem}-{attempt}", reward=float(attempt), start={"example_id": problem})
        for attempt in range(attempts)
        for problem in problems
    ]
    return [event for episode in episodes for event in episode]


async def sizes(settings: Settings, namespace: str | None = None) -> Counter[int]:
    """How many groups there are of each size, of live or of a replay."""
    stream = settings.stream_settings()
    stream = stream.model_copy(update={"namespace": namespace or stream.namespace})
    return Counter(len(record.members) for record in await records(stream, "run-log") if isinstance(record, Group))


async def replayed_sizes(settings: Settings, name: str) -> Counter[int]:
    plan = ReplayPlan(name=name, start=Bound(), end=Bound(), stages=chain_of(()), assembly=settings.assembly,
                      scoring=settings.scoring, runs=settings.runs)  # fmt: skip
    await Replay(settings.stream_settings(), plan, registry=BUILT_IN).run()
    return await sizes(settings, plan.namespace_in(settings.namespace))


async def test_a_partition_that_lags_cuts_no_group(kafka: str, namespace: str, tmp_path: Path) -> None:
    settings = settings_with(tmp_path, kafka, namespace, SIZE)
    async with working(settings) as worker:
        await until(lambda: worker.ticker.watermarks.reached.get("run-log", -1) >= 0, "no tick gets to the run's log")
        (assembly,) = (app for app in worker.apps if app.stage.name == "assembly")
        slow = next(runner for place, runner in assembly.runners.items() if place.partition == 1)
        slow._host.pause(slow.partition)
        await publish(settings.stream_settings(), events(SIZE, PROBLEMS), chunks=1, pause_s=0)
        await asyncio.sleep(3 * WINDOW_MS / 1000)
        waits = worker.report().waits
        assert waits is not None
        assert "assembly[1]" in waits[0]
        slow._host.resume(slow.partition)
        await until_found(
            lambda: sizes(settings), "groups are missing", is_enough=lambda group_sizes: group_sizes.total() >= GROUPS
        )
    assert await sizes(settings) == {SIZE: GROUPS}
    assert [drop for drop in await records(settings.stream_settings(), "drops") if isinstance(drop, Drop)] == []
    assert await replayed_sizes(settings, namespace.strip(".")) == {SIZE: GROUPS}


async def test_settings_changed_while_no_worker_runs_count_for_what_comes_after(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    """What waits in the log came before the change, however fast each stage begins."""
    before = settings_with(tmp_path, kafka, namespace, 2 * SIZE)
    async with working(before) as worker:
        await until(lambda: worker.ticker.watermarks.reached.get("run-log", -1) >= 0, "no tick gets to the run's log")
    await publish(before.stream_settings(), events(2 * SIZE, PROBLEMS), chunks=1, pause_s=0)
    after = settings_with(tmp_path, kafka, namespace, SIZE)
    async with working(after):
        await until_found(
            lambda: sizes(after), "groups are missing", is_enough=lambda group_sizes: group_sizes.total() >= GROUPS
        )
        await publish(after.stream_settings(), events(SIZE, ["late"]), chunks=1, pause_s=0)
        await until_found(
            lambda: sizes(after), "no late group", is_enough=lambda group_sizes: group_sizes.total() > GROUPS
        )
    expected = {2 * SIZE: GROUPS, SIZE: 1}
    assert await sizes(after) == expected
    assert await replayed_sizes(after, namespace.strip(".")) == expected
    replay = f"replay --from earliest --as pairs --grouping group_size={SIZE // 2} --diff live"
    output = await say_in_thread(tmp_path / "rollbus.yaml", *replay.split())
    assert "other configuration of the run" in output
    assert "no difference inside the range" not in output
