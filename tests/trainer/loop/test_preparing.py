"""The batch that is sent ahead while the backend works: what is begun is what was meant, and no step depends on it."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.applications import Starlette

from rollbus.runtime.http.listener import open_listener
from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.schemas.topics import SCORES
from rollbus.trainer.art_server.control.server import control_door, control_routes
from rollbus.trainer.art_server.endpoint.http_server import quiet_server
from rollbus.trainer.backends import wire
from rollbus.trainer.backends.art_client import ArtClient
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.backends.protocol import Capabilities, TrainRequest, TrainResult, Versions
from tests.builders import make_score
from tests.contracts.backend import make_request
from tests.trainer.scenario import UPDATE_S, World, check_exactly_once


class Noting(MemoryBackend):
    """Notes what is prepared and what is submitted."""

    def __init__(self, **options: Any) -> None:
        super().__init__(step_s=UPDATE_S, **options)
        self.prepared: list[TrainRequest] = []
        self.submitted: list[TrainRequest] = []

    async def prepare(self, request: TrainRequest) -> None:
        self.prepared.append(request)

    async def submit(self, request: TrainRequest) -> str:
        self.submitted.append(request)
        return await super().submit(request)


async def test_a_batch_read_ahead_is_prepared_as_it_is_submitted_later() -> None:
    backend = Noting()
    world = World(backend=backend)
    batches = await world.train(3)
    check_exactly_once(world, batches)
    assert [request.base_version for request in backend.submitted] == [0, 1, 2]
    expected = [replace(request, base_version=request.base_version - 1) for request in backend.submitted[1:]]
    assert backend.prepared == expected


async def test_a_backend_that_takes_nothing_ahead_is_sent_nothing() -> None:
    class Plain(Noting):
        async def capabilities(self) -> Capabilities:
            return replace(await super().capabilities(), prepares=False)

    backend = Plain()
    world = World(backend=backend)
    batches = await world.train(2)
    check_exactly_once(world, batches)
    assert backend.prepared == []


@pytest.mark.parametrize("error", [UnavailableError("away"), RejectedError("unknown"), ValueError("broken")])
async def test_a_batch_that_cannot_be_prepared_fails_no_step(error: Exception) -> None:
    class Refusing(Noting):
        async def prepare(self, request: TrainRequest) -> None:
            raise error

    world = World(backend=Refusing())
    batches = await world.train(3)
    check_exactly_once(world, batches)
    assert world.pauses == []


async def test_a_preparation_longer_than_the_update_is_given_up() -> None:
    given_up: list[str] = []

    class Slow(Noting):
        async def prepare(self, request: TrainRequest) -> None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                given_up.append(request.batch_hash)
                raise

    world = World(backend=Slow())
    batches = await world.train(3)
    check_exactly_once(world, batches)
    assert given_up == [batch.batch_hash for batch in batches[1:]]


async def test_an_episode_excluded_after_its_batch_was_prepared_is_not_submitted() -> None:
    class Excluding(Noting):
        async def prepare(self, request: TrainRequest) -> None:
            await super().prepare(request)
            excluded = request.trajectories[0].trajectory_id
            world.broker.append(SCORES, make_score(excluded, excluded=True))

    backend = Excluding()
    world = World(backend=backend)
    batches = await world.train(2)
    check_exactly_once(world, batches)
    (prepared,), (_, submitted) = backend.prepared, backend.submitted
    excluded = prepared.trajectories[0].trajectory_id
    assert excluded not in {trajectory.trajectory_id for trajectory in submitted.trajectories}


class Server:
    """The routes of the art-server around a memory backend, on a port of the loopback."""

    def __init__(self, backend: MemoryBackend) -> None:
        self.backend = backend
        self.url = ""
        self.asked: list[tuple[str, str, int]] = []
        """Method, path and length of the body."""
        self.restart()

    def restart(self) -> None:
        self._app = Starlette(routes=control_routes(self.backend))  # type: ignore[arg-type]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        length = int(dict(scope["headers"]).get(b"content-length", 0))
        self.asked.append((scope["method"], scope["path"], length))
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ArtClient]:
        art_client = ArtClient(self.url)
        try:
            yield art_client
        finally:
            await art_client.close()

    def submissions(self) -> list[str]:
        """How batches were submitted: whole, or by a word to begin what was sent before."""
        return [path for method, path, _ in self.asked if method == "POST"]


WHOLE, BEGUN = wire.BATCHES, wire.PREPARED


@asynccontextmanager
async def serving(backend: MemoryBackend) -> AsyncIterator[Server]:
    server = Server(backend)
    listener = open_listener("127.0.0.1", 0)
    server.url = "http://{}:{}".format(*listener.getsockname()[:2])
    http = quiet_server(server, control_door(None))
    running = asyncio.create_task(http.serve(sockets=[listener]))
    try:
        yield server
    finally:
        http.should_exit = True
        await running
        await backend.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(MemoryBackend()) as art_server:
        yield art_server


@pytest.fixture
async def client(server: Server) -> AsyncIterator[ArtClient]:
    async with server.client() as art_client:
        yield art_client


async def test_a_prepared_batch_is_submitted_once_with_a_few_bytes(server: Server, client: ArtClient) -> None:
    request = make_request(0)
    await client.prepare(replace(request, base_version=7))
    assert await client.submit(request) == request.batch_hash
    (_, _, prepared_bytes), (_, _, submitted_bytes) = server.asked
    assert submitted_bytes < 100 < prepared_bytes
    await client.submit(request)
    assert server.submissions() == [BEGUN, WHOLE]
    assert (await client.wait(request.batch_hash, 0.05)).base_version == 0
    assert (await client.versions()).head == 1


@pytest.mark.parametrize("changed", ["trajectories", "config", "batch_hash"])
async def test_another_batch_than_the_prepared_one_is_sent_whole(
    server: Server, client: ArtClient, changed: str
) -> None:
    request = make_request(0)
    other = make_request(0, batch_hash=request.batch_hash, rewards=(0.0, 1.0, 1.0))
    others = {
        "trajectories": replace(request, trajectories=other.trajectories),
        "config": replace(request, config=request.config.model_copy(update={"learning_rate": 0.5})),
        "batch_hash": replace(request, batch_hash="another"),
    }
    await client.prepare(request)
    await client.submit(others[changed])
    assert server.submissions() == [WHOLE]


async def test_a_server_that_was_restarted_gets_the_batch_whole(server: Server, client: ArtClient) -> None:
    request = make_request(0)
    await client.prepare(request)
    server.restart()
    await client.submit(request)
    assert server.submissions() == [BEGUN, WHOLE]
    assert (await client.wait(request.batch_hash, 0.05)).version == 1


async def test_another_clients_prepared_batch_of_the_same_hash_is_not_used(server: Server, client: ArtClient) -> None:
    request = make_request(0)
    await client.prepare(request)
    async with server.client() as other:
        await other.prepare(replace(request, trajectories=make_request(0, rewards=(0.0, 3.0)).trajectories))
    await client.submit(request)
    assert server.submissions() == [BEGUN, WHOLE]
    await client.wait(request.batch_hash, 0.05)
    alone = MemoryBackend()
    await alone.submit(request)
    await alone.wait(request.batch_hash)
    assert server.backend.weights(1) == alone.weights(1)


async def test_a_refusal_says_why_and_not_that_nothing_was_prepared(client: ArtClient) -> None:
    request = make_request(5)
    await client.prepare(request)
    with pytest.raises(RejectedError, match="moved on to 0"):
        await client.submit(request)


async def test_a_figure_that_is_not_finite_arrives_as_it_is(server: Server) -> None:
    """A service may report one; the alarm about divergence looks for it."""
    metrics = {"grad_norm": math.nan, "loss": -math.inf}
    server.backend.record_result(TrainResult("batch", 0, 1, "completed", ("a",), {}, metrics, "memory/0001"))
    async with server.client() as client:
        assert (await client.wait("batch")).metrics == pytest.approx(metrics, nan_ok=True)


async def test_a_client_that_hangs_up_while_sending_logs_no_server_failure(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    (route,) = [route for route in control_routes(server.backend) if "PUT" in (route.methods or ())]  # type: ignore[arg-type]
    messages: list[Any] = [{"type": "http.request", "body": b"half", "more_body": True}, {"type": "http.disconnect"}]
    scope = {"type": "http", "method": "PUT", "path": wire.PREPARED, "headers": [], "query_string": b""}

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        pass

    await route.app(scope, receive, send)
    assert not caplog.records


@pytest.mark.parametrize(
    ("failure", "kind"), [(OSError(24, "too many open files"), UnavailableError), (KeyError("x"), RejectedError)]
)
async def test_a_server_short_of_files_or_memory_may_be_asked_again(failure: Exception, kind: type[Exception]) -> None:
    class Short(MemoryBackend):
        async def versions(self) -> Versions:
            raise failure

    async with serving(Short()) as server, server.client() as client:
        with pytest.raises(kind, match=type(failure).__name__):
            await client.versions()
