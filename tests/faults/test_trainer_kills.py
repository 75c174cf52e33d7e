"""Trainer and art-server killed at every named point, and anywhere: each batch one step, and the same weights."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollbus.trainer.settings import ArtServerBackend
from tests.services.art_fixtures import ArtServer, Launcher, art_base_model, art_launcher
from tests.services.trainer_kafka import TrainerWorld, ended

__all__ = ["art_base_model", "art_launcher"]

pytestmark = pytest.mark.faults

BATCHES = 8
SIDES = ("before", "inside", "after")
POINTS = tuple(
    f"{side} {records}" for records in ("StepStarted", "StepCompleted", "StepCompleted+StepStarted") for side in SIDES
)
"""Of a trainer's transactions; the last closes one step and opens the next."""


@pytest.fixture
def new_server(art_launcher: Launcher, art_base_model: Path, tmp_path: Path) -> "ServerMaker":
    return ServerMaker(art_launcher, art_base_model, tmp_path)


class ServerMaker:
    """Art-servers with data of their own, by name."""

    def __init__(self, launcher: Launcher, base_model: Path, folder: Path) -> None:
        self._launcher, self._base_model, self._folder = launcher, base_model, folder

    def __call__(self, name: str) -> ArtServer:
        return ArtServer(self._launcher, self._base_model, self._folder / name)


@asynccontextmanager
async def world_of(kafka: str, namespace: str, server: ArtServer) -> AsyncIterator[TrainerWorld]:
    world = TrainerWorld(kafka, namespace, ArtServerBackend(url=server.url))
    world.max_off_policy_steps = BATCHES  # all batches stand in the log from the start
    server.start()
    await world.open()
    try:
        await world.add_batches(BATCHES)
        yield world
        await world.wait_for_steps(BATCHES)
        await world.check()
    finally:
        await world.close()
        server.stop()


def digests(server: ArtServer) -> Sequence[str]:
    return [server.digest(version) for version in range(1, BATCHES + 1)]


async def undisturbed(kafka: str, namespace: str, server: ArtServer) -> Sequence[str]:
    async with world_of(kafka, f"{namespace}quiet.", server) as world:
        await world.start()
    return digests(server)


async def test_a_trainer_killed_at_each_side_of_each_transaction_changes_no_weight(
    kafka: str, namespace: str, new_server: ServerMaker
) -> None:
    expected = await undisturbed(kafka, namespace, new_server("quiet"))
    killed = new_server("killed")
    async with world_of(kafka, namespace, killed) as world:
        for point in POINTS:
            status, errors = await ended(await world.start(point))
            assert status == -signal.SIGKILL, errors
        await world.start()
    assert digests(killed) == expected


@pytest.mark.parametrize("seed", range(4))
async def test_kills_of_either_or_both_at_any_moment_change_no_weight(
    kafka: str, namespace: str, new_server: ServerMaker, seed: int
) -> None:
    chance = random.Random(seed)
    expected = await undisturbed(kafka, namespace, new_server("quiet"))
    killed = new_server("killed")
    async with world_of(kafka, namespace, killed) as world:
        trainer = await world.start()
        for _ in range(8):
            await asyncio.sleep(chance.uniform(0, 2))
            victims = chance.choice((("trainer",), ("server",), ("trainer", "server")))
            if "server" in victims:
                await asyncio.to_thread(killed.stop, signal.SIGKILL)
            if "trainer" in victims and trainer.returncode is None:
                trainer.kill()
                await trainer.wait()
            if "server" in victims:
                await asyncio.to_thread(killed.start)
            if trainer.returncode is not None:
                trainer = await world.start()
        while await world.visible_steps() < BATCHES:
            if trainer.returncode is not None:  # its attempts were used up while the server was away
                trainer = await world.start()
            await asyncio.sleep(0.2)
    assert digests(killed) == expected
