"""Assembly in a loop as one writes it with aiokafka: state in a dictionary, one `send` per record, no guarantee."""

import asyncio
import json
import sys
import time

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.streams.events import warm_up
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.trajectories import Location
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.state.stage import Incoming


async def run(bootstrap_servers: str, namespace: str, records: int) -> None:
    """Work until all records are read and all outputs sent; print what it took."""
    topic, stage = namespace + "episode-events", AssemblyStage(AssemblyConfig())
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=bootstrap_servers,
        group_id=f"{namespace}bare-{time.time()}",
        auto_offset_reset="earliest",
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap_servers, compression_type="zstd", linger_ms=20)
    await consumer.start()
    await producer.start()
    warm_up()
    states: dict[int, object] = {}
    done, began, cpu = 0, 0.0, 0.0
    async for message in consumer:
        if not done:
            began, cpu = time.monotonic(), time.process_time()
        state = states.setdefault(message.partition, stage.new_state())
        location = Location(topic=topic, partition=message.partition, offset=message.offset)
        incoming = Incoming(decode(message.value), message.key.decode(), location, message.value)
        for outgoing in stage.step(state, incoming):
            name = namespace + outgoing.topic.name
            await producer.send(name, encode(outgoing.record), key=outgoing.key.encode())
        done += 1
        if done == records:
            break
    await producer.flush()
    print(json.dumps({"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}))
    await consumer.stop()
    await producer.stop()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
