"""Counters in the text that Prometheus reads, and the two paths that serve it."""

import asyncio

from rollbus.runtime.health.server import MetricsServer
from rollbus.streams.exactly_once.metrics import PartitionMetrics, prometheus_text


async def get(port: int, path: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    return answer


def test_each_counter_has_one_line_per_partition() -> None:
    text = prometheus_text([PartitionMetrics("assembly", 1, records=5), PartitionMetrics("assembly", 0, records=3)])
    assert 'rollbus_stream_records_total{stage="assembly",partition="0"} 3' in text
    assert 'rollbus_stream_records_total{stage="assembly",partition="1"} 5' in text
    assert text.count("# TYPE rollbus_stream_records_total counter") == 1


async def test_metrics_and_liveness_are_served_and_nothing_else() -> None:
    problems: list[str] = []
    server = MetricsServer("127.0.0.1", 0, metrics=lambda: "up 1\n", live=lambda: problems[0] if problems else None)
    port = await server.start()
    try:
        assert (await get(port, "/metrics")).endswith("up 1\n")
        assert (await get(port, "/live")).startswith("HTTP/1.1 200")
        problems.append("assembly[0] stands")
        assert "503" in await get(port, "/live")
        assert "404" in await get(port, "/table")
    finally:
        await server.stop()
