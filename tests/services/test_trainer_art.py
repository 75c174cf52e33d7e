"""The trainer on a real broker and a real art-server: whichever of the two is killed, nothing is trained twice."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from rollbus.trainer.settings import ArtServerBackend
from tests.services.art_fixtures import CRASH_POINTS, ArtServer, Launcher
from tests.services.trainer_kafka import TrainerWorld, ended

pytestmark = pytest.mark.services


@pytest.fixture
async def world(kafka: str, namespace: str, art_server: ArtServer) -> AsyncIterator[TrainerWorld]:
    world = TrainerWorld(kafka, namespace, ArtServerBackend(url=art_server.url))
    await world.open()
    client = art_server.client()
    world.sampled_by = (await client.versions()).head
    await client.close()
    yield world
    await world.close()


async def test_a_trainer_killed_around_its_transactions_has_every_batch_trained_once(
    world: TrainerWorld,
) -> None:
    await world.add_batches(2)
    for die_at in ("after StepStarted", "inside StepCompleted"):
        status, errors = await ended(await world.start(die_at))
        assert status == -signal.SIGKILL, errors
    await world.start()
    await world.wait_for_steps(2)
    await world.check()
    steps = await world.steps()
    assert all(step.metrics["trained"] == 3 for step in steps)
    assert [[each.lag for each in step.trained] for step in steps] == [[0, 0, 0], [1, 1, 1]]


async def train_one(world: TrainerWorld, server: ArtServer, *, die_at: str = "") -> str:
    """One more batch; with `die_at` the server is killed there, under the trainer that waits for it, and comes back."""
    if die_at:
        server.stop()
        server.start(die_at=die_at)
    await world.add_batches(1)
    if die_at:
        await asyncio.to_thread(server.wait_until_dead)
        await asyncio.to_thread(server.start)
    await world.wait_for_steps(len(world.batches))
    world.sampled_by = (await world.steps())[-1].policy_version
    return server.digest(world.sampled_by)


async def run_of(kafka: str, namespace: str, server: ArtServer, points: Sequence[str]) -> list[str]:
    """One trainer process through as many batches as there are points; the digest of each version."""
    world = TrainerWorld(kafka, namespace, ArtServerBackend(url=server.url))
    await world.open()
    try:
        server.start()
        await world.start()
        digests = [await train_one(world, server, die_at=point) for point in points]
        await world.check()
        assert (await world.failures() != []) == any(points)
    finally:
        await world.close()
        server.stop()
    return digests


async def test_an_art_server_killed_at_any_point_under_a_waiting_trainer_changes_no_weight(
    kafka: str, namespace: str, art_launcher: Launcher, art_base_model: Path, tmp_path: Path
) -> None:
    def server(name: str) -> ArtServer:
        return ArtServer(art_launcher, art_base_model, tmp_path / name)

    points = ("", *CRASH_POINTS)
    undisturbed = await run_of(kafka, f"{namespace}quiet.", server("quiet"), [""] * len(points))
    assert await run_of(kafka, namespace, server("killed"), points) == undisturbed
