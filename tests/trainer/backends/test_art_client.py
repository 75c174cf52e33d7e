"""The art-server's client: what it makes of answers, errors and silence."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer

from rollbus.local.process.ports import find_free_port
from rollbus.schemas.errors import ConfigurationError, RejectedError, UnavailableError
from rollbus.trainer.backends import art_client
from rollbus.trainer.backends.art_client import RETRY_PAUSES_S, ArtClient
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.backends.protocol import TrainRequest, TrainResult
from rollbus.trainer.backends.wire import to_json

SILENCE = None
"""An answer that never comes: the connection breaks."""


class Answers:
    """A server that answers from a list, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[web.BaseRequest] = []
        self.bodies: list[bytes] = []
        self.pauses: list[float] = []

    async def answer(self, request: web.BaseRequest) -> web.Response:
        self.asked.append(request)
        self.bodies.append(await request.read())
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is SILENCE:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        status, body = answer
        return (
            web.Response(status=status, text=body) if isinstance(body, str) else web.json_response(body, status=status)
        )

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[ArtClient]:
        """A client of the server; both end with the block."""
        async with RawTestServer(self.answer) as server:
            client = ArtClient(str(server.make_url("")), sleep=self.sleep, **options)
            try:
                yield client
            finally:
                await client.close()


def error(message: str, *, retriable: bool) -> dict[str, Any]:
    return {"error": {"message": message, "retriable": retriable}}


STATUS = {"batch_hash": "b", "state": "running", "progress": 0.0, "message": "", "retriable": False}
VERSION = {"version": 2, "parent": 1, "batch_hash": "b", "checkpoint": "0002", "loaded": True}


