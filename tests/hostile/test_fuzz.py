"""Mutated requests on every port, and mutated records: nothing ends, and memory stays bounded. A seed repeats a run.

ROLLBUS_FUZZ sets how many requests each place gets; of records there are ten times as many. `make fuzz` takes 100,000.
"""

import asyncio
import json
import os
import random
import resource
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import grpc
import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from rollbus.local.process.ports import listener_of
from rollbus.runtime.kafka.batches import BoundedBatches
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import RecordError
from rollbus.stack_settings import HOST
from tests.builders import (
    make_alias,
    make_ended,
    make_excluded,
    make_reward,
    make_started,
    make_tick,
    make_tool,
    make_turn,
)
from tests.faults.seed import REPEAT, SEED
from tests.hostile.doors import BEARER, Place, ask, peak_bytes
from tests.hostile.http2 import make_call
from tests.hostile.places import MIB, all_places, grpc_port, places
from tests.hostile.raw_batches import make_batch, make_record
from tests.producers.imports.formats.reading import START_NS, request_of
from tests.producers.imports.formats.test_otlp import AGENT, ASKED
from tests.services.endpoint.guarded_endpoint import guarded

__all__ = ["all_places", "grpc_port", "guarded", "places"]

COUNT = int(os.environ.get("ROLLBUS_FUZZ", "300"))
AT_ONCE = 16
PLACES_AT_ONCE = 3
"""One waits for a disk or another process while the next computes."""
ROUND = 500
"""Requests after which a good one must be answered."""
HANG_S = 900.0
"""A server that is silent for so long hangs. Its own limits are below a minute; the rest is for a busy machine, where
all clients and the worker's server share one process."""
MEMORY_BYTES = 400 * MIB
"""What a process may take more than before."""
EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
RECORDS = (
    make_started(labels={"user": "ann"}),
    make_turn(),
    make_tool(),
    make_reward(),
    make_ended(),
    make_excluded(),
    make_alias("ticket"),
    make_tick(1),
)
VALUES = [encode(record) for record in RECORDS]
FRAMED_RECORDS = [make_record(place, b"key", value, [(b"name", b"value")]) for place, value in enumerate(VALUES)]
AFTER = make_batch([make_record(0, b"k", b"after")], 0, len(RECORDS))
PIECES = (
    b"",
    b"\0",
    b"\xff" * 9,
    b"\r\n",
    b"\r\n\r\n",
    b": ",
    b" " * 5_000,
    b"%2e%2e/",
    b"9" * 20,
    b"chunked",
    b"{" * 999,
)


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Change a few places."""
    changed = bytearray(data)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(5):
            case 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                changed[at:at] = chance.choice(PIECES)
            case 2:
                del changed[at : at + chance.randrange(40)]
            case 3:
                start = chance.randrange(len(changed) + 1)
                changed[at:at] = changed[start : start + chance.randrange(80)]
            case _:
                changed[at : at + 8] = chance.randbytes(8)
    return bytes(changed)


def fuzz(name: str, port: int, good: bytes, require_answer: Callable[[], None]) -> None:
    """Send mutated requests, each on a connection of its own; `require_answer` returns once a good one is answered."""
    chance, began_s = random.Random(f"{SEED} {name}"), time.monotonic()
    process_id = listener_of(port)
    assert process_id is not None
    before = peak_bytes(process_id)

    def send(data: bytes) -> None:
        with socket.create_connection((HOST, port), HANG_S) as connection, suppress(ConnectionError):
            connection.sendall(data)
            with suppress(OSError):  # the server has closed already
                connection.shutdown(socket.SHUT_WR)  # nothing follows, so that no server waits for the rest
            while connection.recv(65_536):
                pass

    with ThreadPoolExecutor(AT_ONCE) as clients:
        for start in range(0, COUNT, ROUND):
            list(clients.map(send, [mutate(good, chance) for _ in range(min(COUNT - start, ROUND))]))
            require_answer()
    assert peak_bytes(process_id) - before < MEMORY_BYTES, name
    print(f"{name}: {COUNT} requests in {time.monotonic() - began_s:.0f} s")


def fuzz_place(place: Place) -> None:
    good = (
        place.request(body=json.dumps(request_of(AGENT[1:2])).encode()) if place.name == "ingest" else place.request()
    )
    fuzz(place.name, place.port, good, lambda: asyncio.run(require_200(place)))


async def require_200(place: Place) -> None:
    """Wait until a good request is answered: what a client has left behind may still run for a moment."""
    async with asyncio.timeout(HANG_S):
        while (answer := await ask(place.port, place.request(), within_s=HANG_S))[0] != 200:
            assert listener_of(place.port) is not None, (place.name, answer)
            await asyncio.sleep(0.1)


@pytest.mark.services
@pytest.mark.timeout(0)
async def test_mutated_requests_end_no_server(all_places: list[Place], grpc_port: int) -> None:
    print(REPEAT)
    free = asyncio.Semaphore(PLACES_AT_ONCE)

    async def run(work: Callable[[], None]) -> None:
        async with free:
            await asyncio.to_thread(work)

    works = [partial(fuzz_place, place) for place in all_places]
    await asyncio.gather(*map(run, [*works, partial(fuzz_grpc, grpc_port)]))


def fuzz_grpc(port: int) -> None:
    attributes = [KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in ASKED.items()]
    span = Span(trace_id=b"t" * 16, span_id=b"s" * 8, name="chat", start_time_unix_nano=START_NS, attributes=attributes)
    spans = ResourceSpans(scope_spans=[ScopeSpans(spans=[span])])
    message = ExportTraceServiceRequest(resource_spans=[spans])

    def require_answer() -> None:
        with grpc.insecure_channel(f"{HOST}:{port}") as channel:
            stub: Any = TraceServiceStub(channel)  # type: ignore[no-untyped-call]
            stub.Export(message, metadata=tuple(BEARER.items()), timeout=HANG_S)

    require_answer()
    good = make_call(f"{HOST}:{port}", EXPORT, BEARER, message.SerializeToString())
    fuzz("gRPC", port, good, require_answer)


def read_all(batch: bytes) -> list[Any]:
    """Read a fetch as every consumer does, and find the record after a bad batch."""
    place = TopicPartition("topic", 0)
    records = PartitionRecords(place, BoundedBatches(batch + AFTER), [], 0, None, None, True, READ_COMMITTED)
    *read_records, after = list(records)
    assert (after.value, records.next_fetch_offset) == (b"after", len(RECORDS) + 1)
    return read_records


def decode_or_refuse(value: bytes | None) -> Any:
    with suppress(RecordError):
        return decode(value)


@pytest.mark.timeout(0)
def test_mutated_records_end_no_reader() -> None:
    """Half of them are mutated as Kafka frames them, one in a batch; of the others only the value is."""
    print(REPEAT)
    chance, before = random.Random(f"{SEED} records"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began_s = time.monotonic()
    for number in range(COUNT * 5):
        place = number % len(RECORDS)
        framed = [*FRAMED_RECORDS]
        framed[place] = mutate(framed[place], chance)
        read_records = read_all(make_batch(framed, chance.randrange(5)))
        assert [decode(record.value) for record in read_records[:place]] == list(RECORDS[:place])
        for record in read_records[place:]:
            decode_or_refuse(record.value)
    for _ in range(0, COUNT * 5, len(RECORDS)):
        values = [mutate(value, chance) for value in VALUES]
        batch = make_batch([make_record(place, b"key", value) for place, value in enumerate(values)], 0)
        assert [record.value for record in read_all(batch)] == values
        for value in values:
            decode_or_refuse(value)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY_BYTES
    print(f"records: {COUNT * 10} in {time.monotonic() - began_s:.0f} s")
