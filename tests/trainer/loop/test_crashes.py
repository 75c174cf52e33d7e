"""Whatever point the trainer dies at, alone or with its backend, a restart ends as if nothing had happened."""

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.steps import StepCompleted
from rollbus.schemas.topics import BATCHES
from rollbus.trainer.backends.memory import MemoryBackend
from tests.trainer.log_memory import MemoryLog
from tests.trainer.loop.crashes import Crash, CrashAt
from tests.trainer.scenario import UPDATE_S, World, check_exactly_once

MakeWorld = Callable[[Path], World]


def plain_world(folder: Path) -> World:
    """A world of two batches, each step closed before the next is opened."""
    world = World(backend=MemoryBackend(folder=folder))
    world.add_batches(2)
    return world


def opening_ahead(folder: Path) -> World:
    """A world of three batches whose updates take long enough that the next step is opened where one is closed."""
    world = World(backend=MemoryBackend(folder=folder, step_s=UPDATE_S))
    world.add_batches(3)
    return world


WORLDS = pytest.mark.parametrize(
    ("make", "least_points"),
    [pytest.param(plain_world, 40, id="step by step"), pytest.param(opening_ahead, 50, id="opened ahead")],
)


async def run_with_crash(world: World, crash: CrashAt, *, kill_backend: bool, folder: Path) -> None:
    """One life of a trainer: to the crash, or until there is nothing left to do."""
    log = crash.wrap(MemoryLog(world.broker, run_id="main", model="agent"))
    try:
        await world.trainer(log=log, backend=crash.wrap(world.backend)).run(until_idle=True)
    except Crash:
        if kill_backend:
            world.backend.kill()
            world.backend = MemoryBackend(folder=folder)


async def live_through(
    points: Sequence[int | None], *, kill_backend: bool, folder: Path, make: MakeWorld = plain_world
) -> tuple[World, int]:
    """Lives that end at the given points, then one undisturbed; returns the world and the points of the first life."""
    world = make(folder)
    batches = world.records(BATCHES)
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


@WORLDS
@pytest.mark.parametrize("kill_backend", [False, True], ids=["backend lives on", "backend dies too"])
async def test_a_crash_at_any_point_leaves_each_batch_in_exactly_one_step(
    make: MakeWorld, least_points: int, kill_backend: bool, tmp_path: Path
) -> None:
    undisturbed, points = await live_through([], kill_backend=False, folder=tmp_path / "undisturbed", make=make)
    expected = await weights(undisturbed)
    assert points > least_points
    for point in range(points):
        world, _ = await live_through([point], kill_backend=kill_backend, folder=tmp_path / str(point), make=make)
        assert await weights(world) == expected, f"crash at point {point}"


@WORLDS
async def test_an_outage_of_log_or_backend_at_any_point_ends_nothing(
    make: MakeWorld, least_points: int, tmp_path: Path
) -> None:
    undisturbed, points = await live_through([], kill_backend=False, folder=tmp_path / "undisturbed", make=make)
    expected = await weights(undisturbed)
    for point in range(points):
        world = make(tmp_path / str(point))
        batches = world.records(BATCHES)
        outage = CrashAt(point, UnavailableError)
        log = outage.wrap(MemoryLog(world.broker, run_id="main", model="agent"))
        await world.trainer(log=log, backend=outage.wrap(world.backend)).run(until_idle=True)
        check_exactly_once(world, batches)
        assert await weights(world) == expected, f"outage {outage.place}, point {point}"


@settings(max_examples=40, deadline=None)
@given(points=st.lists(st.integers(0, 60), min_size=2, max_size=6), kill_backend=st.booleans())
def test_repeated_crashes_change_nothing(points: list[int], kill_backend: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:

        async def compare() -> None:
            plain, _ = await live_through([], kill_backend=False, folder=Path(folder) / "undisturbed")
            world, _ = await live_through(points, kill_backend=kill_backend, folder=Path(folder) / "crashing")
            assert await weights(world) == await weights(plain)

        asyncio.run(compare())


async def test_a_torn_last_line_of_the_journal_never_happened(tmp_path: Path) -> None:
    world = World(backend=MemoryBackend(folder=tmp_path))
    batches = await world.train(1)
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write('{"kind": "trai')
    world.backend = MemoryBackend(folder=tmp_path)
    batches += await world.train(1)
    check_exactly_once(world, batches)
