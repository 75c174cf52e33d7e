"""Trainer and art-server killed at every named point, and anywhere: each batch one step, and the same weights."""

import asyncio
import random
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from rollbus.trainer.settings import ArtServerBackend
from tests.services.art.fixtures import ArtServer, Launcher, art_base_model, art_launcher
from tests.services.trainer.kafka import PATIENCE_S, TrainerWorld, ended
from tests.services.trainer.process import WHILE_THE_BACKEND_WORKS

__all__ = ["art_base_model", "art_launcher"]

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]  # a dozen processes start one after another

BATCHES = 8
SIDES = ("before", "inside", "after")
POINTS = (
    *(f"{side} StepStarted" for side in SIDES),
    WHILE_THE_BACKEND_WORKS,
    *(f"{side} StepCompleted" for side in SIDES),
    *(f"{side} StepCompleted+StepStarted" for side in ("between", "inside", "after")),
)
"""Each side of each of a trainer's transactions, the last of which closes one step and opens the next."""
KILLS = 6
"""In each schedule. Each waits for a batch of its own, whose update begins and ends: two lines of the journal."""
VICTIMS = (("trainer",), ("server",), ("trainer", "server"))
UPDATE_S = 0.2
"""About as long as an update: the longest time from a line of the journal to the kill."""


@pytest.fixture
def killed_server(art_launcher: Launcher, art_base_model: Path, tmp_path: Path) -> ArtServer:
    """An art-server with data of its own."""
    return ArtServer(art_launcher, art_base_model, tmp_path)


@asynccontextmanager
async def world_of(
    kafka: str, namespace: str, server: ArtServer, *, batches: int = BATCHES
) -> AsyncIterator[TrainerWorld]:
    world = TrainerWorld(kafka, namespace, ArtServerBackend(url=server.url))
    world.max_off_policy_steps = BATCHES  # all batches stand in the log from the start
    server.start()
    await world.open()
    try:
        await world.add_batches(batches)
        yield world
        await world.wait_for_steps(BATCHES)
        await world.check()
    finally:
        await world.close()
        server.stop()


def digests(server: ArtServer) -> Sequence[str]:
    return [server.digest(version) for version in range(1, BATCHES + 1)]


@pytest.fixture(scope="module")
def undisturbed_versions(
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
    kafka: str, namespace: str, killed_server: ArtServer, undisturbed_versions: Sequence[str]
) -> None:
    async with world_of(kafka, namespace, killed_server) as world:
        for point in POINTS:
            status, errors = await ended(await world.start(point))
            assert status == -signal.SIGKILL, errors
        await world.start()
    assert digests(killed_server) == undisturbed_versions


@pytest.mark.parametrize("schedule", range(4))
async def test_kills_of_either_or_both_around_updates_change_no_weight(
    kafka: str,
    namespace: str,
    killed_server: ArtServer,
    undisturbed_versions: Sequence[str],
    chance: random.Random,
    schedule: int,
) -> None:
    kills = 0
    async with world_of(kafka, namespace, killed_server, batches=BATCHES - KILLS) as world:

        async def an_update_begins_or_ends() -> bool:
            if journal_lines(killed_server) < lines:
                return False
            await asyncio.sleep(delay_s)
            return True

        async def all_is_trained() -> bool:
            return await world.visible_steps() == BATCHES

        trainer = await world.start()
        for _ in range(KILLS):
            lines = journal_lines(killed_server) + chance.choice((1, 2))
            delay_s, victims = chance.uniform(0, UPDATE_S), chance.choice(VICTIMS)
            await world.add_batches(1)
            trainer = await kept_running(world, trainer, an_update_begins_or_ends)
            if "trainer" in victims:
                trainer.kill()
                assert await trainer.wait() == -signal.SIGKILL
            if "server" in victims:
                assert killed_server.is_running()
                await asyncio.to_thread(killed_server.stop, signal.SIGKILL)
                await asyncio.to_thread(killed_server.start)
            kills += 1
        await kept_running(world, trainer, all_is_trained)
    assert digests(killed_server) == undisturbed_versions
    assert kills == KILLS


def journal_lines(server: ArtServer) -> int:
    """Return how often an update has begun or ended."""
    journal = server.checkpoints.parent / "journal.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


async def kept_running(world: TrainerWorld, trainer: Process, until: Callable[[], Awaitable[bool]]) -> Process:
    """Start the trainer again whenever it has ended, until the condition holds; return the one that runs then.

    It ends by a kill, and when its attempts are used up while the server is away.
    """
    async with asyncio.timeout(PATIENCE_S):
        while not await until() or trainer.returncode is not None:
            if trainer.returncode is not None:
                trainer = await world.start()
            await asyncio.sleep(0.002)
    return trainer


async def test_trainers_resumed_after_a_freeze_end_only_themselves(
    kafka: str, namespace: str, killed_server: ArtServer, undisturbed_versions: Sequence[str], chance: random.Random
) -> None:
    """Each is started again, as a supervisor does: it waits, and takes over from the next that is stopped."""
    async with world_of(kafka, namespace, killed_server, batches=BATCHES - 2) as world:
        working = await world.start()
        for stops in range(2):
            await world.wait_for_steps(stops + 1)
            successor = await world.start()
            await asyncio.sleep(chance.uniform(0, 10 * UPDATE_S))
            working.send_signal(signal.SIGSTOP)
            await world.add_batches(1)
            await world.wait_for_steps(len(world.batches))
            working.send_signal(signal.SIGCONT)
            status, errors = await ended(working)
            assert (status, "FencedError" in errors) == (1, True), errors
            assert successor.returncode is None
            working = successor
    assert digests(killed_server) == undisturbed_versions
