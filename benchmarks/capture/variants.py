"""The recorders, each as a function that makes the client call recorded by it; each runs in a process of its own.

Every one is set up as its documentation says, with the texts of prompt and answer recorded, and sends to a sink that
takes everything at once, so that none is slowed by what is behind it.
"""

import os
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import MethodType
from typing import Any

import httpx2
import openai
from openai.resources.chat.completions import Completions

from benchmarks.capture.answer import MODEL, encoded, prompt

Call = Callable[[], Any]
_CREATE, _REQUEST = Completions.create, openai.OpenAI.request  # as they are before a recorder replaces them


def ours() -> Call:
    """Return a call of the wrapped client inside an episode."""
    from rollbus.producers import init

    recorder = init(sink=_NoSink())
    client, messages = recorder.wrap(_client()), prompt()
    recorder.episode(task="bench").__enter__()
    return lambda: client.chat.completions.create(model=MODEL, messages=messages, logprobs=True)  # type: ignore[arg-type]


def langfuse() -> Call:
    """Return a call under Langfuse's import in the place of OpenAI's."""
    from langfuse import Langfuse
    from langfuse.openai import OpenAI

    Langfuse(public_key="pk", secret_key="sk", base_url=_taker())
    client = OpenAI(api_key="k", base_url="http://server/v1", http_client=_http(), max_retries=0)
    messages = prompt()
    return lambda: client.chat.completions.create(model=MODEL, messages=messages, logprobs=True)


def opentelemetry() -> Call:
    """Return a call under OpenTelemetry's instrumentation of the OpenAI client."""
    os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "true"
    from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
    from opentelemetry.sdk.metrics import MeterProvider

    OpenAIInstrumentor().instrument(
        tracer_provider=_tracing(), logger_provider=_logging(), meter_provider=MeterProvider()
    )
    return _instrumented()


def openinference() -> Call:
    """Return a call under OpenInference's instrumentation of the OpenAI client."""
    from openinference.instrumentation.openai import OpenAIInstrumentor

    OpenAIInstrumentor().instrument(tracer_provider=_tracing())
    return _instrumented()


def bare() -> Call:
    """Return a call that nobody records, also where recorders have replaced the method."""
    client, messages = _client(), prompt()
    client.request = MethodType(_REQUEST, client)  # type: ignore[method-assign]
    completions = client.chat.completions
    return lambda: _CREATE(completions, model=MODEL, messages=messages, logprobs=True)  # type: ignore[call-overload]


def _instrumented() -> Call:
    client, messages = _client(), prompt()
    return lambda: client.chat.completions.create(model=MODEL, messages=messages, logprobs=True)  # type: ignore[arg-type]


VARIANTS: dict[str, Callable[[], Call]] = {
    each.__name__: each for each in (ours, langfuse, opentelemetry, openinference)
}


def _client() -> openai.OpenAI:
    return openai.OpenAI(api_key="k", base_url="http://server/v1", http_client=_http(), max_retries=0)


def _http() -> httpx2.Client:
    content = encoded()
    headers = {"content-type": "application/json"}
    return httpx2.Client(
        transport=httpx2.MockTransport(lambda request: httpx2.Response(200, content=content, headers=headers))
    )


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
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class NoExporter(SpanExporter):
        """Takes everything and keeps nothing."""

        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            """Refuse nothing."""
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(NoExporter()))
    return provider


def _logging() -> Any:
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult

    class NoExporter(LogRecordExporter):
        """Takes everything and keeps nothing."""

        def export(self, batch: Sequence[Any]) -> LogRecordExportResult:
            """Refuse nothing."""
            return LogRecordExportResult.SUCCESS

        def shutdown(self) -> None:
            """Nothing to let go of."""

        def force_flush(self, timeout_millis: int = 0) -> bool:
            """Nothing waits."""
            return True

    provider = LoggerProvider()
    provider.add_log_record_processor(BatchLogRecordProcessor(NoExporter()))
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
