"""How long many partitions take to settle on idle workers: at the start, after a kill, after one joins, after one ends.

python -m benchmarks.streams.many_partitions [partitions] [workers] [settings as JSON]

The numbers may be several, with commas; `{"tick_interval_ms": 5000}` changes a setting of the workers. Each worker is a
process with assembly, scoring and grouping, forked from this one, so that what importing takes is left out. Settled is:
every partition of every stage is open in some worker. A kill counts from the signal, so the session timeout is in it.
The processor time of a second without work is that of all workers together, and of the broker.
"""

import asyncio
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, cast

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
PATIENCE_S = 1_200.0
"""Fifty workers start and settle on the few cores of one machine."""
HEAP = "2g"
"""512 partitions are 4,600 with those of all topics, and each takes some of the broker's memory."""
AS_A_CLUSTER = {"group.initial.rebalance.delay.ms": "3000"}
"""Kafka's default: a new group waits a moment for more members. A local stack has one worker and does not wait."""
FORK = multiprocessing.get_context("fork")


def work(stream_settings: StreamSettings, parent: Connection) -> None:
    """Be a worker until SIGTERM; report how many partitions are assigned and open whenever that changes."""

    async def run() -> None:
        stop, workers = asyncio.Event(), list[Worker]()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        serving = asyncio.create_task(serve(stream_settings, three_stages(), stop=stop, on_ready=workers.append))
        reported_counts: tuple[int, int] | None = None
        while not serving.done():
            runners = [runner for app in workers[0].apps for runner in app.runners.values()] if workers else []
            now = len(runners), sum(runner.ready for runner in runners)
            if now != reported_counts:
                reported_counts = now
                parent.send((os.getpid(), time.monotonic(), *now))
            await asyncio.wait([serving], timeout=LOOK_S)
        await serving

    prepare_process()
    asyncio.run(run())


@dataclass(slots=True)
class Workers:
    """The workers of one measurement."""

    stream_settings: StreamSettings
    processes: list[BaseProcess] = field(default_factory=list)
    reports: list[Connection] = field(default_factory=list)
    """One pipe of each: a queue that all share stays locked where the one that writes into it is killed."""
    open_by_worker: dict[int, tuple[int, int]] = field(default_factory=dict)

    def start(self, count: int) -> None:
        """Fork so many more."""
        for _ in range(count):
            reports, child_end = FORK.Pipe(duplex=False)
            process = FORK.Process(target=work, args=(self.stream_settings, child_end))
            process.start()
            child_end.close()
            self.processes.append(process)
            self.reports.append(reports)

    def until_settled(self, since: float) -> float:
        """Wait until every partition is open and each worker has some; return the seconds from `since` until then."""
        deadline = time.monotonic() + PATIENCE_S
        partitions = self.stream_settings.event_partitions
        last = since
        while time.monotonic() < deadline:
            for connection in cast("list[Connection]", wait(self.reports, timeout=1.0)):
                try:
                    pid, at, assigned, opened = connection.recv()
                except EOFError:
                    sys.exit("a worker ended by itself: its last lines are above")
                self.open_by_worker[pid], last = (assigned, opened), max(last, at)
            open_counts = list(self.open_by_worker.values())
            everywhere = len(open_counts) == len(self.processes) and all(
                assigned == opened > 0 for assigned, opened in open_counts
            )
            if last > since and everywhere and sum(opened for _, opened in open_counts) == STAGES * partitions:
                return last - since
        sys.exit(f"not settled within {PATIENCE_S:.0f} s: (assigned, open) by worker {self.open_by_worker}")

    def leave(self, number: signal.Signals) -> float:
        """End one by a signal; return when."""
        process, reports = self.processes.pop(), self.reports.pop()
        assert process.pid is not None
        at = time.monotonic()
        os.kill(process.pid, number)
        process.join()
        reports.close()
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


def measure(running: Broker, partitions: int, count: int, changes: dict[str, Any]) -> None:
    """Print the times of one number of workers, each as soon as it is known."""
    stream_settings = settings(running.bootstrap_servers, f"many-{time.time_ns()}.").model_copy(
        update={"event_partitions": partitions, **changes}
    )
    began = time.monotonic()
    asyncio.run(ensure_topics(stream_settings, three_stages()))
    report(f"{partitions} partitions, {count} workers: topics made in {time.monotonic() - began:.1f} s; settled within")
    workers = Workers(stream_settings)
    try:
        measure_start(running, workers, count)
        measure_idle(running, workers)
        since = time.monotonic()
        workers.start(1)
        report(f"  {workers.until_settled(since):.1f} s of one more joining")
        report(f"  {workers.until_settled(workers.leave(signal.SIGTERM)):.1f} s of its end")
        report(f"  {workers.until_settled(workers.leave(signal.SIGKILL)):.1f} s of another being killed")
    finally:
        workers.stop()


def measure_start(running: Broker, workers: Workers, count: int) -> None:
    """Print how long so many take to settle, and what it costs."""
    broker_s, since = running.cpu_seconds(), time.monotonic()
    workers.start(count)
    settled = workers.until_settled(since)
    cost = f"{workers.cpu_seconds():.1f} CPU s of the workers and {running.cpu_seconds() - broker_s:.1f} of the broker"
    report(f"  {settled:.1f} s of the start, with {cost}")


def measure_idle(running: Broker, workers: Workers) -> None:
    """Print what a second without work costs."""
    time.sleep(5.0)
    workers_s, broker_s = workers.cpu_seconds(), running.cpu_seconds()
    time.sleep(IDLE_S)
    of_workers, of_broker = workers.cpu_seconds() - workers_s, running.cpu_seconds() - broker_s
    report(f"  idle: all workers {of_workers / IDLE_S:.2f} of a core, broker {of_broker / IDLE_S:.2f}")


def report(line: str) -> None:
    """Print a line at once: what was measured stays, should the rest fail."""
    print(line, flush=True)


def main(partitions: list[int], workers: list[int], changes: dict[str, Any]) -> None:
    """Measure each number of partitions with each number of workers, on a broker of their own."""
    for number in partitions:
        for count in workers:
            with broker(HEAP, AS_A_CLUSTER) as running:
                measure(running, number, count, changes)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and so end the workers and the broker
    chosen = sys.argv[1:] + ["64,512", "4,8,16", "{}"][len(sys.argv) - 1 :]
    if not all(re.fullmatch(r"[1-9][0-9]*(,[1-9][0-9]*)*", text) for text in chosen[:2]):
        sys.exit(f"partitions and workers are numbers such as 64,512 and 4,8,16, not {' and '.join(chosen[:2])}")
    partition_counts, worker_counts = ([int(part) for part in text.split(",")] for text in chosen[:2])
    main(partition_counts, worker_counts, json.loads(chosen[2]))
