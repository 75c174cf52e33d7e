"""The recorders, each as a function that returns clients recorded by it; each runs in a process of its own.

Every one is set up as its documentation says, with the texts of prompt and answer recorded, and sends to a sink that
takes everything at once, so that none is slowed by what is behind it.
"""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import MethodType
from typing import Any

import httpx2
import openai
from openai.resources.chat.completions import AsyncCompletions, Completions

from benchmarks.capture.answer import MODEL, encoded, prompt, streamed

Call = Callable[[], Any]
_CREATE, _REQUEST = Completions.create, openai.OpenAI.request  # as they are before a recorder replaces them
_CREATE_ASYNC, _REQUEST_ASYNC = AsyncCompletions.create, openai.AsyncOpenAI.request


@dataclass(frozen=True, slots=True)
class Clients:
    """What a recorder records: two clients of the same server, by their methods that ask it."""

    create: Callable[..., Any]
    create_async: Callable[..., Any]

    def calls(self) -> dict[str, Call]:
        """Return what is measured: an answer, and the same server's stream, read blocking and asynchronously."""
        loop, options = asyncio.new_event_loop(), {"model": MODEL, "messages": prompt(), "logprobs": True}

        async def read() -> list[Any]:
            return [chunk async for chunk in await self.create_async(**options, stream=True)]

        return {
            "answer": lambda: self.create(**options),
            "stream": lambda: list(self.create(**options, stream=True)),
            "asynchronous stream": lambda: loop.run_until_complete(read()),
        }


def ours() -> Clients:
    """Return wrapped clients, inside an episode."""
    from rollbus.producers import init

    recorder = init(sink=_NoSink())
    recorder.episode(task="bench").__enter__()
    return _of(recorder.wrap(_client()), recorder.wrap(_async_client()))


def langfuse() -> Clients:
    """Return clients under Langfuse's import in the place of OpenAI's."""
    from langfuse import Langfuse
    from langfuse.openai import AsyncOpenAI, OpenAI  # type: ignore[attr-defined]  # of the client, handed on

    Langfuse(public_key="pk", secret_key="sk", base_url=_taker())
    options: Any = {"api_key": "k", "base_url": "http://server/v1", "max_retries": 0}
    return _of(OpenAI(**options, http_client=_http()), AsyncOpenAI(**options, http_client=_async_http()))


def opentelemetry() -> Clients:
    """Return clients under OpenTelemetry's instrumentation of the OpenAI client."""
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "true"
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
    from opentelemetry.sdk.metrics import MeterProvider

    OpenAIInstrumentor().instrument(
        tracer_provider=_tracing(), logger_provider=_logging(), meter_provider=MeterProvider()
    )
    return _of(_client(), _async_client())


def bare() -> Clients:
    """Return clients that nobody records, also where recorders have replaced their methods."""
    client, async_client = _client(), _async_client()
    client.request = MethodType(_REQUEST, client)  # type: ignore[method-assign]
    async_client.request = MethodType(_REQUEST_ASYNC, async_client)  # type: ignore[method-assign]
    completions = client.chat.completions, async_client.chat.completions
    return Clients(MethodType(_CREATE, completions[0]), MethodType(_CREATE_ASYNC, completions[1]))


def _of(client: Any, async_client: Any) -> Clients:
    return Clients(client.chat.completions.create, async_client.chat.completions.create)


VARIANTS: dict[str, Callable[[], Clients]] = {variant.__name__: variant for variant in (ours, langfuse, opentelemetry)}


def _client() -> openai.OpenAI:
    return openai.OpenAI(api_key="k", base_url="http://server/v1", http_client=_http(), max_retries=0)


def _async_client() -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="k", base_url="http://server/v1", http_client=_async_http(), max_retries=0)


def _http() -> httpx2.Client:
    return httpx2.Client(transport=httpx2.MockTransport(_answer))


def _async_http() -> httpx2.AsyncClient:
    async def answer(request: httpx2.Request) -> httpx2.Response:
        return _answer(request)

    return httpx2.AsyncClient(transport=httpx2.MockTransport(answer))


_WHOLE = encoded()
_EVENTS = [memoryview(event + b"\n\n") for event in streamed().split(b"\n\n") if event]


def _answer(request: httpx2.Request) -> httpx2.Response:
    if b'"stream":true' in request.content:
        return httpx2.Response(200, stream=_Events(), headers={"content-type": "text/event-stream"})
    return httpx2.Response(200, content=_WHOLE, headers={"content-type": "application/json"})


class _Events(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """The stream as a network brings it: event by event, each in bytes of its own."""

    def __iter__(self) -> Iterator[bytes]:
        return map(bytes, _EVENTS)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in _EVENTS:
            yield bytes(event)


class _NoSink:
    """Takes everything and keeps nothing."""

    async def start(self) -> None:
        """Nothing to connect."""

    async def send(self, records: Sequence[object]) -> frozenset[int]:
        """Refuse nothing."""
        return frozenset()

    async def close(self) -> None:
        """Nothing to let go of."""


def _tracing() -> Any:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(InMemorySpanExporter()))
    return provider


def _logging() -> Any:
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, InMemoryLogRecordExporter

    provider = LoggerProvider()
    provider.add_log_record_processor(BatchLogRecordProcessor(InMemoryLogRecordExporter()))
    return provider


def _taker() -> str:
    """Start a server that says yes to everything, and return its address."""

    class Yes(BaseHTTPRequestHandler):
        """Reads a request and answers with an empty object."""

        def do_POST(self) -> None:
            """Say yes."""
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST

        def log_message(self, *arguments: object) -> None:
            """Stay quiet."""

    server = HTTPServer(("127.0.0.1", 0), Yes)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"
