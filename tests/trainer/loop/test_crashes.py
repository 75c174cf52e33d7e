"""Whatever point the trainer dies at, alone or with its backend, a restart ends as if nothing had happened."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.steps import StepCompleted
from rollbus.trainer.backends.memory import MemoryBackend
from tests.trainer.log_memory import MemoryLog
from tests.trainer.loop.crashes import Crash, CrashAt
from tests.trainer.scenario import World, check_exactly_once

BATCHES = 2


async def run_with_crash(world: World, crash: CrashAt, *, kill_backend: bool, folder: Path) -> None:
    """One life of a trainer: to the crash, or until there is nothing left to do."""
    log = crash.wrap(MemoryLog(world.broker, run_id="main", model="agent"))
    try:
        await world.trainer(log=log, backend=crash.wrap(world.backend)).run(until_idle=True)
    except Crash:
        if kill_backend:
            world.backend.kill()
            world.backend = MemoryBackend(folder=folder)


async def live_through(points: Sequence[int | None], *, kill_backend: bool, folder: Path) -> tuple[World, int]:
    """Lives that end at the given points, then one undisturbed; returns the world and the points of the first life."""
    world = World(backend=MemoryBackend(folder=folder))
    batches = world.add_batches(BATCHES)
    first: CrashAt | None = None
    for point in [*points, None]:
        crash = CrashAt(point)
        first = first or crash
        await run_with_crash(world, crash, kill_backend=kill_backend, folder=folder)
    check_exactly_once(world, batches)
    assert first is not None
    return world, first.passed


async def weights(world: World) -> list[tuple[int, str]]:
    """The weights of each completed step, in order."""
    completed = [step for step in world.steps() if isinstance(step, StepCompleted)]
    return [(step.step, world.backend.weights(step.policy_version)) for step in completed]


@pytest.mark.parametrize("kill_backend", [False, True], ids=["backend lives on", "backend dies too"])
async def test_a_crash_at_any_point_leaves_each_batch_in_exactly_one_step(kill_backend: bool, tmp_path: Path) -> None:
    undisturbed, points = await live_through([], kill_backend=False, folder=tmp_path / "undisturbed")
    expected = await weights(undisturbed)
    assert points > 40
    for point in range(points):
        world, _ = await live_through([point], kill_backend=kill_backend, folder=tmp_path / str(point))
        assert await weights(world) == expected, f"crash at point {point}"


async def test_an_outage_of_log_or_backend_at_any_point_ends_nothing(tmp_path: Path) -> None:
    undisturbed, points = await live_through([], kill_backend=False, folder=tmp_path / "undisturbed")
    expected = await weights(undisturbed)
    for point in range(points):
        world = World(backend=MemoryBackend(folder=tmp_path / str(point)))
        batches = world.add_batches(BATCHES)
        outage = CrashAt(point, UnavailableError)
        log = outage.wrap(MemoryLog(world.broker, run_id="main", model="agent"))
        await world.trainer(log=log, backend=outage.wrap(world.backend)).run(until_idle=True)
        check_exactly_once(world, batches)
        assert await weights(world) == expected, f"outage {outage.place}, point {point}"


@settings(max_examples=40, deadline=None)
@given(points=st.lists(st.integers(0, 60), min_size=2, max_size=6), kill_backend=st.booleans())
def test_crashes_one_after_another_change_nothing_either(points: list[int], kill_backend: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:

        async def compare() -> None:
            plain, _ = await live_through([], kill_backend=False, folder=Path(folder) / "undisturbed")
            world, _ = await live_through(points, kill_backend=kill_backend, folder=Path(folder) / "crashing")
            assert await weights(world) == await weights(plain)

        asyncio.run(compare())


async def test_a_torn_last_line_of_the_journal_never_happened(tmp_path: Path) -> None:
    world = World(backend=MemoryBackend(folder=tmp_path))
    batches = world.add_batches(1)
    await world.trainer().run(until_idle=True)
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"kind": "trai')
    world.backend = MemoryBackend(folder=tmp_path)
    batches += world.add_batches(1)
    await world.trainer().run(until_idle=True)
    check_exactly_once(world, batches)
