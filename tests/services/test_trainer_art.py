"""The trainer on a real broker and a real art-server: what it left there when killed is recorded, not repeated."""

import signal
from collections.abc import AsyncIterator

import pytest

from rollbus.trainer.settings import ArtServerBackend
from tests.services.art_fixtures import ArtServer
from tests.services.trainer_kafka import TrainerWorld, ended

pytestmark = pytest.mark.services


@pytest.fixture
async def world(kafka: str, namespace: str, art_server: ArtServer) -> AsyncIterator[TrainerWorld]:
    world = TrainerWorld(kafka, namespace, ArtServerBackend(url=art_server.url))
    await world.open()
    client = art_server.client()
    world.sampled_by = await client.current_version()
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
