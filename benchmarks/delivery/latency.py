"""How soon traffic is taken back: `python -m benchmarks.delivery.latency [canaries]`.

A broker and a worker as users start them; every tenth of a second of the wall clock counts. An agent records episodes
through the SDK, and all of a canary's fail. Measured is from the moment just before the first of them is recorded until
a router has heard of the decision that takes the traffic back: so through assembly, scoring, observing and delivery,
with the wait for the next tick. Canaries begin at different moments between two ticks.
"""

import asyncio
import math
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

import yaml

import rollbus.producers
from benchmarks.streams.broker import broker
from benchmarks.trainer.verdicts import Verdict
from rollbus.local.process.tether import tethered
from rollbus.producers import Recorder
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.decisions import follow_decisions
from rollbus.runtime.kafka.writing import Row, send_each
from rollbus.schemas.codec import encode
from rollbus.schemas.records.delivery import PolicyDecision, route
from rollbus.schemas.records.steps import PolicyState, PolicyVersion
from rollbus.schemas.topics import DELIVERY_LOG
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.streams.stages.delivery.state import HEARD_MS

TARGET_S = 2.0
EPISODES = 120
"""Recorded at once, about half by the canary: some forty of them are enough."""
PATIENCE_S = 60.0
ROLLBUS = str(Path(sys.prefix) / "bin" / "rollbus")
NAMESPACE = "latency."
DELIVERY = {"steps": [0.5], "min_episodes": 1_000, "wait_ms": 0, "metrics": []}


class Heard:
    """The newest decision, and when it was heard."""

    def __init__(self) -> None:
        self.decision: PolicyDecision | None = None
        self._changed = asyncio.Event()

    def use(self, decision: PolicyDecision) -> None:
        """Take in a decision."""
        self.decision = decision
        self._changed.set()

    async def until(self, action: str, version: int) -> PolicyDecision:
        """Wait for an action on a version."""
        async with asyncio.timeout(PATIENCE_S):
            while (decision := self.decision) is None or (decision.action, decision.version) != (action, version):
                self._changed.clear()
                await self._changed.wait()
        return decision


async def measure(bootstrap_servers: str, folder: Path, canaries: int) -> list[float]:
    """Return the seconds of each canary."""
    heard, connection = Heard(), KafkaConnection(bootstrap_servers=bootstrap_servers)
    await _create_topics(folder)
    following = asyncio.create_task(follow_decisions(connection, NAMESPACE, heard.use))
    recorder = rollbus.producers.init(bootstrap_servers=bootstrap_servers, namespace=NAMESPACE, producer="bench")
    seconds = []
    try:
        async with _a_worker(folder):
            await _say(connection, 0, "serving")
            await heard.until("serve", 0)
            for version in range(1, canaries + 1):
                await _say(connection, version, "candidate")
                decision = await heard.until("canary", version)
                await asyncio.sleep(HEARD_MS / 1000 + 2.0 + version / canaries)
                began = time.perf_counter()
                await asyncio.to_thread(_record_episodes, recorder, decision)
                await heard.until("quarantine", version)
                seconds.append(time.perf_counter() - began)
    finally:
        following.cancel()
        recorder.close()
    return seconds


def _record_episodes(recorder: Recorder, decision: PolicyDecision) -> None:
    for _ in range(EPISODES):
        with recorder.episode(task="bench") as episode:
            version = route(decision, episode.id)
            episode.turn(messages=[{"role": "user", "content": "?"}], answer="!", model=f"agent@{version}")
            episode.reward(float(version == decision.serving))
    recorder.flush()


async def _say(connection: KafkaConnection, version: int, state: PolicyState) -> None:
    """Tell delivery of a version, as the trainer does."""
    record = PolicyVersion(
        model="agent", version=version, parent=0 if version else None, run_id="main", state=state,
        changed_at_ms=wall_clock_ms(),
    )  # fmt: skip
    await send_each(connection, [Row(DELIVERY_LOG.full_name(NAMESPACE), 0, b"main", encode(record))])


@asynccontextmanager
async def _a_worker(folder: Path) -> AsyncIterator[None]:
    with (folder / "worker.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(*tethered(), ROLLBUS, "--config", "rollbus.yaml", "worker", "run"),
            cwd=folder,
            stdout=log,
            stderr=log,
            env=_environment(),
        )
        try:
            yield
        except BaseException:
            print((folder / "worker.log").read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            await process.wait()


async def _create_topics(folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(ROLLBUS, "--config", "rollbus.yaml", "topics", "create"),
        cwd=folder,
        env=_environment(),
        stdout=asyncio.subprocess.DEVNULL,
    )
    if await process.wait():
        sys.exit("rollbus topics create failed")


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("ROLLBUS_")}


def main(canaries: int = 20) -> None:
    """Print the median and the slowest beside the target."""
    with broker() as kafka, tempfile.TemporaryDirectory() as name:
        settings = {
            "namespace": NAMESPACE,
            "kafka": {"bootstrap_servers": kafka.bootstrap_servers},
            "worker": {"event_partitions": 2},
            "runs": [{"run_id": "main", "delivery": DELIVERY}],
            "trainer": {"serve": "after_evaluation"},
        }
        Path(name, "rollbus.yaml").write_text(yaml.safe_dump(settings))
        seconds = sorted(asyncio.run(measure(kafka.bootstrap_servers, Path(name), canaries)))
    p90 = seconds[math.ceil(0.9 * len(seconds)) - 1]
    figures = f"median {median(seconds):.2f} s, 90 % {p90:.2f} s, of {canaries} canaries; load {os.getloadavg()[0]:.1f}"
    slowest = f"{seconds[-1]:.2f} s, target ≤ {TARGET_S:.0f}; {figures}"
    print(Verdict("from the first bad episode to the router, slowest", slowest, seconds[-1] <= TARGET_S))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
