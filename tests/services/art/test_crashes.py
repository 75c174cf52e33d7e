"""The art-server dies at every point of an update; afterwards the weights are those of a run that never crashed."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollbus.schemas.errors import ServiceError
from tests.services.art.fixtures import CRASH_POINTS, ArtServer, Launcher, made_up_batch

pytestmark = pytest.mark.services

BATCHES = ("first", "second", "third")


async def train(server: ArtServer, number: int) -> int:
    client = server.client()
    try:
        result = await client.wait(await client.submit(made_up_batch(BATCHES[number], number)), 0.05)
    finally:
        await client.close()
    return result.version


@pytest.fixture(scope="module")
def undisturbed(
    art_launcher: Launcher, art_base_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[str]]:
    """Digests of versions 1 to 3 of a run without crashes."""
    server = ArtServer(art_launcher, art_base_model, tmp_path_factory.mktemp("undisturbed"))
    server.start()
    for number in range(len(BATCHES)):
        assert asyncio.run(train(server, number)) == number + 1
    yield [server.digest(version) for version in (1, 2, 3)]
    server.stop()


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_after_a_crash_the_same_batch_gives_the_same_bits(
    own_art_server: ArtServer, undisturbed: list[str], point: str
) -> None:
    server = own_art_server
    server.start()
    await train(server, 0)
    server.stop()
    server.start(die_at=point)
    client = server.client()
    with contextlib.suppress(ServiceError):
        await client.submit(made_up_batch(BATCHES[1], 1))
    server.wait_until_dead()
    server.start()
    recorded = await client.journal(BATCHES[1])
    assert (recorded is not None) == (point in ("published", "recorded"))
    assert (await client.versions()).head == (2 if recorded else 1)
    assert not list(server.checkpoints.glob(".tmp-*"))
    assert await train(server, 1) == 2
    assert await train(server, 2) == 3
    await client.close()
    assert [server.digest(version) for version in (1, 2, 3)] == undisturbed


async def test_serving_version_and_rollback_survive_a_restart(own_art_server: ArtServer) -> None:
    server = own_art_server
    server.start()
    client = server.client()
    await train(server, 0)
    await train(server, 1)
    await client.promote(1, rollback=True)
    server.stop()
    server.start()
    versions = await client.versions()
    assert (versions.head, versions.serving) == (1, 1)
    assert await client.journal(BATCHES[1]) is None, "rolled back, so it may be trained again"
    assert await train(server, 1) == 3
    assert [version.parent for version in (await client.versions()).known] == [None, 0, 1, 1]
    assert server.digest(3) == server.digest(2)
    await client.close()
