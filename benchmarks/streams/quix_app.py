"""Assembly as a Quix Streams application, exactly once: events kept in its state, a trajectory at the episode's end.

Runs in an environment of its own (`make bench-streams`). The codec in C and the pure assembly are rollbus's, from the
checkout: so both sides decode and build the same, and the engines alone differ.
"""

import json
import sys
import tempfile
import time

from quixstreams import Application

from benchmarks.streams.events import NOWHERE, warm_up
from rollbus.schemas.codec import decode, encode, record_name
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.state.stage import Incoming

STAGE = AssemblyStage(AssemblyConfig())
LAST = {"EpisodeEnded", "WriterClosed"}


class Count:
    """Ends the application after so many records, and knows when the first came."""

    def __init__(self, records: int) -> None:
        self.left, self.records, self.began, self.cpu = records, records, 0.0, 0.0
        self.stop = print


def assemble(value, key, timestamp, headers, state, count):  # type: ignore[no-untyped-def]
    """Keep an event; return the trajectories that are whole with it."""
    if count.left == count.records:
        count.began, count.cpu = time.monotonic(), time.process_time()
    count.left -= 1
    if not count.left:
        count.stop()
    event_count = state.get("kept", 0)
    state.set_bytes(f"event-{event_count}", value)
    state.set("kept", event_count + 1)
    ends = state.get("ends", 0)
    if record_name(value) not in LAST:
        return []
    state.set("ends", ends + 1)
    if ends + 1 < len(LAST):
        return []
    name, fresh, outputs = key.decode(), STAGE.new_state(), []
    for number in range(event_count + 1):
        data = state.get_bytes(f"event-{number}")
        outputs += STAGE.step(fresh, Incoming(decode(data), name, NOWHERE, data))
        state.delete(f"event-{number}")
    return [encode(outgoing.record) for outgoing in outputs if outgoing.topic.name == "trajectories"]


def run(bootstrap_servers: str, namespace: str, records: int) -> dict[str, float]:
    """Work until all records are committed; return what it took."""
    warm_up()
    count = Count(records)
    app = Application(
        broker_address=bootstrap_servers,
        consumer_group=f"{namespace}quix-{time.time_ns()}",
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        state_dir=tempfile.mkdtemp(),
        auto_create_topics=True,
        loglevel="WARNING",
        producer_extra_config={"compression.type": "zstd"},
    )
    events = app.topic(namespace + "episode-events", value_deserializer="bytes", key_deserializer="bytes")
    trajectories = app.topic(namespace + "trajectories", value_serializer="bytes", key_serializer="bytes")
    stream = app.dataframe(events)
    stream = stream.apply(
        lambda value, key, timestamp, headers, state: assemble(value, key, timestamp, headers, state, count),
        stateful=True,
        metadata=True,
        expand=True,
    )
    stream.to_topic(trajectories)
    count.stop = app.stop
    app.run()
    took, cpu = time.monotonic() - count.began, time.process_time() - count.cpu
    return {"seconds": took, "cpu_seconds": cpu}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
