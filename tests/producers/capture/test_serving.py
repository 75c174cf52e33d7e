"""What a host serves and passes on: metrics, the trace and the function in headers, and episodes that wait."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from opentelemetry import trace

from rollbus.producers import MemorySink, Recorder, init
from rollbus.schemas.records.events import EpisodeStarted, TurnRecorded
from tests.producers.openai_server import Server

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
HELLO: Any = [{"role": "user", "content": "hello"}]


def test_counters_are_served_as_prometheus_reads_them(sink: MemorySink) -> None:
    recorder = init(sink=sink, producer='shop "1"')
    with recorder.episode(task="t"):
        pass
    assert recorder.flush(120)
    recorder.counts.add("events_dropped.queue_full", 2)
    lines = recorder.metrics().splitlines()
    assert r'rollbus_producer_events_delivered_total{producer="shop \"1\""} 3' in lines
    assert r'rollbus_producer_events_dropped_total{producer="shop \"1\"",reason="queue_full"} 2' in lines
    assert r'rollbus_producer_bytes_queued{producer="shop \"1\""} 0' in lines
    assert lines[-1] == r'rollbus_producer_healthy{producer="shop \"1\""} 1'
    assert recorder.close(120)


def test_trace_and_function_go_along_to_another_process(recorder: Recorder, sink: MemorySink, server: Server) -> None:
    other = init(sink=sink, namespace="t.")
    with recorder.episode(task="t", traceparent=TRACE), recorder.function("plänner"):
        headers = recorder.headers()
        assert headers["traceparent"] == TRACE
        assert all(value.isascii() for value in headers.values())
        with other.attach(headers):
            other.wrap(server.client()).chat.completions.create(model="agent", messages=HELLO)
            assert other.headers() == headers
            with other.episode(task="child") as child:
                assert other.headers()["rollbus-episode"] == child.id, "an id that needs no escapes is sent as it is"
    assert other.close(120)
    assert recorder.close(120)
    events = sink.records("episode-events")
    assert [event.labels for event in events if isinstance(event, EpisodeStarted)] == [{"traceparent": TRACE}] * 2
    (turn,) = [event for event in events if isinstance(event, TurnRecorded)]
    assert turn.function == "plänner"


@pytest.mark.parametrize("own_id", ["bestellung-ä", "注文/4711", "50%2F50 % ", " run 17", "a\r\nb: c"])
def test_any_own_id_arrives_in_another_process_unchanged(recorder: Recorder, own_id: str) -> None:
    other = init(sink=MemorySink())
    with recorder.episode(task="t", episode_id=own_id) as episode:
        sent = httpx.Headers(recorder.headers())
    received = {name.decode(): value.decode("latin-1").strip() for name, value in sent.raw}
    with other.attach(received) as attached:
        assert attached.id == episode.id == own_id
        assert httpx.Headers(other.headers()) == sent
    assert other.close(120)


@pytest.mark.parametrize("wrong", ["", "00-0-0-00", "x" * 55, 7, TRACE.replace("4", "G")])
def test_an_invalid_trace_is_left_out(recorder: Recorder, wrong: Any) -> None:
    with recorder.episode(task="t", traceparent=wrong):
        assert "traceparent" not in recorder.headers()


def test_the_current_span_of_open_telemetry_is_the_trace(recorder: Recorder) -> None:
    span = trace.NonRecordingSpan(trace.SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=trace.TraceFlags(1)))
    with trace.use_span(span), recorder.episode(task="t"):
        assert recorder.headers()["traceparent"] == f"00-{0xABC:032x}-{0xDEF:016x}-01"


async def test_a_sync_episode_is_out_when_its_block_is_left(sink: MemorySink) -> None:
    recorder = init(sink=sink)

    @recorder.episode(sync=True)
    def handler() -> None:
        recorder.tool("x")

    @recorder.episode(sync=True)
    async def async_handler() -> None:
        recorder.tool("x")

    handler()
    assert recorder.counters["events_queued"] == 0
    assert len(sink.records("episode-events")) == 4
    await async_handler()
    assert len(sink.records("episode-events")) == 8
    with recorder.episode(task="t", sync=True):
        pass
    async with recorder.episode(task="t", sync=True):
        pass
    assert len(sink.records("episode-events")) == 14
    with pytest.raises(ZeroDivisionError), recorder.episode(task="t", sync=True):
        raise ZeroDivisionError
    assert recorder.counters["events_queued"] == 0
    assert recorder.close(120)


async def test_a_sync_episode_does_not_depend_on_the_loops_executor(recorder: Recorder, sink: MemorySink) -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    asyncio.get_running_loop().set_default_executor(executor)
    async with recorder.episode(task="frozen", sync=True):
        pass
    assert len(sink.records("episode-events")) == 3
