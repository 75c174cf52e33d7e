"""Assembly as a plain Faust application: events in a table, a trajectory at the episode's end, at least once.

Written as its users write it: an agent, two tables, `topic.send`. It works on the first records only, since it is slow.
"""

import asyncio
import json
import sys
import tempfile
import time

import faust

from benchmarks.streams.events import NOWHERE, warm_up
from rollbus.schemas.codec import decode, encode, record_name
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.state.stage import Incoming

STAGE = AssemblyStage(AssemblyConfig())
LAST = {"EpisodeEnded", "WriterClosed"}
MOST_RECORDS = 6_000
PARTITIONS = 4


def application(bootstrap_servers: str, namespace: str, count: "Count") -> faust.App:
    """Return the application, which tells `count` of each record."""
    app = faust.App(
        f"{namespace}faust-{time.time_ns()}",
        broker=f"kafka://{bootstrap_servers}",
        topic_partitions=PARTITIONS,
        table_standby_replicas=0,
        web_enabled=False,
        value_serializer="raw",
        key_serializer="raw",
        datadir=tempfile.mkdtemp(),
    )
    events = app.topic(namespace + "episode-events", value_type=bytes, key_type=bytes)
    trajectories = app.topic(namespace + "trajectories", value_type=bytes, key_type=bytes)
    stored_events = app.Table("kept", partitions=PARTITIONS, key_type=bytes, value_type=bytes)
    progress = app.Table("progress", default=list, partitions=PARTITIONS, key_type=bytes, value_type=list)

    @app.agent(events)
    async def assemble(stream: faust.Stream) -> None:
        async for key, value in stream.items():
            count.one_more()
            number, ends = progress[key] or (0, 0)
            stored_events[key + b"/%d" % number] = value
            ends += record_name(value) in LAST
            progress[key] = [number + 1, ends]
            if ends == len(LAST):
                state = STAGE.new_state()
                for place in range(number + 1):
                    data = stored_events.pop(key + b"/%d" % place)
                    for outgoing in STAGE.step(state, Incoming(decode(data), key.decode(), NOWHERE, data)):
                        await trajectories.send(key=outgoing.key.encode(), value=encode(outgoing.record))
                del progress[key]

    return app


class Count:
    """Knows when the first record came, and when enough have."""

    def __init__(self, records: int) -> None:
        self.left, self.records, self.began, self.cpu, self.done = records, records, 0.0, 0.0, asyncio.Event()

    def one_more(self) -> None:
        """Count a record."""
        if self.left == self.records:
            self.began, self.cpu = time.monotonic(), time.process_time()
        self.left -= 1
        if self.left == 0:
            self.done.set()


async def run(bootstrap_servers: str, namespace: str, records: int) -> None:
    """Work until enough records are taken in; print what it took."""
    warm_up()
    count = Count(min(records, MOST_RECORDS))
    app = application(bootstrap_servers, namespace, count)
    app.finalize()
    await app.start()
    await count.done.wait()
    took, cpu = time.monotonic() - count.began, time.process_time() - count.cpu
    print(json.dumps({"seconds": took, "cpu_seconds": cpu, "records": count.records}), flush=True)
    await app.stop()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
