"""OTLP over gRPC: the trace and logs services, behind the same token and the same bound as over HTTP."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from rollbus.producers.foreign.trace import ForeignDocumentError
from rollbus.producers.ingest.collector import Collector
from rollbus.producers.ingest.http import MAX_BODY_BYTES
from rollbus.producers.ingest.otlp_wire import read_message
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.http.guard import TOTAL_BODIES, same
from rollbus.schemas.http.server import HEAD_S

Continue = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
MESSAGE_S = 30.0
"""In which a message must have come whole; exporters wait for ten seconds by default."""
IDLE_S = 300
"""After which a connection without a call is closed; a client opens another by itself."""
STOP_S = 1.0
"""For the calls under way when the server is stopped."""
RETRY_S = 0.2
LOOK_S = 1.0
"""Between two looks whether the port still answers."""
logger = logging.getLogger(__name__)


class _Doorkeeper(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses a call without the token before its message is read, and one whose message does not come in time.

    A service that takes one message would read it first. So each is served as one that takes a stream of them, which
    is the same on the wire: of such a stream a message is read when it is asked for.
    """

    def __init__(self, token: str | None) -> None:
        self._wanted = None if token is None else f"Bearer {token}"
        self._places = asyncio.Semaphore(TOTAL_BODIES)

    async def intercept_service(self, continuation: Continue, details: Any) -> Any:
        given = dict(details.invocation_metadata or ()).get("authorization", "")
        if self._wanted is not None and not same(str(given), self._wanted):
            return grpc.stream_unary_rpc_method_handler(_refuse)
        handler = await continuation(details)
        if handler is None:
            return None

        async def answer(messages: AsyncIterable[bytes], context: Any) -> Any:
            try:
                async with asyncio.timeout(MESSAGE_S):
                    await self._places.acquire()
            except TimeoutError:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "too many requests at a time; try again later")
            try:
                message = await _read_message(messages, context)
                return await handler.unary_unary(handler.request_deserializer(message), context)
            except DecodeError as error:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"the message is not OTLP ({error})")
            finally:
                self._places.release()

        return grpc.stream_unary_rpc_method_handler(answer, None, handler.response_serializer)


async def _refuse(messages: object, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the API key is missing or wrong")


async def _read_message(messages: AsyncIterable[bytes], context: Any) -> bytes:
    try:
        async with asyncio.timeout(MESSAGE_S):
            async for message in messages:
                return message
    except TimeoutError:
        reason = f"the message did not come whole within {MESSAGE_S:.0f} s"
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, reason)
    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call ended without a message")
    raise AssertionError("abort raises")


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


@asynccontextmanager
async def serving_grpc(collector: Collector, host: str, port: int, token: str | None) -> AsyncIterator[int]:
    """Serve until the block ends; yields the port, and raises OSError where it is taken."""
    with _hold_port(host, port) as holder:
        port = holder.getsockname()[1]

        def make() -> Any:
            return _make_server(collector, f"{host}:{port}", token)

        server = make()
        await server.start()
        running = asyncio.create_task(_keep_running(server, make, (host.strip("[]"), port)))
        try:
            yield port
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def _hold_port(host: str, port: int) -> socket.socket:
    """Return a socket that has the port and listens to nothing; raises OSError where it is taken.

    While the server starts again, another user's program could take it, and would get what exporters send. Only
    sockets of this user that ask for it may share it, and the holder asks once it has found the port free.
    """
    family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    holder = socket.socket(family, socket.SOCK_STREAM)
    try:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of connections that have just ended
        holder.bind(address)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError:
        holder.close()
        raise
    return holder


async def _until_refused(host: str, port: int) -> None:
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
        except ConnectionRefusedError:
            return
        except OSError:  # such as of too many open files, which ends no server
            continue


async def _keep_running(server: Any, make: Callable[[], Any], address: tuple[str, int]) -> None:
    """Start another server where this one ends: in grpcio 1.85 one call whose path is not UTF-8 does that, also
    without a token. Exporters send again what was under way.

    The server says so only once the one who made the call closes the connection, so its port is asked, too.
    """
    try:
        while True:
            ends = [asyncio.ensure_future(server.wait_for_termination()), asyncio.create_task(_until_refused(*address))]
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for end in ends:
                    end.cancel()
                errors = await asyncio.gather(*ends, return_exceptions=True)
            logger.warning("gRPC was ended by a call and starts again: %s", errors[0])
            await asyncio.wait([asyncio.ensure_future(server.stop(None))], timeout=STOP_S)
            while True:
                try:
                    server = make()
                    break
                except OSError:  # such as of too many open files
                    await asyncio.sleep(RETRY_S)
            await server.start()
    finally:
        await server.stop(STOP_S)


def _make_server(collector: Collector, address: str, token: str | None) -> Any:
    """Return a server that is not started yet; raises OSError where it cannot have the port."""
    server = grpc.aio.server(
        interceptors=[_Doorkeeper(token)],
        options=[
            ("grpc.max_receive_message_length", MAX_BODY_BYTES),
            ("grpc.so_reuseport", 1),  # with the holder
            ("grpc.max_metadata_size", 16 * 1024),
            ("grpc.server_handshake_timeout_ms", int(HEAD_S * 1000)),
            ("grpc.max_connection_idle_ms", IDLE_S * 1000),
        ],
    )
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(_Traces(collector), server)  # type: ignore[no-untyped-call]
    logs_service_pb2_grpc.add_LogsServiceServicer_to_server(_Logs(collector), server)  # type: ignore[no-untyped-call]
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise OSError(f"{address} is taken") from error
    return server
