"""OTLP over gRPC: the trace and logs services, behind the same token and the same bound as over HTTP."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from rollbus.producers.foreign.trace import ForeignDocumentError
from rollbus.producers.ingest.collector import Collector
from rollbus.producers.ingest.http import MAX_BODY_BYTES
from rollbus.producers.ingest.otlp_wire import read_message
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.http.guard import TOTAL_BODIES, same

Continue = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]


class _TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses a call without the token before its message is read."""

    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}"

        async def refuse(request: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the API key is missing or wrong")

        self._refusal = grpc.unary_unary_rpc_method_handler(refuse)

    async def intercept_service(self, continuation: Continue, details: Any) -> Any:
        given = dict(details.invocation_metadata or ()).get("authorization", "")
        return await continuation(details) if same(str(given), self._wanted) else self._refusal


class _Export:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    async def _accept(self, request: Message, context: Any) -> str:
        try:
            return self._collector.accept(read_message(request))
        except ForeignDocumentError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except UnavailableError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return ""


class _Traces(_Export, trace_service_pb2_grpc.TraceServiceServicer):
    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name in OTLP's service
        response = trace_service_pb2.ExportTraceServiceResponse()
        if left_out := await self._accept(request, context):
            response.partial_success.rejected_spans = int(left_out.partition(" ")[0])
            response.partial_success.error_message = left_out
        return response


class _Logs(_Export, logs_service_pb2_grpc.LogsServiceServicer):
    async def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = logs_service_pb2.ExportLogsServiceResponse()
        if left_out := await self._accept(request, context):
            response.partial_success.rejected_log_records = int(left_out.partition(" ")[0])
            response.partial_success.error_message = left_out
        return response


def make_grpc_server(collector: Collector, address: str, token: str | None) -> tuple[Any, int]:
    """Return a server that is not started yet, and its port; raises OSError where the port is taken."""
    server = grpc.aio.server(
        interceptors=[] if token is None else [_TokenCheck(token)],
        options=[
            ("grpc.max_receive_message_length", MAX_BODY_BYTES),
            ("grpc.so_reuseport", 0),
            ("grpc.max_metadata_size", 16 * 1024),
        ],
        maximum_concurrent_rpcs=TOTAL_BODIES,
    )
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(collector), server)  # type: ignore[no-untyped-call]
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(_Logs(collector), server)  # type: ignore[no-untyped-call]
    try:
        return server, server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"{address} is taken") from error
