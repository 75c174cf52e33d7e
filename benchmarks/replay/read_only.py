"""The ceilings: read the topic and decode its Avro, and nothing else.

With `compiled`, our codec, to records; with `library`, the Avro library, to dictionaries: what somebody outside writes.
"""

import asyncio
import json
import random
import resource
import sys
import time

from benchmarks.streams.avro_library import library_reader
from benchmarks.streams.events import episode, warm_up
from benchmarks.streams.load import settings
from rollbus.schemas.codec import decode
from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.streams.replay.kafka.source import open_ranges
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.replay.plan.range_on_broker import resolve
from rollbus.streams.worker.process import prepare_process


async def run(bootstrap_servers: str, namespace: str, with_what: str) -> None:
    """Read every partition to its end; print what it took."""
    prepare_process()
    warm_up()
    read = decode if with_what == "compiled" else library_reader()
    for event in episode(0, random.Random(0)):
        read(event)
    stream_settings = settings(bootstrap_servers, namespace)
    resolved = await resolve(stream_settings, EPISODE_EVENTS, Bound(), Bound())
    records = 0
    async with open_ranges(stream_settings, resolved.ranges) as sources:
        began, cpu = time.monotonic(), time.process_time()
        for source in sources:
            while batch := await source.read():
                for raw in batch:
                    read(raw.value)
                records += len(batch)
        took, used = time.monotonic() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"records": records, "seconds": took, "cpu_seconds": used, "resident_mb": peak}))


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:4]))
