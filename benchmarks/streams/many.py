"""How long many partitions take to settle on idle workers: at the start, after a kill, after one joins, after one ends.

python -m benchmarks.streams.many [partitions] [workers …]

Each worker is a process with assembly, scoring and grouping, forked from this one, so that what importing takes is left
out. Settled is: every partition of every stage is open in some worker. A kill counts from the signal, so the session
timeout is in it. The processor time of a second without work is that of all workers together, and of the broker.
"""

import asyncio
import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from queue import Empty
from typing import Any

from benchmarks.streams.broker import Broker, broker
from benchmarks.streams.load import settings
from benchmarks.streams.pipeline import three_stages
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.worker.process import prepare_process
from rollbus.streams.worker.worker import Worker, serve

LOOK_S = 0.1
STAGES = 3
IDLE_S = 15.0
PATIENCE_S = 400.0
FORK = multiprocessing.get_context("fork")


def work(made: StreamSettings, seen: Any) -> None:
    """Be a worker until SIGTERM; report how many partitions are assigned and open whenever that changes."""

    async def run() -> None:
        stop, workers = asyncio.Event(), list[Worker]()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        serving = asyncio.create_task(serve(made, three_stages(), stop=stop, on_ready=workers.append))
        told: tuple[int, int] | None = None
        while not serving.done():
            runners = [runner for app in workers[0].apps for runner in app.runners.values()] if workers else []
            now = len(runners), sum(runner.ready for runner in runners)
            if now != told:
                told = now
                seen.put((os.getpid(), time.monotonic(), *now))
            await asyncio.wait([serving], timeout=LOOK_S)
        await serving

    prepare_process()
    asyncio.run(run())


@dataclass(slots=True)
class Workers:
    """The workers of one measurement."""

    made: StreamSettings
    processes: list[BaseProcess] = field(default_factory=list)
    seen: Any = field(default_factory=FORK.Queue)
    open_by_worker: dict[int, tuple[int, int]] = field(default_factory=dict)

    def start(self, count: int) -> None:
        """Fork so many more."""
        for _ in range(count):
            process = FORK.Process(target=work, args=(self.made, self.seen))
            process.start()
            self.processes.append(process)

    def until_settled(self, since: float) -> float:
        """Wait until every partition is open and each worker has some; return the seconds from `since` until then."""
        deadline = time.monotonic() + PATIENCE_S
        partitions = self.made.event_partitions
        last = since
        while time.monotonic() < deadline:
            try:
                pid, at, assigned, opened = self.seen.get(timeout=1.0)
            except Empty:
                continue
            self.open_by_worker[pid] = assigned, opened
            alive = {process.pid for process in self.processes}
            shown = [counts for pid, counts in self.open_by_worker.items() if pid in alive]
            last = max(last, at)
            everywhere = len(shown) == len(alive) and all(assigned == opened > 0 for assigned, opened in shown)
            if at > since and everywhere and sum(opened for _, opened in shown) == STAGES * partitions:
                return last - since
        sys.exit(f"not settled within {PATIENCE_S:.0f} s: (assigned, open) by worker {self.open_by_worker}")

    def leave(self, number: signal.Signals) -> float:
        """End one by a signal; return when."""
        process = self.processes.pop()
        assert process.pid is not None
        at = time.monotonic()
        os.kill(process.pid, number)
        process.join()
        self.open_by_worker.pop(process.pid, None)
        return at

    def cpu_seconds(self) -> float:
        """Return the processor time of all so far."""
        ticks = 0
        for process in self.processes:
            with open(f"/proc/{process.pid}/stat") as stat:
                ticks += sum(map(int, stat.read().rpartition(")")[2].split()[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """End all."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join(30)
            process.kill()


def measure(running: Broker, partitions: int, count: int) -> None:
    """Print the times of one number of workers."""
    made = settings(running.bootstrap_servers, f"many-{time.time_ns()}.").model_copy(
        update={"event_partitions": partitions}
    )
    began = time.monotonic()
    asyncio.run(ensure_topics(made, three_stages()))
    created = time.monotonic() - began
    workers = Workers(made)
    try:
        cpu = running.cpu_seconds()
        workers.start(count)
        settled = workers.until_settled(time.monotonic())
        cost = workers.cpu_seconds(), running.cpu_seconds() - cpu
        time.sleep(5.0)
        cpu_s, broker_s = workers.cpu_seconds(), running.cpu_seconds()
        time.sleep(IDLE_S)
        idle = [(now - then) / IDLE_S for now, then in (
            (workers.cpu_seconds(), cpu_s), (running.cpu_seconds(), broker_s))]  # fmt: skip
        since = time.monotonic()
        workers.start(1)
        joined = workers.until_settled(since)
        ended = workers.until_settled(workers.leave(signal.SIGTERM))
        killed = workers.until_settled(workers.leave(signal.SIGKILL))
    finally:
        workers.stop()
    print(f"{partitions} partitions, {count} workers, topics made in {created:.1f} s; settled within")
    print(f"  {settled:.1f} s of the start, with {cost[0]:.1f} CPU s of the workers and {cost[1]:.1f} of the broker")
    print(f"  {joined:.1f} s of one more joining, {ended:.1f} s of its end, {killed:.1f} s of another being killed")
    print(f"  idle: all workers {idle[0]:.2f} of a core, broker {idle[1]:.2f}", flush=True)


def main(partitions: list[int], workers: list[int]) -> None:
    """Measure each number of partitions with each number of workers, on a broker of their own."""
    for number in partitions:
        for count in workers:
            with broker() as running:
                measure(running, number, count)


if __name__ == "__main__":
    chosen = sys.argv[1:] + ["64,512", "4,8,16"][len(sys.argv) - 1 :]
    main(*[[int(each) for each in text.split(",")] for text in chosen])
