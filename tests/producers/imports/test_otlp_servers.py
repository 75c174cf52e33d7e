"""OTLP as others send it: OpenTelemetry's own exporters and instrumentations, and requests that should not come in."""

import asyncio
import gzip
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.json_format import ParseDict
from google.rpc.code_pb2 import Code
from google.rpc.status_pb2 import Status
from openai import OpenAI
from openinference.instrumentation.openai import OpenAIInstrumentor as OpenInference
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor as OpenAIv2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rollbus.producers.imports import grpc_server
from rollbus.producers.imports.grpc_server import serving_grpc
from rollbus.producers.imports.http import JSON, MAX_BODY_BYTES, PROTOBUF
from rollbus.producers.imports.otlp_wire import read_message
from rollbus.runtime.http.guard import TOTAL_BODIES
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.tokens import decode_token_ids
from tests.agents.model_server import Faults, ModelServer
from tests.hostile.http2 import make_call
from tests.producers.imports.formats.reading import make_span, request_of
from tests.producers.imports.formats.test_otlp import AGENT
from tests.producers.imports.otlp_server import Served, served, serving

__all__ = ["served"]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "stock", "parameters": {"properties": {"part": {"type": "string"}}}}}
]


@pytest.fixture
def model() -> Iterator[ModelServer]:
    server = ModelServer(Faults(None))
    yield server
    server.close()


