"""One stage hosted by Faust: membership and fetching there, one runner per assigned partition here.

Each stage is a Faust app of its own, several in one event loop: a stage of a run must have its own position on
a topic that another run reads too, its own backpressure, and may move to another process alone. Its one agent
only passes batches on, so it has nothing to raise.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, cast

from faust.types import TP

from rollbus.streams import names
from rollbus.streams.batch import Partition
from rollbus.streams.settings import StreamSettings
from rollbus.streams.transaction import Runner
from rollbus.streams.transport import BatchApp, BatchThread

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
        app_version: str = "",
    ) -> None:
        self.stage, self.settings = stage, settings
        self.runners: dict[Partition, Runner] = {}
        self._on_fatal, self._on_partitions, self._app_version = on_fatal, on_partitions, app_version
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

    @property
    def crashed(self) -> BaseException | None:
        """What ended Faust's part of the work, if anything did."""
        return self.app.crash_reason if self.app.crashed else None

    def _is_open(self, tp: TP) -> bool:
        runner = self.runners.get(Partition(*tp))
        return runner is not None and runner.ready

    async def _pass_on(self, stream: Any) -> None:
        async for batch in stream:
            runner = self.runners.get(batch.partition)
            if runner is not None:
                runner.offer(batch)

    async def _revoked(self, app: Any, revoked: Iterable[TP], **_: Any) -> None:
        await self._close_all()

    async def _assigned(self, app: Any, assigned: Iterable[TP], **_: Any) -> None:
        """Only start the opening: the group's heartbeats begin after this returns."""
        await self._close_all()
        for tp in sorted(assigned):
            self.runners[Partition(*tp)] = Runner(
                self.stage,
                tp.partition,
                settings=self.settings,
                host=FaustHost(self.app),
                on_fatal=self._on_fatal,
                app_version=self._app_version,
            )
        for runner in self.runners.values():
            runner.start()
        logger.info("assigned stage=%s partitions=%s", self.stage.name, [p.partition for p in self.runners])
        self._on_partitions(frozenset(p.partition for p in self.runners))

    async def _close_all(self) -> None:
        runners, self.runners = self.runners, {}
        await asyncio.gather(*(runner.close() for runner in runners.values()))
        self._on_partitions(frozenset())


class FaustHost:
    """The runner's port, on a Faust consumer."""

    def __init__(self, app: BatchApp) -> None:
        self._app = app

    @property
    def _thread(self) -> BatchThread:
        return self._app.batches.thread

    async def committed(self, partition: Partition) -> int | None:
        """Ask the broker for the group's offset."""
        return await self._thread.committed(partition)

    async def bounds(self, partition: Partition) -> tuple[int, int]:
        """Ask the broker for the first and the last offset."""
        return await self._thread.bounds(partition)

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
