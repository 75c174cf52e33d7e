"""One stage hosted by Faust: membership and fetching there, one runner per assigned partition here.

Each stage is a Faust app of its own, and several share one event loop. A stage of a run needs its own position on a
topic that another run reads too, and its own backpressure, and may move to another process alone. The one agent of an
app only passes batches on, so it raises nothing.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable
from typing import Any, cast

from aiokafka import TopicPartition
from faust.types import TP

from rollbus.runtime.kafka.log_id import read_log_ids
from rollbus.runtime.kafka.reading import read_bounds
from rollbus.runtime.log_mark import LogId
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.claims import Committed
from rollbus.streams.exactly_once.claims_on_broker import claim_offset, committed_offset, require_generation
from rollbus.streams.exactly_once.runner import OnTick, Runner
from rollbus.streams.exactly_once.transaction import ProducerSessions
from rollbus.streams.kafka import names
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.worker.transport import PATIENT_POLL_S, POLL_S, BatchApp, BatchThread

logger = logging.getLogger(__name__)


class StageApp:
    """Runs one stage on the partitions that its group gives to this process."""

    def __init__(
        self,
        stage: Any,
        settings: StreamSettings,
        *,
        on_fatal: Callable[[BaseException], None],
        on_partitions: Callable[[frozenset[int]], None] = lambda partitions: None,
        on_tick: OnTick = lambda *_: None,
        app_version: str = "",
        process_id: str | None = None,
    ) -> None:
        """Nothing connects before `start`; `process_id` names this process, by default at random."""
        self.stage, self.settings = stage, settings
        self._process_id = process_id or uuid.uuid4().hex
        self._sessions: ProducerSessions | None = None
        self.runners: dict[Partition, Runner] = {}
        self._on_fatal, self._on_partitions, self._app_version = on_fatal, on_partitions, app_version
        self._on_tick = on_tick
        self.app = BatchApp(names.group_id(settings.namespace, stage.name), settings)
        topic = self.app.batch_topic(stage.input.full_name(settings.namespace))
        self.app.agent(topic, name=f"{stage.name}.batches")(self._pass_on)
        self.app.on_partitions_revoked.connect(cast(Any, self._revoked))
        self.app.on_partitions_assigned.connect(cast(Any, self._assigned))

    async def start(self) -> None:
        """Join the group; partitions open in the background."""
        self.app.finalize()
        self.app.batches.is_open = self._is_open
        await self.app.start()

    async def stop(self) -> None:
        """Finish running transactions, leave the group, end."""
        await self._close_all()
        await self.app.stop()

    def set_patience(self, wait_ms: int | None) -> None:
        """Let the broker hold a fetch of this stage that finds nothing for so long; None for as long as is set."""
        batches = self.app.batches
        batches.poll_s = POLL_S if wait_ms is None else PATIENT_POLL_S
        configured_ms = self.settings.fetch_max_wait_ms
        batches.thread.set_patience(configured_ms if wait_ms is None else max(wait_ms, configured_ms))

    @property
    def crashed(self) -> BaseException | None:
        """The error that ended the Faust app, if one did."""
        return self.app.crash_reason if self.app.crashed else None

    def _is_open(self, tp: TP) -> bool:
        runner = self.runners.get(Partition(*tp))
        return runner is not None and runner.ready

    async def _pass_on(self, stream: Any) -> None:
        async for batch in stream:
            runner = self.runners.get(batch.partition)
            if runner is not None:
                runner.enqueue(batch)

    async def _revoked(self, app: Any, revoked: Iterable[TP], **_: Any) -> None:
        await self._close_all()

    async def _assigned(self, app: Any, assigned: Iterable[TP], **_: Any) -> None:
        """Only start to open the partitions: the group's heartbeats begin after this returns."""
        await self._close_all()
        generation = self.app.consumer_generation_id
        self._sessions = sessions = self._new_sessions(generation)
        for tp in sorted(assigned):
            self.runners[Partition(*tp)] = Runner(
                self.stage,
                tp.partition,
                settings=self.settings,
                sessions=sessions,
                host=FaustHost(self.app, generation),
                on_fatal=self._on_fatal,
                on_tick=self._on_tick,
                app_version=self._app_version,
            )
        for runner in self.runners.values():
            runner.start()
        logger.info("assigned stage=%s partitions=%s", self.stage.name, [p.partition for p in self.runners])
        self._on_partitions(frozenset(p.partition for p in self.runners))

    def _new_sessions(self, generation: int) -> ProducerSessions:
        """Return sessions under an id of this assignment alone: fencing it cannot hit a later one."""
        namespace, stage = self.settings.namespace, self.stage.name
        owner = names.transactional_id(namespace, stage, f"{self._process_id}.{generation}")
        return ProducerSessions(self.settings, names.group_id(namespace, stage), owner)

    async def _close_all(self) -> None:
        runners, self.runners = self.runners, {}
        await asyncio.gather(*(runner.close() for runner in runners.values()))
        sessions, self._sessions = self._sessions, None
        if sessions is not None:
            await sessions.close()
        self._on_partitions(frozenset())


class FaustHost:
    """The runner's port, on a Faust consumer, in one generation of its group."""

    def __init__(self, app: BatchApp, generation: int) -> None:
        self._app, self._generation = app, generation

    @property
    def _thread(self) -> BatchThread:
        return self._app.batches.thread

    async def committed(self, partition: Partition) -> Committed | None:
        """Ask the broker for the group's offset."""
        return await self._thread.call_with_consumer(committed_offset, partition)

    async def claim(self, partition: Partition, claimed: Committed) -> None:
        """Commit in the generation in which the partition was assigned."""
        await self._thread.call_with_consumer(claim_offset, partition, claimed, self._generation)

    async def require_member(self) -> None:
        """Send a heartbeat of that generation."""
        await self._thread.call_with_consumer(require_generation, self._generation)

    async def bounds(self, partition: Partition) -> tuple[int, int]:
        """Ask the broker for the first and the last offset."""
        place = TopicPartition(*partition)
        return (await self._thread.call_with_consumer(read_bounds, [place]))[place]

    async def log_id(self, partition: Partition) -> LogId:
        """Ask the broker for the ids of cluster and topic."""
        return (await self._thread.call_with_consumer(read_log_ids, [partition.topic]))[partition.topic]

    async def seek(self, partition: Partition, offset: int) -> None:
        """Seek in the fetch thread."""
        await self._thread.rewind(partition, offset)

    def pause(self, partition: Partition) -> None:
        """Take the partition out of the next fetch."""
        self._app.batches.pause_partitions([TP(*partition)])

    def resume(self, partition: Partition) -> None:
        """Put the partition into the next fetch, if it is still ours."""
        if TP(*partition) in self._app.batches.assignment():
            self._app.batches.resume_partitions([TP(*partition)])
