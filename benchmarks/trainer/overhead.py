"""What a step costs beside its update: the trainer on a real broker, and an art-server whose update is a sleep of 1 s.

    python -m benchmarks.trainer.overhead BOOTSTRAP [steps] [--profile]

Counted is the time from one closed step to the next, less what the server says that its update took, and the CPU time
that the trainer's process spends on a step, all that it does while the backend works included. A batch is 16 groups of
8 trajectories of 400 tokens, the demo's shape; all batches are there at the start.
"""

import argparse
import asyncio
import cProfile
import json
import subprocess
import sys
import time
from statistics import median
from typing import Any, NamedTuple

from benchmarks.trainer.load import MODEL, RUN, create_topics, write_batches
from benchmarks.trainer.server import UPDATE_S
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.records.steps import StepCompleted
from rollbus.trainer.backends.art_client import ArtClient
from rollbus.trainer.ledger.log_kafka import KafkaTrainerLog
from rollbus.trainer.loop.loop import Trainer
from rollbus.trainer.settings import TrainerSettings

STEP_S = 1.0
GROUPS, GROUP_SIZE, TOKENS = 16, 8, 400


class Closed(NamedTuple):
    """When a step was closed, or what has passed since the one before, by wall and CPU, and its update; in seconds."""

    wall: float
    cpu: float
    update: float


class Watched(KafkaTrainerLog):
    """Notes when each step was closed."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.closed: list[Closed] = []

    async def publish(self, publications: Any, **named: Any) -> Any:
        written = await super().publish(publications, **named)
        now = time.perf_counter(), time.process_time()
        completed = (outgoing.record for outgoing in written if isinstance(outgoing.record, StepCompleted))
        self.closed += [Closed(*now, record.metrics[UPDATE_S]) for record in completed]
        return written


async def measure(bootstrap_servers: str, url: str, steps: int, *, profile: bool) -> list[Closed]:
    """Return by step the seconds beside the update, of CPU, and of the update.

    The first step, which opens connections, is left out, and the last, which no other follows.
    """
    connection = KafkaConnection(bootstrap_servers=bootstrap_servers)
    namespace = f"bench-{time.time_ns()}."
    await create_topics(connection, namespace)
    await write_batches(connection, namespace, batches=steps + 3, groups=GROUPS, group_size=GROUP_SIZE, tokens=TOKENS)
    log = Watched(connection, namespace=namespace, run_id=RUN, model=MODEL)
    settings = TrainerSettings(kafka=connection, namespace=namespace)
    client = ArtClient(url)
    trainer = Trainer(log, client, settings.model_copy(update={"retry_pauses_s": ()}))
    profiler = cProfile.Profile()
    if profile:
        profiler.enable()
    try:
        await trainer.run(until_idle=True)
    finally:
        await client.close()
        await log.close()
    if profile:
        profiler.disable()
        profiler.dump_stats("overhead.prof")
    pairs = list(zip(log.closed[1:-1], log.closed[2:], strict=True))[:-1]
    return [
        Closed(later.wall - earlier.wall - later.update, later.cpu - earlier.cpu, later.update)
        for earlier, later in pairs
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bootstrap_servers")
    parser.add_argument("steps", type=int, nargs="?", default=20)
    parser.add_argument("--profile", action="store_true", help="write overhead.prof into this folder")
    options = parser.parse_args()
    command = [sys.executable, "-m", "benchmarks.trainer.server", str(STEP_S)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        step_times = asyncio.run(measure(options.bootstrap_servers, url, options.steps, profile=options.profile))
    finally:
        server.kill()
        server.wait()
    wall, cpu, update = zip(*step_times, strict=True)
    summary = {"seconds": median(wall), "lowest": min(wall), "highest": max(wall), "cpu_seconds": median(cpu)}
    print(json.dumps(summary | {"update_seconds": median(update), "steps": len(step_times)}))


if __name__ == "__main__":
    main()
