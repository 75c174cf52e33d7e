"""OTLP over HTTP, protobuf and JSON: POST /v1/traces and /v1/logs. GET /rollbus/health says what came of it.

An error is a `google.rpc.Status` in the form of the request, as the protocol wants it.
"""

from collections.abc import Mapping
from functools import partial

from google.protobuf.json_format import MessageToDict
from google.rpc.code_pb2 import Code
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rollbus.producers.imports.collector import TraceCollector
from rollbus.producers.imports.formats.trace import ForeignDocumentError
from rollbus.producers.imports.otlp_wire import read_body
from rollbus.runtime.http.guard import (
    Door,
    ErrorAnswer,
    FindPrincipal,
    RefusedError,
    RequestHead,
    as_json,
    names_of,
    needs_record,
    token_admits,
    token_in,
)
from rollbus.schemas.errors import UnavailableError

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Of a request, also once it is decompressed; exporters send some hundred spans at a time."""
PROTOBUF, JSON = "application/x-protobuf", "application/json"
RETRY_S = "5"
CODES: Mapping[int, int] = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.UNIMPLEMENTED,
    405: Code.UNIMPLEMENTED,
    408: Code.DEADLINE_EXCEEDED,
    413: Code.RESOURCE_EXHAUSTED,
    415: Code.INVALID_ARGUMENT,
    503: Code.UNAVAILABLE,
}
"""Statuses of HTTP as those of gRPC."""


def make_app(collector: TraceCollector, find_principal: FindPrincipal | None = None) -> Starlette:
    """Return the application; what a principal's token brings is recorded as that principal's."""

    async def export(signal: str, request: Request) -> Response:
        is_json = _has_type(request.headers.get("content-type", ""), JSON)
        try:
            document = read_body(signal, await request.body(), is_json=is_json)
            left_out = collector.accept(document, head_of(request.headers.get("authorization", ""), find_principal))
        except ForeignDocumentError as error:
            return _refuse(request, 400, str(error))
        except UnavailableError as error:
            return _refuse(request, 503, str(error), {"retry-after": RETRY_S})
        return _answer(signal, left_out, is_json=is_json)

    async def health(request: Request) -> Response:
        return JSONResponse({"healthy": collector.is_healthy, "counters": collector.counts()})

    async def unknown(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        target = f"{request.method} {request.url.path}"
        message = f"{target} is not served: send traces with POST to /v1/traces, their events to /v1/logs"
        return _refuse(request, error.status_code, message, error.headers)

    async def failed(request: Request, error: Exception) -> Response:
        return _refuse(request, 500, "the server failed; its log says why")

    routes = [
        *(Route(f"/v1/{signal}", partial(export, signal), methods=["POST"]) for signal in ("traces", "logs")),
        Route("/rollbus/health", health),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: unknown, 500: failed})


def make_door(host: str, token: str | None, find_principal: FindPrincipal | None = None) -> Door:
    """Return the check of every request: it needs the owner's token, or that of a principal that may record."""
    return Door(
        token_admits(token, open_paths=("/rollbus/health",), find_principal=find_principal, needs=needs_record),
        MAX_BODY_BYTES,
        names_of(host),
        media_types={PROTOBUF, JSON},
        describe=_describe,
        encodings={"gzip", "deflate"},
    )


def head_of(authorization: str, find_principal: FindPrincipal | None) -> str:
    """Return the head of the principal's token in an Authorization header; empty for the owner's and for none."""
    principal = find_principal(token_in(authorization)) if find_principal is not None else None
    return "" if principal is None else principal.head


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


def _describe(refused: RefusedError, head: RequestHead) -> ErrorAnswer:
    return _status_of(refused.status, refused.message, head.headers.get("content-type", ""))


def _refuse(request: Request, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    status_headers, body = _status_of(status, message, request.headers.get("content-type", ""))
    return Response(body, status, {**status_headers, **(headers or {})})


def _has_type(content_type: str, media_type: str) -> bool:
    return content_type.lower().startswith(media_type)  # HTTP has the names of types in any case


def _status_of(http_status: int, message: str, content_type: str) -> ErrorAnswer:
    status = Status(code=CODES.get(http_status, Code.INTERNAL), message=message)
    if _has_type(content_type, PROTOBUF):
        return {"content-type": PROTOBUF}, status.SerializeToString()
    return as_json(MessageToDict(status))
