"""What every sink promises; the same tests run on Kafka in tests/services."""

from rollbus.producers.sending.sink import MemorySink
from tests.producers.sending.sink_contract import SinkContract


class TestMemorySink(SinkContract):
    """The in-memory sink keeps the promises."""

    async def make(self) -> MemorySink:
        """Return a sink that is not started."""
        return MemorySink()

    async def received(self, sink: MemorySink, count: int) -> list[tuple[bytes, bytes, int]]:
        """Key, value and timestamp of what arrived."""
        return [(record.key, record.value, record.timestamp_ms) for record in sink.sent]

    def limit(self, sink: MemorySink) -> int:
        """Make the sink refuse large values, and return a size above the limit."""
        sink.largest_bytes = 1_000_000
        return 2_000_000
