"""Write a heartbeat from the event loop that does the work, and serve `/metrics` and `/live` from it.

A beat cannot come from a loop that is blocked, or from a process that is stopped or dead. What it says of the work is
`advance`, which is pure. A broker that is away, or a topic that is missing, is logged once, and the work goes on.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rollbus.runtime.kafka.clients import new_admin, new_producer, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.partitions import count_partitions
from rollbus.runtime.machine import disk_usage
from rollbus.runtime.tasks import start_task
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.health import Heartbeat
from rollbus.schemas.topics import HEARTBEATS
from rollbus.schemas.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from rollbus.runtime.health.server import MetricsServer

logger = logging.getLogger(__name__)

RETRY_S = 5.0
MOST_TROUBLE = 500
"""Characters: a beat is small, whatever an error says."""
TAKEN_S = 5.0
"""How long the broker may take for one beat."""
LAST_S = 1.0
"""How long an ending process waits for its last beat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a process says of its work now."""

    holds: tuple[str, ...] = ()
    positions: Mapping[str, int] = field(default_factory=dict)
    work: int = 0
    is_behind: bool = False
    """Whether there is work that it should do; it waits while `work` does not grow."""
    trouble: str | None = None
    waits: tuple[str, float] | None = None
    """For a process of several parts: the one that has waited longest without moving, and for how many seconds."""
    standing: str | None = None
    """Why it takes no work although it could, such as a pause; None while it takes what comes."""


def advance(last: Heartbeat, report: Report, *, now_ms: int, is_last: bool = False) -> Heartbeat:
    """Return the next beat. Work that is there and does not move is waiting since the beat that first saw it so."""
    has_moved, waiting_since_ms = report.work != last.work, None
    if report.waits is not None:
        waiting_since_ms = now_ms - round(report.waits[1] * 1000)
    elif report.is_behind and not has_moved:
        waiting_since_ms = now_ms if last.waiting_since_ms is None else last.waiting_since_ms
    return replace(
        last,
        number=last.number + 1,
        beat_at_ms=now_ms,
        is_last=is_last,
        holds=report.holds,
        positions=report.positions,
        work=report.work,
        last_work_ms=now_ms if has_moved else last.last_work_ms,
        waiting_since_ms=waiting_since_ms,
        waiting_at=None if report.waits is None else report.waits[0],
        trouble=None if report.trouble is None else report.trouble[:MOST_TROUBLE],
        standing=None if report.standing is None else report.standing[:MOST_TROUBLE],
    )


@dataclass(slots=True)
class Heart:
    """One process's heartbeat and metrics; nothing happens before `beating`."""

    kafka: KafkaConnection
    namespace: str
    kind: str
    version: str
    interval_s: float = 5.0
    folder: Path | None = None
    """Whose disk is watched."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = None
    metrics_token: str | None = None
    clock_ms: Callable[[], int] = wall_clock_ms
    has_beaten: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the broker has taken a beat."""
    _beat: Heartbeat | None = None
    _ended_by: str | None = None
    """The error that ends the process; then its silence is a death, and its last beat says why."""

    @property
    def process(self) -> str | None:
        """The name under which it beats; None before it does."""
        return None if self._beat is None else self._beat.process

    @asynccontextmanager
    async def beating(
        self,
        report: Callable[[], Report],
        *,
        live: Callable[[], str | None] = lambda: None,
        own_metrics: Callable[[], str] = lambda: "",
    ) -> AsyncIterator[None]:
        """Beat, and serve the metrics, while the body runs; `live` says what is wrong with the process, if anything.

        `own_metrics` are samples in Prometheus' text that the process keeps itself. Raises ConfigurationError if the
        port cannot be opened.
        """
        self._beat, server = self._first(), None
        if self.metrics_port is not None:
            server = await self._serve(live, own_metrics)
        beating = start_task(self._beat_for_ever(report), "heartbeat")
        try:
            yield
        except Exception as error:
            self._ended_by = f"it ended: {error}"
            raise
        finally:
            beating.cancel()
            await asyncio.wait([beating])
            if server is not None:
                await server.stop()

    async def _serve(self, live: Callable[[], str | None], own_metrics: Callable[[], str]) -> "MetricsServer":
        from rollbus.runtime import metrics
        from rollbus.runtime.health.server import MetricsServer

        metrics.describe_build(self.kind, self.version)
        host = self.metrics_host
        server = MetricsServer(
            host,
            self.metrics_port or 0,
            metrics=lambda: metrics.render(self.kind) + own_metrics(),
            live=live,
            token=self.metrics_token,
        )
        port = await server.start()
        logger.info("metrics at http://%s:%d/metrics", host, port)
        self._beat = replace(self._first(), metrics_url=f"http://{host}:{port}/metrics")
        return server

    def _first(self) -> Heartbeat:
        now_ms, host, pid = self.clock_ms(), socket.gethostname(), os.getpid()
        return Heartbeat(
            process=f"{self.kind}@{host}:{pid}-{now_ms:x}",
            kind=self.kind,
            host=host,
            pid=pid,
            version=self.version,
            number=0,
            interval_ms=round(self.interval_s * 1000),
            started_at_ms=now_ms,
            beat_at_ms=now_ms,
        )

    async def _beat_for_ever(self, report: Callable[[], Report]) -> None:
        is_warned = False
        while True:
            try:
                await self._require_topic()
                async with running(
                    self.kafka, new_producer(self.kafka, linger_ms=0), what="writing heartbeats"
                ) as producer:
                    is_warned = False
                    await self._beat_through(producer, report)
            except Exception as error:  # whatever it is, the next beat is tried
                level = logging.DEBUG if is_warned else logging.WARNING
                logger.log(level, "no heartbeat can be written, and this process looks dead: %s", error)
                is_warned = True
            await asyncio.sleep(RETRY_S)

    async def _beat_through(self, producer: object, report: Callable[[], Report]) -> None:
        try:
            while True:
                await asyncio.wait_for(self._send(producer, report), TAKEN_S)
                await asyncio.sleep(self.interval_s)
        except asyncio.CancelledError:
            with suppress(Exception):
                await asyncio.wait_for(self._send(producer, report, is_end=True), LAST_S)
            raise

    async def _send(self, producer: object, report: Callable[[], Report], *, is_end: bool = False) -> None:
        assert self._beat is not None
        is_last = is_end and self._ended_by is None
        beat = advance(self._beat, report(), now_ms=self.clock_ms(), is_last=is_last)
        if is_end and self._ended_by is not None:
            beat = replace(beat, trouble=self._ended_by[:MOST_TROUBLE])
        if self.folder is not None and (usage := disk_usage(self.folder)) is not None:
            beat = replace(beat, disk_free_bytes=usage.free, disk_total_bytes=usage.total)
        self._beat = beat
        topic = HEARTBEATS.full_name(self.namespace)
        await producer.send_and_wait(topic, encode(beat), beat.process.encode())  # type: ignore[attr-defined]
        self.has_beaten.set()

    async def _require_topic(self) -> None:
        """Raise ConfigurationError without the topic: the client would look for it many times a second."""
        async with running(self.kafka, new_admin(self.kafka), what="writing heartbeats") as admin:
            topic = HEARTBEATS.full_name(self.namespace)
            if topic not in await count_partitions(admin, [topic]):
                raise ConfigurationError(f"there is no topic {topic}; `rollbus topics create` makes it")


@asynccontextmanager
async def beating(
    heart: Heart | None,
    report: Callable[[], Report],
    *,
    live: Callable[[], str | None] = lambda: None,
    own_metrics: Callable[[], str] = lambda: "",
) -> AsyncIterator[None]:
    """Beat while the body runs; without a heart, as in a program that embeds the process, only run it."""
    if heart is None:
        yield
        return
    async with heart.beating(report, live=live, own_metrics=own_metrics):
        yield
