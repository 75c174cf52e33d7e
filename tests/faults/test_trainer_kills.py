"""Trainer and art-server killed at every named point, and anywhere: each batch one step, and the same weights."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from rollbus.trainer.settings import ArtServerBackend
from tests.services.art_fixtures import ArtServer, Launcher, art_base_model, art_launcher
from tests.services.trainer_kafka import TrainerWorld, ended
from tests.services.trainer_process import WHILE_THE_BACKEND_WORKS

__all__ = ["art_base_model", "art_launcher"]

pytestmark = pytest.mark.faults

BATCHES = 8
SIDES = ("before", "inside", "after")
POINTS = (
    *(f"{side} StepStarted" for side in SIDES),
    WHILE_THE_BACKEND_WORKS,
    *(f"{side} StepCompleted" for side in SIDES),
    *(f"{side} StepCompleted+StepStarted" for side in ("between", "inside", "after")),
)
"""Each side of each of a trainer's transactions, the last of which closes one step and opens the next."""
MEANT_KILLS = 4
"""A run of so many batches that meets fewer was not killed around its updates."""
QUIET_S = 5.0
"""Longer than a trainer takes to start; then it has given up, and is started again."""


@pytest.fixture
def killed(art_launcher: Launcher, art_base_model: Path, tmp_path: Path) -> ArtServer:
    """An art-server with data of its own."""
    return ArtServer(art_launcher, art_base_model, tmp_path)


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


@pytest.fixture(scope="module")
def undisturbed(
    kafka: str, art_launcher: Launcher, art_base_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Sequence[str]:
    """Digests of the versions of a run that nothing happened to."""
    server = ArtServer(art_launcher, art_base_model, tmp_path_factory.mktemp("quiet"))

    async def run() -> None:
        async with world_of(kafka, f"t-{uuid4().hex[:6]}.quiet.", server) as world:
            await world.start()

    asyncio.run(run())
    return digests(server)


async def test_a_trainer_killed_at_each_point_of_a_step_changes_no_weight(
    kafka: str, namespace: str, killed: ArtServer, undisturbed: Sequence[str]
) -> None:
    async with world_of(kafka, namespace, killed) as world:
        for point in POINTS:
            status, errors = await ended(await world.start(point))
            assert status == -signal.SIGKILL, errors
        await world.start()
    assert digests(killed) == undisturbed


@pytest.mark.timeout(900)  # the server is started anew a dozen times
@pytest.mark.parametrize("seed", range(4))
async def test_kills_of_either_or_both_around_updates_change_no_weight(
    kafka: str, namespace: str, killed: ArtServer, undisturbed: Sequence[str], seed: int
) -> None:
    chance = random.Random(seed)
    kills = steps = in_vain = 0
    async with world_of(kafka, namespace, killed) as world:
        trainer = await world.start()
        while (seen := await world.visible_steps()) < BATCHES:
            steps, in_vain = seen, in_vain + 1 if seen == steps else 0
            await something_is_written(killed)
            # about as long as an update; longer once none comes to its end any more, for a machine that is slower
            await asyncio.sleep(chance.uniform(0, 0.2) * max(1, in_vain - 5))
            victims = chance.choice((("trainer",), ("server",), ("trainer", "server")))
            if "server" in victims:
                await asyncio.to_thread(killed.stop, signal.SIGKILL)
            if "trainer" in victims and trainer.returncode is None:
                trainer.kill()
                await trainer.wait()
            if "server" in victims:
                await asyncio.to_thread(killed.start)
            if trainer.returncode is not None:  # killed, or its attempts were used up while the server was away
                trainer = await world.start()
            kills += 1
    assert digests(killed) == undisturbed
    assert kills >= MEANT_KILLS


async def something_is_written(server: ArtServer) -> None:
    """Wait until the server's journal grows: an update begins or ends."""
    journal = server.checkpoints.parent / "journal.jsonl"
    before = journal.stat().st_size
    with suppress(TimeoutError):
        async with asyncio.timeout(QUIET_S):
            while journal.stat().st_size == before:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.002)
