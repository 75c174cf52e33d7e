"""Mutated requests on every port, and mutated records: nothing ends, and memory stays bounded. A seed repeats a run.

ROLLBUS_FUZZ sets how many of each; `make faults` takes more.
"""

import asyncio
import os
import random
import resource

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords

from rollbus.local.process.ports import listener_of
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.kafka.batches import BoundedBatches
from tests.faults.seed import REPEAT, SEED
from tests.hostile.doors import Place, ask, peak_bytes
from tests.hostile.places import MIB, all_places, places
from tests.hostile.raw_batches import make_batch, make_record
from tests.services.clickhouse_guarded import guarded

__all__ = ["all_places", "guarded", "places"]

COUNT = int(os.environ.get("ROLLBUS_FUZZ", "300"))
AT_ONCE = 16
HANG_S = 900.0
"""A server that is silent for so long hangs. Its own limits are below a minute; the rest is for a busy machine, where
sixteen clients and the worker's server share one thread."""
MEMORY_BYTES = 400 * MIB
"""What a process may take more than before."""
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


async def fuzz(place: Place) -> None:
    chance, places_free = random.Random(f"{SEED} {place.name}"), asyncio.Semaphore(AT_ONCE)
    process_id = listener_of(place.port)
    assert process_id is not None
    before = peak_bytes(process_id)

    async def send(data: bytes) -> None:
        async with places_free:
            await ask(place.port, data, ends=True, within_s=HANG_S)

    for _ in range(0, COUNT, 500):
        await asyncio.gather(*(send(mutate(place.request(), chance)) for _ in range(min(COUNT, 500))))
        await answers(place)
    assert peak_bytes(process_id) - before < MEMORY_BYTES, place.name


async def answers(place: Place) -> None:
    """Wait until a good request is answered: what a client has left behind may still run for a moment."""
    async with asyncio.timeout(HANG_S):
        while (found := await ask(place.port, place.request(), within_s=HANG_S))[0] != 200:
            assert listener_of(place.port) is not None, (place.name, found)
            await asyncio.sleep(0.1)


@pytest.mark.services
@pytest.mark.timeout(0)
async def test_mutated_requests_end_no_server(all_places: list[Place]) -> None:
    print(REPEAT)
    for place in all_places:
        await fuzz(place)


@pytest.mark.timeout(0)
def test_mutated_records_end_no_reader() -> None:
    print(REPEAT)
    chance, before = random.Random(f"{SEED} records"), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    good = [make_record(n, b"key", bytes(50) * n, [(b"name", b"value")]) for n in range(8)]
    place, after = TopicPartition("topic", 0), make_batch([make_record(0, b"k", b"after")], 0, len(good))
    for _ in range(COUNT * 10):
        bad = make_batch([mutate(record, chance) for record in good], chance.randrange(5))
        records = PartitionRecords(place, BoundedBatches(bad + after), [], 0, None, None, True, READ_COMMITTED)
        found = list(records)
        assert (found[-1].value, records.next_fetch_offset) == (b"after", len(good) + 1)
        for record in found:
            with pytest.raises(RecordError):
                decode(record.value)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY_BYTES
