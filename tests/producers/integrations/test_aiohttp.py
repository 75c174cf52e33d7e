"""Calls through aiohttp are recorded, and its responses are as without us."""

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from rollbus.producers import MemorySink, Recorder
from rollbus.producers.integrations.instrument import instrument
from tests.producers.capture.http_server import ModelServer, answer_to, events_of, serving
from tests.producers.capture.test_http_clients import ASK, GZIP, texts_of
from tests.producers.recorded_events import assert_whole, turns


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """A server on a socket."""
    with serving() as server:
        yield server


@pytest.fixture(autouse=True)
def _instrument_clients(recorder: Recorder) -> Iterator[None]:
    patches = instrument(recorder)
    yield
    patches.undo()


@pytest.mark.parametrize("headers", [{}, GZIP], ids=["plain", "gzip"])
@pytest.mark.parametrize("form", ["json", "data"])
async def test_aiohttp_is_recorded_and_looks_untouched(
    recorder: Recorder, sink: MemorySink, model: ModelServer, headers: dict[str, str], form: str
) -> None:
    url = f"{model.url}/v1/chat/completions"
    sent: Any = {"json": ASK} if form == "json" else {"data": json.dumps(ASK)}
    streamed: Any = {"json": {**ASK, "stream": True}}
    async with recorder.episode(task="t"), aiohttp.ClientSession(headers=headers) as http:
        async with http.post(url, **sent) as response:
            assert await response.json() == answer_to(ASK)
        async with http.post(url, **sent) as response:
            assert json.loads(b"".join([piece async for piece in response.content.iter_any()])) == answer_to(ASK)
        async with http.post(url, **streamed) as response:
            raw = b"".join([line async for line in response.content])
        assert texts_of(raw) == events_of(ASK)
        async with http.post(url, **streamed) as response:
            assert texts_of(await response.read()) == events_of(ASK)
    recorded_turns = turns(recorder, sink)
    assert [turn.streamed for turn in recorded_turns] == [False, False, True, True]
    for turn in recorded_turns:
        assert_whole(turn)


async def test_errors_and_abandoned_streams_of_aiohttp_are_as_without_us(
    recorder: Recorder, sink: MemorySink, model: ModelServer
) -> None:
    url, model.statuses = f"{model.url}/v1/chat/completions", [503, 500, 500]
    async with recorder.episode(task="t"), aiohttp.ClientSession() as http:
        async with http.post(url, json=ASK) as response:
            assert json.loads(await response.content.read()) == {"error": {"message": "busy"}}
        async with http.post(url, json=ASK) as response:
            assert await response.json(content_type=None) == {"error": {"message": "busy"}}
        with pytest.raises(aiohttp.ClientResponseError, match="500"):
            await http.post(url, json=ASK, raise_for_status=True)
        async with http.post(url, json={**ASK, "stream": True}) as response:
            await response.content.readline()
    assert [turn.untrainable_reason for turn in turns(recorder, sink)][:3] == ["call_failed"] * 3
    assert len(turns(recorder, sink)) == 4
