"""Calls are recorded where they leave: a program's own HTTP client behaves as without us, and what it got is a turn."""

import asyncio
import importlib
import json
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from typing import Any

import openai
import pytest

from rollbus.producers import MemorySink, Recorder
from rollbus.producers.integrations.instrument import instrument
from tests.producers.capture.http_server import ModelServer, answer_to, events_of, serving
from tests.producers.openai_server import streamed
from tests.producers.recorded_events import assert_whole, turns

ASK: dict[str, Any] = {"model": "agent", "messages": [{"role": "user", "content": "Say hello"}]}
GZIP = {"x-want": "gzip"}
MODULES = [name for name in ("httpx", "httpx2") if find_spec(name)]


@pytest.fixture(scope="module")
def listening() -> Iterator[ModelServer]:
    """One server for the file."""
    with serving() as server:
        yield server


@pytest.fixture
def model(listening: ModelServer) -> ModelServer:
    """The server, as if new."""
    listening.requests.clear()
    listening.statuses.clear()
    return listening


@pytest.fixture(autouse=True)
def _instrument_clients(recorder: Recorder) -> Iterator[None]:
    patches = instrument(recorder)
    yield
    patches.undo()


def module_of(name: str) -> Any:
    """The HTTP library."""
    return importlib.import_module(name)