def make_spans() -> tuple[ReadableSpan, ...]:
    """Spans of an agent, as OpenTelemetry's SDK makes them."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"deployment.environment.name": "test"}))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("agent")
    with tracer.start_as_current_span("invoke_agent shop", attributes={"gen_ai.operation.name": "invoke_agent"}):
        for text in ("one", "two"):
            output_messages = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": text}]}])
            attributes = {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "m",
                "gen_ai.output.messages": output_messages,
            }
            with tracer.start_as_current_span("chat m", attributes=attributes):
                pass
    return memory.get_finished_spans()


def http_exporter(served: Served, compression: Compression = Compression.Gzip) -> HttpExporter:
    return HttpExporter(f"{served.http}/v1/traces", headers=served.headers, compression=compression)


def grpc_exporter(served: Served, **options: Any) -> GrpcExporter:
    return GrpcExporter(served.grpc, insecure=True, headers=tuple(served.headers.items()), **options)


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip, Compression.Deflate])
async def test_the_sdk_sends_over_http(served: Served, compression: Compression) -> None:
    exporter = http_exporter(served, compression)
    assert await asyncio.to_thread(exporter.export, make_spans()) is SpanExportResult.SUCCESS
    assert [turn.completion.content for turn in await served.turns()] == ["one", "two"]
    (started,) = await served.started()
    assert (started.task, started.environment) == ("invoke_agent shop", "test")


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
async def test_the_sdk_sends_over_grpc_and_twice_is_once(served: Served, compression: grpc.Compression) -> None:
    spans = make_spans()
    exporters: list[SpanExporter] = [grpc_exporter(served, compression=compression), http_exporter(served)]
    for exporter in exporters:
        assert await asyncio.to_thread(exporter.export, spans) is SpanExportResult.SUCCESS
    assert [turn.completion.content for turn in await served.turns()] == ["one", "two"]
    assert served.collector.counts()["parts_repeated"] == 3


async def test_json_and_protobuf_give_the_same_events(served: Served, tmp_path_factory: pytest.TempPathFactory) -> None:
    async with httpx.AsyncClient(headers=served.headers) as client:
        answer = await client.post(f"{served.http}/v1/traces", json=request_of(AGENT))
    assert (answer.status_code, answer.json()) == (200, {})
    assert [turn.completion.content for turn in await served.turns()] == ["a1", "b1", "b2", "a2"]


def work(model: ModelServer, provider: TracerProvider) -> None:
    """Ask with a tool, give its result, and ask a stream."""
    client = OpenAI(base_url=model.url, api_key="none")
    messages: list[Any] = [{"role": "user", "content": "How many bolts? <e1>"}]
    options: dict[str, Any] = {"model": "agent", "extra_body": {"return_token_ids": True}, "logprobs": True}
    with provider.get_tracer("test").start_as_current_span("work"):
        answer = client.chat.completions.create(messages=messages, tools=TOOLS, **options).choices[0].message
        messages += [answer.model_dump(exclude_none=True)]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "7"} for call in answer.tool_calls or ()]
        client.chat.completions.create(messages=messages, tools=TOOLS, **options)
        for _ in client.chat.completions.create(messages=messages[:1], model="agent", stream=True):
            pass


async def check(served: Served, model: ModelServer) -> list[Any]:
    """Hold the turns against what the server answered; return them."""
    turns = await served.turns()
    assert [turn.response_id for turn in turns[:2]] == [answer.response_id for answer in model.answers[:2]]
    assert turns[0].completion.tool_calls is not None
    assert json.loads(turns[0].completion.tool_calls)[0]["function"]["name"] == "stock"
    assert [turn.completion.content for turn in turns[1:]] == [
        answer.message["content"] for answer in model.answers[1:]
    ]
    assert [added_message.role for added_message in turns[0].added_messages] == ["user"]
    assert (turns[1].prefix_count, turns[1].added_messages[0].tool_call_id) == (2, "call-1-0")
    return turns


async def test_spans_of_openinference_keep_token_ids_but_not_how_they_were_sampled(
    served: Served, model: ModelServer
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(http_exporter(served)))
    instrumentor = OpenInference()
    instrumentor.instrument(tracer_provider=provider)
    try:
        await asyncio.to_thread(work, model, provider)
    finally:
        instrumentor.uninstrument()
    turns = await check(served, model)
    assert [turn.untrainable_reason for turn in turns] == ["sampling_unknown", "sampling_unknown", "no_token_ids"]
    assert [list(decode_token_ids(turn.completion_token_ids or b"")) for turn in turns[:2]] == [
        answer.ids for answer in model.answers[:2]
    ]
    assert [(turn.finish_reason, turn.policy_version) for turn in turns[:2]] == [("tool_calls", 3), ("stop", 3)]
    assert turns[0].tools is not None


async def test_spans_and_events_of_opentelemetrys_own_instrumentation_become_turns(
    served: Served, model: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    provider, logs = TracerProvider(), LoggerProvider()
    provider.add_span_processor(SimpleSpanProcessor(grpc_exporter(served)))
    logs.add_log_record_processor(
        SimpleLogRecordProcessor(OTLPLogExporter(f"{served.http}/v1/logs", headers=served.headers))
    )
    instrumentor = OpenAIv2()  # type: ignore[no-untyped-call]
    instrumentor.instrument(tracer_provider=provider, logger_provider=logs)
    try:
        await asyncio.to_thread(work, model, provider)
    finally:
        instrumentor.uninstrument()
    turns = await check(served, model)
    assert {turn.untrainable_reason for turn in turns} == {"no_token_ids"}


async def test_the_server_continues_after_too_large_torn_or_foreign_requests(served: Served) -> None:
    kind = {"content-type": "application/x-protobuf", **served.headers}
    bomb = gzip.compress(bytes(MAX_BODY_BYTES + 1))
    zipped = {**kind, "content-encoding": "gzip"}
    json_kind = {**served.headers, "content-type": "application/json"}
    async with httpx.AsyncClient(timeout=120) as client:
        for body, headers, status in (
            (bomb, zipped, 413),
            (b"not gzip", zipped, 413),
            (b"not br", {**kind, "content-encoding": "br"}, 415),
            (b"{}", {**served.headers, "content-type": "text/plain"}, 415),
            (b"\xff\xff\xff", kind, 400),
            (b"{torn", json_kind, 400),
            (b"[]", json_kind, 400),
            (b'{"resourceSpans": 3}', json_kind, 400),
            (b'{"a":' * 100_000, json_kind, 400),
            (json.dumps(request_of([{**make_span(1), "spanId": "zz"}])).encode(), json_kind, 400),
        ):
            answer = await client.post(f"{served.http}/v1/traces", content=body, headers=headers)
            assert answer.status_code == status, (body[:40], answer.text)
        mixed = request_of([{**make_span(7), "spanId": "zz"}, *AGENT])
        partial = (await client.post(f"{served.http}/v1/traces", json=mixed, headers=served.headers)).json()
        assert partial["partialSuccess"]["rejectedSpans"] == "1"
        assert partial["partialSuccess"]["errorMessage"].startswith("1 were left out: its spanId")
        of_other_case = {**served.headers, "content-type": "Application/JSON; charset=utf-8"}
        answer = await client.post(f"{served.http}/v1/logs", content=b"{}", headers=of_other_case)
        assert (answer.status_code, answer.json()) == (200, {})
        assert (await client.post(f"{served.http}/v1/metrics", json={}, headers=served.headers)).status_code == 404
        health = (await client.get(f"{served.http}/rollbus/health")).json()
    assert health["counters"]["spans_refused"] == 1
    assert len(await served.turns()) == 4


async def test_a_call_with_an_undecodable_path_ends_no_server(served: Served) -> None:
    """It does not end a call of another client either, which began before it."""
    async with grpc.aio.insecure_channel(served.grpc) as channel:
        begun = channel.stream_unary(EXPORT)(metadata=tuple(served.headers.items()))
        await begun.wait_for_connection()
        for _ in range(3):
            reader, writer = await asyncio.open_connection(*served.grpc.split(":"))
            writer.write(make_call(served.grpc, "/path", {}, b"").replace(b"/path", b"/\xff\xff\xff\xff"))
            await reader.read(9)  # the server has begun to read
            assert await asyncio.to_thread(grpc_exporter(served).export, make_spans()) is SpanExportResult.SUCCESS
            writer.close()
        await begun.write(ExportTraceServiceRequest().SerializeToString())
        await begun.done_writing()
        assert await begun.code() is grpc.StatusCode.OK


async def test_no_other_program_can_share_the_port_of_grpc(served: Served) -> None:
    """It would get what exporters send, with their token."""
    host, port = served.grpc.split(":")
    with socket.socket() as own:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            own.bind((host, int(port)))
    with pytest.raises(ConfigurationError, match=f"port {port} of {host} for gRPC is taken; .* change --grpc-port"):
        async with serving_grpc(served.collector, host, int(port), None):
            pass


def read_status(answer: httpx.Response, kind: str) -> Status:
    assert answer.headers["content-type"] == kind
    return Status.FromString(answer.content) if kind == PROTOBUF else ParseDict(answer.json(), Status())


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
async def test_an_error_is_a_status_in_the_form_of_the_request(served: Served, kind: str) -> None:
    gzipped = {"content-encoding": "gzip"}
    async with httpx.AsyncClient() as client:
        for path, changes, status, code in (
            ("traces", {}, 400, Code.INVALID_ARGUMENT),
            ("logs", {}, 400, Code.INVALID_ARGUMENT),
            ("metrics", {}, 404, Code.UNIMPLEMENTED),
            ("traces", {"authorization": "Bearer wrong"}, 401, Code.UNAUTHENTICATED),
            ("traces", {"host": "evil.example"}, 403, Code.PERMISSION_DENIED),
            ("traces", gzipped, 413, Code.RESOURCE_EXHAUSTED),
        ):
            headers = {"content-type": kind, **served.headers, **changes}
            answer = await client.post(f"{served.http}/v1/{path}", content=b"\xff\xff", headers=headers)
            error_status = read_status(answer, kind)
            assert (answer.status_code, error_status.code) == (status, code), (path, changes, error_status)
            assert error_status.message


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
async def test_a_store_without_room_asks_to_try_again_later(tmp_path: Path, kind: str) -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(span_id=b"12345678", name="n")
    span.start_time_unix_nano = 1_700_000_000_000_000_000
    span.attributes.add(key="text").value.string_value = random.Random(7).randbytes(300_000).hex()
    span.trace_id = b"0123456789abcdef"
    body = request.SerializeToString() if kind == PROTOBUF else json.dumps(read_message(request)).encode()
    async with serving(tmp_path, max_bytes=200_000) as served, httpx.AsyncClient() as client:
        headers = {"content-type": kind, **served.headers}
        taken, answer = [await client.post(f"{served.http}/v1/traces", content=body, headers=headers) for _ in range(2)]
        assert taken.status_code == 200
        assert (answer.status_code, read_status(answer, kind).code) == (503, Code.UNAVAILABLE)
        assert int(answer.headers["retry-after"]) > 0
        async with grpc.aio.insecure_channel(served.grpc) as channel:
            assert await refusal_of(channel, served, request) is grpc.StatusCode.UNAVAILABLE


async def refusal_of(
    channel: grpc.aio.Channel, served: Served, request: ExportTraceServiceRequest, **options: Any
) -> grpc.StatusCode:
    """Send a request over gRPC, and return the status with which it is refused."""
    stub: Any = TraceServiceStub(channel)  # type: ignore[no-untyped-call]
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Export(request, metadata=tuple(served.headers.items()), **options)
    return refused.value.code()


EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


async def test_a_call_that_is_not_otlp_is_refused_over_grpc_with_its_status(served: Served) -> None:
    credentials = tuple(served.headers.items())
    async with grpc.aio.insecure_channel(served.grpc) as channel:
        for method, message, metadata, code in (
            (EXPORT, b"\xff\xff", credentials, grpc.StatusCode.INVALID_ARGUMENT),
            (EXPORT, b"", (), grpc.StatusCode.UNAUTHENTICATED),
            (EXPORT, b"", (("authorization", "Bearer wrong"),), grpc.StatusCode.UNAUTHENTICATED),
            (EXPORT.replace("Trace", "Metrics"), b"", credentials, grpc.StatusCode.UNIMPLEMENTED),
            (EXPORT.replace("Trace", "Metrics"), b"", (), grpc.StatusCode.UNAUTHENTICATED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(method)(message, metadata=metadata)
            assert refused.value.code() is code, (method, message, metadata)


async def test_grpc_calls_without_a_message_do_not_block_other_callers(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_for(call: Any) -> grpc.StatusCode:
        async with asyncio.timeout(120):
            return await call.code()

    credentials = tuple(served.headers.items())
    async with grpc.aio.insecure_channel(served.grpc) as channel:
        strangers = [channel.stream_unary(EXPORT)() for _ in range(20)]
        assert {await wait_for(call) for call in strangers} == {grpc.StatusCode.UNAUTHENTICATED}
        monkeypatch.setattr(grpc_server, "MESSAGE_S", 0.5)
        silent = [channel.stream_unary(EXPORT)(metadata=credentials) for _ in range(TOTAL_BODIES)]
        assert {await wait_for(call) for call in silent} == {grpc.StatusCode.CANCELLED}
        empty = channel.stream_unary(EXPORT)(metadata=credentials)
        await empty.done_writing()
        assert await wait_for(empty) is grpc.StatusCode.INVALID_ARGUMENT
    exporter = grpc_exporter(served)
    assert await asyncio.to_thread(exporter.export, make_spans()) is SpanExportResult.SUCCESS


async def test_a_message_that_is_too_large_is_refused_over_grpc(served: Served) -> None:
    request = ExportTraceServiceRequest()
    request.resource_spans.add().scope_spans.add().scope.name = "x" * (MAX_BODY_BYTES + 1)
    async with grpc.aio.insecure_channel(served.grpc) as channel:
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            refused = await refusal_of(channel, served, request, compression=compression)
            assert refused is grpc.StatusCode.RESOURCE_EXHAUSTED
