"""The contract of an EventSink, as tests that a class per sink inherits."""

from typing import Any

from rollbus.producers.sending.sink import Outbound

NOW_MS = 1_700_000_000_000


class SinkContract:
    """Subclasses say how to make a sink and how to see what arrived."""

    async def make(self) -> Any:
        """Return a sink that is not started."""
        raise AssertionError("the subclass makes the sink")

    async def received(self, sink: Any, count: int) -> list[tuple[bytes, bytes, int]]:
        """Key, value and timestamp of what arrived, at least `count` of them."""
        raise AssertionError("the subclass reads")

    def topic(self) -> str:
        """Where the contract's records go."""
        return "t.episode-events"

    def limit(self, sink: Any) -> int:
        """Return the size of a value that the sink refuses."""
        raise AssertionError("the subclass knows its limit")

    def record(self, number: int, value: bytes | None = None) -> Outbound:
        """One record of the contract, all under one key."""
        return Outbound(self.topic(), b"key", value or f"value-{number}".encode(), NOW_MS + number)

    async def test_sent_records_arrive_in_order_with_key_and_time(self) -> None:
        sink = await self.make()
        await sink.start()
        try:
            assert await sink.send([self.record(number) for number in range(3)]) == frozenset()
            assert await sink.send([self.record(3)]) == frozenset()
            received = await self.received(sink, 4)
        finally:
            await sink.close()
        assert received == [(b"key", f"value-{n}".encode(), NOW_MS + n) for n in range(4)]

    async def test_a_value_too_large_is_refused_and_its_neighbours_arrive(self) -> None:
        sink = await self.make()
        await sink.start()
        try:
            large = bytes(self.limit(sink))
            refused = await sink.send([self.record(0), self.record(1, large), self.record(2)])
            received = await self.received(sink, 2)
        finally:
            await sink.close()
        assert refused == frozenset({1})
        assert [value for _, value, _ in received] == [b"value-0", b"value-2"]

    async def test_an_empty_send_is_not_an_error(self) -> None:
        sink = await self.make()
        await sink.start()
        assert await sink.send([]) == frozenset()
        await sink.close()

    async def test_a_sink_can_be_closed_before_it_is_started_and_twice(self) -> None:
        sink = await self.make()
        await sink.close()
        await sink.close()
