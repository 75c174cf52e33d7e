"""The art-server's client: what it makes of answers, errors and silence."""

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from rollbus.schemas.errors import RejectedError, UnavailableError
from rollbus.trainer.backends.art_client import RETRY_PAUSES_S, ArtClient
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.backends.protocol import TrainRequest, TrainResult
from rollbus.trainer.backends.wire import capabilities_to_json, result_to_json

Handler = Callable[[httpx.Request], httpx.Response]


class Answers:
    """A server that answers from a list, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[httpx.Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer[0], json=answer[1])

    def client(self, **options: Any) -> ArtClient:
        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)

        return ArtClient("http://server", transport=httpx.MockTransport(self), sleep=sleep, **options)


def error(message: str, *, retriable: bool) -> dict[str, Any]:
    return {"error": {"message": message, "retriable": retriable}}


STATUS = {"batch_hash": "b", "state": "running", "progress": 0.0, "message": "", "retriable": False}
VERSION = {"version": 2, "parent": 1, "batch_hash": "b", "checkpoint": "0002", "loaded": True}


async def test_the_token_is_sent_as_a_bearer_token() -> None:
    server = Answers((200, {"result": None}))
    client = server.client(token="secret")
    assert await client.journal("b") is None
    assert server.asked[0].headers["authorization"] == "Bearer secret"
    await client.close()


async def test_silence_is_asked_again_and_then_the_service_is_unavailable() -> None:
    server = Answers(httpx.ConnectError("refused"))
    client = server.client()
    with pytest.raises(UnavailableError, match=r"http://server/rollbus/v1/versions.*art-server"):
        await client.versions()
    assert server.pauses == list(RETRY_PAUSES_S)
    await client.close()


async def test_one_lost_connection_is_not_noticed() -> None:
    server = Answers(httpx.ReadError("reset"), (200, {"head": 2, "serving": 1, "known": []}))
    client = server.client()
    assert (await client.versions()).serving == 1
    await client.close()


async def test_a_refusal_is_not_asked_again() -> None:
    server = Answers((409, error("wrong base version", retriable=False)))
    client = server.client()
    with pytest.raises(RejectedError, match="wrong base version"):
        await client.promote(3)
    assert len(server.asked) == 1
    await client.close()


async def test_an_error_of_a_proxy_without_json_can_be_tried_again() -> None:
    def gateway(request: httpx.Request) -> httpx.Response:
        return httpx.Response(502, text="<html>bad gateway</html>")

    client = ArtClient("http://server", transport=httpx.MockTransport(gateway))
    with pytest.raises(UnavailableError, match="502"):
        await client.capabilities()
    await client.close()


async def test_an_address_at_which_something_else_listens_is_named() -> None:
    client = Answers((404, {"detail": "Not Found"})).client()
    with pytest.raises(RejectedError, match=r"GET http://server/rollbus/v1/capabilities answered 404.*`backend: url`"):
        await client.capabilities()
    await client.close()


async def test_an_error_of_a_proxy_in_json_of_its_own_can_be_tried_again() -> None:
    client = Answers((502, {"error": "bad gateway"})).client()
    with pytest.raises(UnavailableError, match="502"):
        await client.capabilities()
    await client.close()


async def test_what_a_newer_server_says_besides_is_not_heard() -> None:
    server = Answers((200, {"head": 2, "serving": 1, "known": [VERSION | {"colour": "red"}], "queue": 3}))
    client = server.client()
    assert [each.version for each in (await client.versions()).known] == [2]
    server.answers = [(200, capabilities_to_json(await MemoryBackend().capabilities()) | {"paints": True})]
    assert (await client.capabilities()).model == "agent"
    server.answers = [(200, STATUS | {"colour": "red"})]
    assert (await client.status("b")).state == "running"
    await client.close()


async def test_a_server_that_died_as_soon_as_it_had_the_batch_gets_it_again() -> None:
    server = Answers((202, {"batch_hash": "b"}), (409, error("never submitted", retriable=False)))
    client = server.client()
    await client.submit(TrainRequest("b", "main", "agent", 0, ()))
    with pytest.raises(UnavailableError, match="restarted meanwhile; submit it again"):
        await client.wait("b")
    with pytest.raises(RejectedError, match="never submitted"):
        await client.wait("another")
    await client.close()


async def test_a_server_that_forgot_a_running_batch_was_restarted_and_gets_it_again() -> None:
    server = Answers((200, STATUS), (200, STATUS), (409, error("never submitted", retriable=False)))
    client = server.client()
    with pytest.raises(UnavailableError, match="restarted meanwhile; submit it again"):
        await client.wait("b")
    await client.close()


@pytest.mark.parametrize("told", [True, False])
async def test_a_result_that_comes_with_the_status_is_not_asked_for_again(told: bool) -> None:
    result = result_to_json(TrainResult("b", 0, 1, "completed", ("t",), {}, {"loss": 0.5}, "0001"))
    completed = STATUS | {"state": "completed"}
    server = Answers((200, STATUS), (200, completed | ({"result": result} if told else {})), (200, {"result": result}))
    client = server.client()
    assert (await client.wait("b")).version == 1
    assert len(server.asked) == (2 if told else 3)
    await client.close()


@pytest.mark.parametrize(("retriable", "kind"), [(True, UnavailableError), (False, RejectedError)])
async def test_a_failed_job_raises_what_its_status_says(retriable: bool, kind: type[Exception]) -> None:
    failed = STATUS | {"state": "failed", "message": "disk full", "retriable": retriable}
    client = Answers((200, failed)).client()
    with pytest.raises(kind, match="disk full"):
        await client.wait("b")
    await client.close()


async def test_health_is_a_plain_answer_and_never_an_error() -> None:
    for answer, healthy in (((200, {}), True), ((503, {}), False), (httpx.ConnectError("refused"), False)):
        client = Answers(answer).client()
        assert await client.is_healthy() is healthy
        await client.close()
