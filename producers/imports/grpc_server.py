"""OTLP over gRPC: the trace and logs services, behind the same token and the same bound as over HTTP."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from rollbus.producers.imports.collector import TraceCollector
from rollbus.producers.imports.formats.trace import ForeignDocumentError
from rollbus.producers.imports.http import MAX_BODY_BYTES, head_of
from rollbus.producers.imports.otlp_wire import read_message
from rollbus.runtime.http.guard import KEY_REFUSED, TOTAL_BODIES, FindPrincipal, same, token_in
from rollbus.runtime.http.listener import open_listener
from rollbus.runtime.http.server import HEAD_S
from rollbus.schemas.errors import ConfigurationError, UnavailableError

MESSAGE_S = 30.0
"""In which a message must have come whole; exporters wait for ten seconds by default."""
IDLE_S = 300
"""After which a connection without a call is closed; a client opens another by itself."""
STOP_S = 1.0
"""For the calls under way when the server is stopped."""


class _Doorkeeper(grpc.ServerInterceptor):  # type: ignore[misc]
    """Refuses a call without the token before its message is read, and one whose message does not come in time.

    A service that takes one message would read it first. So each is served as one that takes a stream of them, which
    is the same on the wire: of such a stream a message is read when it is asked for.
    """

    def __init__(self, token: str | None, find_principal: FindPrincipal | None) -> None:
        self._expected = None if token is None else f"Bearer {token}"
        self._find_principal = find_principal

    def _admits(self, authorization: str) -> bool:
        if self._expected is None or same(authorization, self._expected):
            return True
        principal = self._find_principal(token_in(authorization)) if self._find_principal else None
        return principal is not None and "record" in principal.grants

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        if not self._admits(_authorization_in(details.invocation_metadata)):
            return grpc.stream_unary_rpc_method_handler(_refuse)
        handler = continuation(details)
        if handler is None:
            return None

        def answer(messages: Iterator[bytes], context: Any) -> Any:
            message = _read_message(messages, context)
            try:
                request = handler.request_deserializer(message)
            except DecodeError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message is not OTLP ({error})")
            return handler.unary_unary(request, context)

        return grpc.stream_unary_rpc_method_handler(answer, None, handler.response_serializer)


def _authorization_in(metadata: Any) -> str:
    return str(dict(metadata or ()).get("authorization", ""))


def _refuse(messages: object, context: Any) -> None:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, KEY_REFUSED)


def _read_message(messages: Iterator[bytes], context: Any) -> bytes:
    late = threading.Timer(MESSAGE_S, context.cancel)
    late.start()
    try:
        for message in messages:
            return message
    finally:
        late.cancel()
    context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call ended without a message")
    raise AssertionError("abort raises")


class _Export:
    """Reads a message in the thread of its call, and hands it to the collector in the loop that it belongs to."""

    def __init__(
        self, collector: TraceCollector, loop: asyncio.AbstractEventLoop, find_principal: FindPrincipal | None
    ) -> None:
        self._collector, self._loop, self._find_principal = collector, loop, find_principal

    def _accept(self, request: Message, context: Any) -> str:
        try:
            document = read_message(request)
            principal = head_of(_authorization_in(context.invocation_metadata()), self._find_principal)

            async def accept() -> str:
                return self._collector.accept(document, principal)

            return asyncio.run_coroutine_threadsafe(accept(), self._loop).result()
        except ForeignDocumentError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except UnavailableError as error:
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return ""


class _Traces(_Export, trace_service_pb2_grpc.TraceServiceServicer):
    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the name in OTLP's service
        response = trace_service_pb2.ExportTraceServiceResponse()
        if left_out := self._accept(request, context):
            response.partial_success.rejected_spans = int(left_out.partition(" ")[0])
            response.partial_success.error_message = left_out
        return response


class _Logs(_Export, logs_service_pb2_grpc.LogsServiceServicer):
    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802
        response = logs_service_pb2.ExportLogsServiceResponse()
        if left_out := self._accept(request, context):
            response.partial_success.rejected_log_records = int(left_out.partition(" ")[0])
            response.partial_success.error_message = left_out
        return response


@asynccontextmanager
async def serving_grpc(
    collector: TraceCollector, host: str, port: int, token: str | None, find_principal: FindPrincipal | None = None
) -> AsyncIterator[int]:
    """Serve until the block ends; yields the port, and raises ConfigurationError if it cannot be opened.

    In threads: of grpcio 1.85's server on asyncio, anybody's call whose path is not UTF-8 makes an end.
    """
    threads = ThreadPoolExecutor(TOTAL_BODIES, thread_name_prefix="rollbus-otlp-grpc")
    server = grpc.server(
        threads,
        interceptors=[_Doorkeeper(token, find_principal)],
        options=[
            ("grpc.max_receive_message_length", MAX_BODY_BYTES),
            ("grpc.so_reuseport", 0),  # else another program could take a part of the calls
            ("grpc.max_metadata_size", 16 * 1024),
            ("grpc.server_handshake_timeout_ms", int(HEAD_S * 1000)),
            ("grpc.max_connection_idle_ms", IDLE_S * 1000),
        ],
    )
    loop = asyncio.get_running_loop()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(collector, loop, find_principal), server)  # type: ignore[no-untyped-call]
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(_Logs(collector, loop, find_principal), server)  # type: ignore[no-untyped-call]
    try:
        own_port = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError as error:  # it does not say why
        open_listener(host, port, name="gRPC", port_setting="--grpc-port").close()
        raise ConfigurationError(f"port {port} of {host} for gRPC cannot be opened; change --grpc-port") from error
    server.start()
    try:
        yield own_port
    finally:
        await asyncio.to_thread(server.stop(STOP_S).wait)
        await asyncio.to_thread(threads.shutdown)  # they may wait for this loop
