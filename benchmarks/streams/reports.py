"""What reports on closed episodes cost assembly and scoring: all on one episode, beside one on each of as many.

python -m benchmarks.streams.reports [reports]

Each case runs in a process of its own. A thousand reports come between two ticks of a second. Counted are what follows
from the reports alone: seconds of processor time, growth of memory, rows of ClickHouse, and bytes of the changelogs.
`no bounds` raises the limits on reports above their number: the cost is linear without them, too.
"""

import asyncio
import json
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.streams.events import Shape, episode
from rollbus.consumers.clickhouse.rows.rows import part_rows
from rollbus.consumers.clickhouse.store.origin import Origin
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.ids import reward_event_id
from rollbus.schemas.records.config import AssemblyConfig, ScoringConfig
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.events import RewardReported
from rollbus.schemas.records.trajectories import RewardRevised, Score
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.processing import StagePartition
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.scoring.stage import ScoringStage
from rollbus.streams.state.stage import PureAsEffects

PER_TICK = 1_000
SHORT = Shape(turns=1, prompt_tokens=4, tokens=4, text="go")
UNBOUNDED = 10**9
CASES = {"many episodes": (False, False), "one episode": (True, False), "one episode, no bounds": (True, True)}


@dataclass(frozen=True, slots=True)
class Raw:
    """A record as it is fetched."""

    offset: int
    value: bytes
    key: bytes = b"k"
    timestamp: int = 0


@dataclass
class Pipeline:
    """Assembly and scoring of one partition, one after the other."""

    assembly: StagePartition
    scoring: StagePartition
    offset: int = 0
    ticks: int = 0
    changelog_bytes: int = 0
    counts: dict[str, int] = field(default_factory=dict)

    async def feed(self, records: list[bytes]) -> None:
        """Process records as one batch of each stage."""
        assembled = await self._process(self.assembly, records)
        await self._process(self.scoring, [value for topic, value in assembled if topic == "trajectories"])

    async def tick(self) -> None:
        """Let a second pass in both stages."""
        self.ticks += 1
        now_ms = 1_700_000_000_000 + self.ticks * 1_000
        tick = encode(Tick(number=self.ticks, stream_time_ms=now_ms, wall_clock_ms=now_ms, interval_ms=1_000))
        assembled = await self._process(self.assembly, [tick])
        await self._process(self.scoring, [*(value for topic, value in assembled if topic == "trajectories"), tick])

    async def _process(self, stage: StagePartition, values: list[bytes]) -> list[tuple[str, bytes]]:
        raws = []
        for value in values:
            self.offset += 1
            raws.append(Raw(self.offset, value))
        processed = await stage.process(raws)
        self.changelog_bytes += sum(len(key) + len(value or b"") for key, value in processed.changelog)
        for out in processed.outputs:
            record: Any = decode(out.value)
            if isinstance(record, RewardRevised | Score | Drop):
                rows = 1 + len(part_rows(record, ORIGIN))
                self.counts[type(record).__name__] = self.counts.get(type(record).__name__, 0) + rows
        return [(out.topic, out.value) for out in processed.outputs]


ORIGIN = Origin("n.", "t", 0, 0, 0)


def resident_bytes() -> int:
    """Return the memory of this process that is in use."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def report(target: str, number: int) -> bytes:
    """Return a late report under a key of its own."""
    record = RewardReported(
        event_id=reward_event_id(target, "thumbs", str(number)),
        episode_id=target,
        root_episode_id=target,
        writer_id="feedback",
        sequence=-1,
        occurred_at_ms=number,
        episode_started_at_ms=0,
        name="thumbs",
        value=float(number % 2),
        source="user",
    )
    return encode(record)


async def run_case(reports: int, *, one_episode: bool, unbounded: bool) -> dict[str, float]:
    """Close the episodes, then send the reports, and return what they cost."""
    limits = {"max_reports": UNBOUNDED, "max_reports_per_name": UNBOUNDED} if unbounded else {}
    config = AssemblyConfig(**limits)
    pipeline = Pipeline(
        StagePartition(PureAsEffects(AssemblyStage(config)), Partition("episode-events", 0), app_version=""),
        StagePartition(ScoringStage(ScoringConfig(), keep_ms=86_400_000), Partition("trajectories", 0), app_version=""),
    )
    await pipeline.tick()
    chance, targets = random.Random(0), 1 if one_episode else reports
    for number in range(targets):
        await pipeline.feed(episode(number, chance, shape=SHORT))
    pipeline.counts.clear()
    pipeline.changelog_bytes = 0
    values = [report(f"episode-{number % targets}", number) for number in range(reports)]
    memory, cpu_start_s = resident_bytes(), time.process_time()
    for first in range(0, reports, PER_TICK):
        await pipeline.feed(values[first : first + PER_TICK])
        await pipeline.tick()
    for _ in range(reports // PER_TICK + 2):  # what waits for a tick is a part of the cost
        await pipeline.tick()
    return {
        "seconds": time.process_time() - cpu_start_s,
        "mb": (resident_bytes() - memory) / 1e6,
        "rows": sum(pipeline.counts.values()),
        "changelog_mb": pipeline.changelog_bytes / 1e6,
    }


def main(reports: int) -> None:
    """Run every case in a process of its own, and print each beside the first."""
    first: dict[str, float] = {}
    for name in CASES:
        command = [sys.executable, "-m", "benchmarks.streams.reports", str(reports), name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        costs: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        first = first or costs
        parts = (f"{cost:.1f} {what} ({cost / max(first[what], 1e-9):.2f} ×)" for what, cost in costs.items())
        print(f"{reports} reports, {name:24} {', '.join(parts)}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        is_one, is_unbounded = CASES[sys.argv[2]]
        print(json.dumps(asyncio.run(run_case(int(sys.argv[1]), one_episode=is_one, unbounded=is_unbounded))))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
