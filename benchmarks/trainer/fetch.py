"""A large batch fetched by location from a real broker: 64 groups of 8 trajectories of 2,000 tokens.

    python -m benchmarks.trainer.fetch BOOTSTRAP

Prints the seconds of each fetch (the first opens the connection), the megabytes of token ids and log-probs in it, and
by how much the process' memory peaked above what it had before.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from benchmarks.trainer.load import MODEL, RUN, create_topics, write_batches
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.trainer.ledger.log_kafka import KafkaTrainerLog

GROUPS, GROUP_SIZE, TOKENS = 64, 8, 2_000
FETCHES = 4


def memory_mb(field: str) -> float:
    """VmRSS, what is resident, or VmHWM, its peak since it was last forgotten."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


async def measure(bootstrap_servers: str) -> dict[str, object]:
    connection = KafkaConnection(bootstrap_servers=bootstrap_servers)
    namespace = f"bench-{time.time_ns()}."
    await create_topics(connection, namespace)
    (batch,) = await write_batches(
        connection, namespace, batches=1, groups=GROUPS, group_size=GROUP_SIZE, tokens=TOKENS
    )
    locations = [member.location for group in batch.groups for member in group.members]
    log = KafkaTrainerLog(connection, namespace=namespace, run_id=RUN, model=MODEL)
    await log.open()
    forget_peak()
    before, took, size = memory_mb("VmRSS"), [], 0
    for _ in range(FETCHES):
        began = time.perf_counter()
        trajectories = await log.fetch(locations)
        took.append(round(time.perf_counter() - began, 3))
        assert len(trajectories) == len(locations)
        histories = [history for trajectory in trajectories.values() for history in trajectory.histories]
        size = sum(len(history.token_ids) + len(history.logprobs) for history in histories)
        del trajectories, histories
    await log.close()
    return {"seconds": took, "payload_mb": round(size / 1e6, 1), "peak_mb_above": round(memory_mb("VmHWM") - before, 1)}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1]))))