def texts_of(raw: bytes) -> list[Any]:
    """The chunks that an application reads in a stream's bytes."""
    lines = raw.decode().splitlines()
    assert lines[-2:] == ["data: [DONE]", ""]
    return [json.loads(line[len("data: ") :]) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("headers", [{}, GZIP], ids=["plain", "gzip"])
def test_an_answer_is_a_turn_and_looks_untouched(
    recorder: Recorder, sink: MemorySink, model: ModelServer, name: str, headers: dict[str, str]
) -> None:
    with module_of(name).Client() as http:
        with recorder.episode(task="t"):
            response = http.post(f"{model.url}/v1/chat/completions", json=ASK, headers=headers)
        assert isinstance(response, module_of(name).Response)
        assert response.json() == answer_to(ASK)
        assert json.loads(response.request.content) == ASK
        assert int(response.headers["content-length"]) == len(response.content)
        assert response.elapsed.total_seconds() > 0
    (turn,) = turns(recorder, sink)
    assert_whole(turn)


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("headers", [{}, GZIP], ids=["plain", "gzip"])
@pytest.mark.parametrize("read", ["iter_raw", "iter_bytes", "read"])
def test_a_stream_is_a_turn_and_looks_untouched(
    recorder: Recorder, sink: MemorySink, model: ModelServer, name: str, headers: dict[str, str], read: str
) -> None:
    options = {"json": {**ASK, "stream": True}, "headers": headers}
    with (
        recorder.episode(task="t"),
        module_of(name).Client() as http,
        http.stream("POST", f"{model.url}/v1/chat/completions", **options) as response,
    ):
        raw = response.read() if read == "read" else b"".join(getattr(response, read)())
    assert texts_of(raw) == events_of(ASK)
    assert raw.count(b": alive") == len(events_of(ASK)) + 1
    (turn,) = turns(recorder, sink)
    assert_whole(turn)
    assert turn.streamed


@pytest.mark.parametrize("name", MODULES)
async def test_an_asynchronous_client_is_recorded_too(
    recorder: Recorder, sink: MemorySink, model: ModelServer, name: str
) -> None:
    url = f"{model.url}/v1/chat/completions"
    async with recorder.episode(task="t"), module_of(name).AsyncClient() as http:
        answers = await asyncio.gather(*(http.post(url, json=ASK) for _ in range(3)))
        assert [answer.json() for answer in answers] == [answer_to(ASK)] * 3
        async with http.stream("POST", url, json={**ASK, "stream": True}) as response:
            raw = b"".join([piece async for piece in response.aiter_bytes()])
    assert texts_of(raw) == events_of(ASK)
    recorded_turns = turns(recorder, sink)
    assert len(recorded_turns) == 4
    for turn in recorded_turns:
        assert_whole(turn)


@pytest.mark.parametrize("name", MODULES)
async def test_a_stream_that_is_drained_behind_its_last_event_is_recorded_once(
    recorder: Recorder, sink: MemorySink, name: str
) -> None:
    module, url, request = module_of(name), "http://server/v1/chat/completions", {**ASK, "stream": True}
    data = "".join(f"data: {json.dumps(event)}\n\n" for event in streamed()).encode() + b"data: [DONE]\n\n"

    class AlwaysFromTheStart(module.SyncByteStream, module.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[bytes]:
            yield data

        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield data

    def answer(_: Any) -> Any:
        return module.Response(200, headers={"content-type": "text/event-stream"}, stream=AlwaysFromTheStart())

    with recorder.episode(task="t"):
        with (
            module.Client(transport=module.MockTransport(answer)) as http,
            http.stream("POST", url, json=request) as got,
        ):
            pieces = got.iter_raw()
            assert texts_of(next(pieces)) == events_of(request)
            assert list(got.stream) == []
        async with (
            module.AsyncClient(transport=module.MockTransport(answer)) as http,
            http.stream("POST", url, json=request) as got,
        ):
            pieces = got.aiter_raw()
            assert texts_of(await anext(pieces)) == events_of(request)
            assert [piece async for piece in got.stream] == []
    recorded_turns = turns(recorder, sink)
    assert len(recorded_turns) == 2
    for turn in recorded_turns:
        assert_whole(turn)


@pytest.mark.parametrize("name", MODULES)
def test_a_turn_names_its_server_and_no_secret_of_the_address(
    recorder: Recorder, sink: MemorySink, model: ModelServer, name: str
) -> None:
    with recorder.episode(task="t"), module_of(name).Client() as http:
        address = f"{model.url}/v1/chat/completions?api-key=secret".replace("://", "://user:secret@")
        http.post(address, json=ASK)
        http.post(address, json=ASK | {"n": "many"})
    assert {turn.server for turn in turns(recorder, sink)} == {model.url}


@pytest.mark.parametrize("name", MODULES)
def test_redirects_hooks_and_authentication_of_the_application_go_on(
    recorder: Recorder, sink: MemorySink, model: ModelServer, name: str
) -> None:
    seen: list[Any] = []
    hooks = {"request": [seen.append], "response": [lambda response: seen.append(response.read())]}
    options: Any = {"event_hooks": hooks, "auth": ("user", "password"), "follow_redirects": True}
    with recorder.episode(task="t"), module_of(name).Client(**options) as http:
        response = http.post(f"{model.url}/moved/chat/completions", json=ASK)
    assert response.json() == answer_to(ASK)
    assert [entry.status_code for entry in response.history] == [307]
    assert len(seen) == 4
    assert [request.headers["authorization"] for request in (seen[0], seen[2])] == ["Basic dXNlcjpwYXNzd29yZA=="] * 2
    (turn,) = turns(recorder, sink)
    assert_whole(turn)


@pytest.mark.parametrize("name", MODULES)
def test_an_error_that_is_streamed_is_the_applications_to_read(
    recorder: Recorder, sink: MemorySink, model: ModelServer, name: str
) -> None:
    model.statuses = [503]
    with (
        recorder.episode(task="t"),
        module_of(name).Client() as http,
        http.stream("POST", f"{model.url}/v1/chat/completions", json={**ASK, "stream": True}) as response,
    ):
        assert json.loads(b"".join(response.iter_raw())) == {"error": {"message": "busy"}}
    assert [turn.untrainable_reason for turn in turns(recorder, sink)] == ["call_failed"]


def test_the_attempts_of_one_call_are_one_turn(recorder: Recorder, sink: MemorySink, model: ModelServer) -> None:
    with openai.OpenAI(api_key="k", base_url=f"{model.url}/v1", max_retries=1) as client:
        client._calculate_retry_timeout = lambda *arguments, **options: 0.0  # type: ignore[method-assign]
        with recorder.episode(task="t"):
            model.statuses = [500]
            client.chat.completions.create(**ASK)
            model.statuses = [500, 500]
            with pytest.raises(openai.InternalServerError):
                client.chat.completions.create(**ASK)
    assert [turn.untrainable_reason for turn in turns(recorder, sink)] == [None, "call_failed"]
    assert len(model.requests) == 4
    assert recorder.counters["calls_failed"] == 1


@pytest.mark.parametrize("name", MODULES)
def test_a_request_that_is_not_a_model_call_passes(
    recorder: Recorder, sink: MemorySink, model: ModelServer, name: str
) -> None:
    with recorder.episode(task="t"), module_of(name).Client() as http:
        http.post(f"{model.url}/v1/embeddings", json={"model": "agent", "input": "x"})
        http.post(f"{model.url}/v1/chat/completions", json={"question": "x"})
    assert [set(request) for request in model.requests] == [{"model", "input"}, {"question"}]
    assert turns(recorder, sink) == []


def test_after_undo_nothing_is_recorded(recorder: Recorder, sink: MemorySink, model: ModelServer) -> None:
    instrument(recorder).undo()
    with recorder.episode(task="t"), module_of("httpx").Client() as http:
        http.post(f"{model.url}/v1/chat/completions", json=ASK)
    assert model.requests == [ASK]
    assert turns(recorder, sink) == []