async def test_the_token_is_sent_as_a_bearer_token() -> None:
    server = Answers((200, {"result": None}))
    async with server.client(token="secret") as client:
        assert await client.journal("b") is None
    assert server.asked[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("token", ["secret\n", "sec\x00ret", "se crét", " secret"])
def test_a_token_that_no_header_takes_is_a_mistake_in_the_settings(token: str) -> None:
    with pytest.raises(ConfigurationError, match="token") as raised:
        ArtClient("http://127.0.0.1:1", token=token)
    assert token not in str(raised.value)


async def test_a_silent_service_is_asked_again_before_it_is_unavailable() -> None:
    server = Answers(SILENCE)
    async with server.client() as client:
        with pytest.raises(UnavailableError, match=r"http://127.0.0.1:\d+/rollbus/v1/versions.*art-server"):
            await client.versions()
    assert server.pauses == list(RETRY_PAUSES_S)


async def test_an_address_without_a_server_counts_as_silence() -> None:
    server = Answers()
    client = ArtClient(f"http://127.0.0.1:{find_free_port()}", sleep=server.sleep)
    with pytest.raises(UnavailableError, match="no answer from the art-server"):
        await client.versions()
    assert server.pauses == list(RETRY_PAUSES_S)
    await client.close()


async def test_one_lost_connection_causes_no_error() -> None:
    server = Answers(SILENCE, (200, {"head": 2, "serving": 1, "known": []}))
    async with server.client() as client:
        assert (await client.versions()).serving == 1


async def test_a_batch_whose_connection_was_lost_is_sent_again_whole() -> None:
    server = Answers(SILENCE, (202, {"batch_hash": "b"}))
    async with server.client() as client:
        await client.submit(TrainRequest("b", "main", "agent", 0, ()))
    first, second = server.bodies
    assert first == second != b""


async def test_a_server_that_stops_taking_a_body_is_given_up_like_a_silent_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(art_client, "ANSWER_TIMEOUT_S", 0.05)
    monkeypatch.setattr(art_client, "SLOWEST_BYTES_PER_S", 1 << 30)
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    with socket.create_server(("127.0.0.1", 0)) as server:  # takes what fits the kernel's buffers
        http = art_client.ArtHttp("http://{}:{}".format(*server.getsockname()), sleep=sleep)
        async with asyncio.timeout(120):
            with pytest.raises(UnavailableError, match="no answer from the art-server"):
                await http.ask("POST", "/batches", data=bytes(16 << 20))
            await http.close()
    assert pauses == list(RETRY_PAUSES_S)


async def test_a_refusal_is_not_asked_again() -> None:
    server = Answers((409, error("wrong base version", retriable=False)))
    async with server.client() as client:
        with pytest.raises(RejectedError, match="wrong base version"):
            await client.promote(3)
    assert len(server.asked) == 1


@pytest.mark.parametrize("body", ["<html>bad gateway</html>", {"error": "bad gateway"}])
async def test_an_error_of_a_proxy_can_be_tried_again(body: Any) -> None:
    async with Answers((502, body)).client() as client:
        with pytest.raises(UnavailableError, match="502"):
            await client.capabilities()


async def test_an_address_at_which_something_else_listens_is_named() -> None:
    expected = r"GET http://127.0.0.1:\d+/rollbus/v1/capabilities answered 404.*`backend: url`"
    async with Answers((404, {"detail": "Not Found"})).client() as client:
        with pytest.raises(RejectedError, match=expected):
            await client.capabilities()


async def test_a_redirect_is_not_followed() -> None:
    server = Answers((302, "moved"))
    async with server.client(token="secret") as client:
        with pytest.raises(UnavailableError, match="answered 302 with no JSON object"):
            await client.versions()
    assert len(server.asked) == 1


async def test_unknown_fields_of_a_newer_server_are_ignored() -> None:
    server = Answers((200, {"head": 2, "serving": 1, "known": [VERSION | {"colour": "red"}], "queue": 3}))
    async with server.client() as client:
        assert [version.version for version in (await client.versions()).known] == [2]
        server.answers = [(200, to_json(await MemoryBackend().capabilities()) | {"paints": True})]
        assert (await client.capabilities()).model == "agent"
        server.answers = [(200, STATUS | {"colour": "red"})]
        assert (await client.status("b")).state == "running"


async def test_a_server_that_died_as_soon_as_it_had_the_batch_gets_it_again() -> None:
    server = Answers((202, {"batch_hash": "b"}), (409, error("never submitted", retriable=False)))
    async with server.client() as client:
        await client.submit(TrainRequest("b", "main", "agent", 0, ()))
        with pytest.raises(UnavailableError, match="restarted meanwhile; submit it again"):
            await client.wait("b")
        with pytest.raises(RejectedError, match="never submitted"):
            await client.wait("another")


async def test_a_batch_forgotten_by_its_server_is_to_be_submitted_again() -> None:
    server = Answers((200, STATUS), (200, STATUS), (409, error("never submitted", retriable=False)))
    async with server.client() as client:
        with pytest.raises(UnavailableError, match="restarted meanwhile; submit it again"):
            await client.wait("b")


@pytest.mark.parametrize("with_result", [True, False])
async def test_a_result_that_comes_with_the_status_is_not_asked_for_again(with_result: bool) -> None:
    result = to_json(TrainResult("b", 0, 1, "completed", ("t",), {}, {"loss": 0.5}, "0001"))
    completed = STATUS | {"state": "completed"}
    server = Answers(
        (200, STATUS), (200, completed | ({"result": result} if with_result else {})), (200, {"result": result})
    )
    async with server.client() as client:
        assert (await client.wait("b")).version == 1
    assert len(server.asked) == (2 if with_result else 3)


@pytest.mark.parametrize(("retriable", "kind"), [(True, UnavailableError), (False, RejectedError)])
async def test_a_failed_job_raises_what_its_status_says(retriable: bool, kind: type[Exception]) -> None:
    failed = STATUS | {"state": "failed", "message": "disk full", "retriable": retriable}
    async with Answers((200, failed)).client() as client:
        with pytest.raises(kind, match="disk full"):
            await client.wait("b")


@pytest.mark.parametrize(("answer", "healthy"), [((200, {}), True), ((503, {}), False), (SILENCE, False)])
async def test_health_is_a_plain_answer_and_never_an_error(answer: Any, healthy: bool) -> None:
    server = Answers(answer)
    async with server.client() as client:
        assert await client.is_healthy() is healthy
    assert server.pauses == []
