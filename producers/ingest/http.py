"""OTLP over HTTP, protobuf and JSON: POST /v1/traces and /v1/logs. GET /rollbus/health says what came of it."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rollbus.producers.foreign.trace import ForeignDocumentError
from rollbus.producers.ingest.collector import Collector
from rollbus.producers.ingest.otlp_wire import read_body
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.http.guard import Door, names_of, token_admits

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Of a request, also once it is decompressed; exporters send some hundred spans at a time."""
PROTOBUF, JSON = "application/x-protobuf", "application/json"
RETRY_S = "5"
Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]] | None


def make_app(collector: Collector, lifespan: Lifespan = None) -> Starlette:
    """Return the application."""

    async def export(signal: str, request: Request) -> Response:
        is_json = request.headers.get("content-type", "").startswith(JSON)
        try:
            left_out = collector.accept(read_body(signal, await request.body(), is_json=is_json))
        except ForeignDocumentError as error:
            return _refusal(400, str(error))
        except UnavailableError as error:
            return _refusal(503, str(error), {"retry-after": RETRY_S})
        return _answer(signal, left_out, is_json=is_json)

    async def health(request: Request) -> Response:
        return JSONResponse({"healthy": collector.is_healthy, "counters": collector.counts()})

    async def unknown(request: Request, error: Exception) -> Response:
        return _refusal(404, f"{request.url.path} is not served: send traces to /v1/traces, their events to /v1/logs")

    routes = [
        *(Route(f"/v1/{signal}", partial(export, signal), methods=["POST"]) for signal in ("traces", "logs")),
        Route("/rollbus/health", health),
    ]
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers={404: unknown})


def door(host: str, token: str | None) -> Door:
    """Return what is asked of every request."""
    return Door(
        token_admits(token, open_paths=("/rollbus/health",)),
        MAX_BODY_BYTES,
        names_of(host),
        media_types={PROTOBUF, JSON},
        encodings={"gzip", "deflate"},
    )


def _answer(signal: str, left_out: str, *, is_json: bool) -> Response:
    rejected = int(left_out.partition(" ")[0]) if left_out else 0
    if is_json:
        name = "rejectedSpans" if signal == "traces" else "rejectedLogRecords"
        return JSONResponse({"partialSuccess": {name: str(rejected), "errorMessage": left_out}} if left_out else {})
    traces, logs = ExportTraceServiceResponse(), ExportLogsServiceResponse()
    if left_out:
        traces.partial_success.rejected_spans, traces.partial_success.error_message = rejected, left_out
        logs.partial_success.rejected_log_records, logs.partial_success.error_message = rejected, left_out
    answer = traces if signal == "traces" else logs
    return Response(answer.SerializeToString(), media_type=PROTOBUF)


def _refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"message": message}, status, headers)
