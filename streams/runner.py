"""One input partition: batches in, each whole in one Kafka transaction, exactly once.

The order that makes it safe:
  open    fence who may have a transaction open on the partition, which settles it, and claim it; then read the
          committed offset, then restore the state and check that both are of the same transaction, then seek there.
  batch   step; outputs, changelog and offset go into the next transaction of the session that the stage's partitions
          share; wait until it is committed.
  error   throw away state, and session if it is the transaction's, wait, open again: nothing is retried in place.
A batch is taken only where it continues the position, so lost, stale or doubled deliveries heal themselves.
Ticks of which nothing follows wait a while for a transaction that has more to say; if the worker dies, they are read
again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from aiokafka.errors import CommitFailedError, KafkaError

from rollbus.schemas.cancelling import is_being_cancelled
from rollbus.schemas.errors import (
    ConfigurationError,
    DataLossError,
    RollbusError,
    RunStoppedError,
    UnavailableError,
    UndecodableError,
)
from rollbus.schemas.topics import topic_of
from rollbus.streams import changelog_kafka, claims, names
from rollbus.streams.batch import Batch, Partition
from rollbus.streams.claims import Committed
from rollbus.streams.metrics import PartitionMetrics
from rollbus.streams.output_kafka import Row, partition_of
from rollbus.streams.processing import Encoded, Processed, StagePartition
from rollbus.streams.settings import StreamSettings
from rollbus.streams.stage import EffectsStage, PureAsEffects
from rollbus.streams.topics import partitions_of
from rollbus.streams.transaction import FENCED, Session, Sessions

logger = logging.getLogger(__name__)

BATCHES_AHEAD = 3
"""Fetched batches that wait for their transaction before the partition is paused: a bound in bytes."""
FULL_RECORDS, FULL_BYTES = 2_000, 1_048_576
"""A batch of this size does not wait for more."""
MOST_RECORDS = 2_500
"""Records of one transaction: what an open transaction holds back must not wait for long."""
QUIET_S = 10.0
"""How long ticks of which nothing follows may go without a transaction: so much an idle stage reads again."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
CLOSE_S = 2.0
"""How long a closing runner waits for its running transaction."""


class Host(Protocol):
    """What a runner needs of whoever fetches for it."""

    async def committed(self, partition: Partition) -> Committed | None:
        """Return the group's committed offset and whose it is, asked of the broker now."""
        ...

    async def claim(self, partition: Partition, claimed: Committed) -> None:
        """Commit a claim; raises CommitFailedError if the partition was assigned anew since."""
        ...

    async def require_member(self) -> None:
        """Raise CommitFailedError if the broker has assigned the group's partitions anew since."""
        ...

    async def bounds(self, partition: Partition) -> tuple[int, int]:
        """Return the first offset that still exists and the one after the last."""
        ...

    async def seek(self, partition: Partition, offset: int) -> None:
        """Fetch from this offset on; batches handed over from now on start there."""
        ...

    def pause(self, partition: Partition) -> None:
        """Hand over nothing more of this partition for now."""
        ...

    def resume(self, partition: Partition) -> None:
        """Hand over batches of this partition."""
        ...


class Runner:
    """Owns one input partition of one stage while it is assigned to this process."""

    def __init__(
        self,
        stage: Any,
        partition: int,
        *,
        settings: StreamSettings,
        sessions: Sessions,
        host: Host,
        on_fatal: Callable[[BaseException], None],
        app_version: str = "",
    ) -> None:
        self._stage: EffectsStage[Any, Any] = stage if hasattr(stage, "answer") else PureAsEffects(stage)
        pure = isinstance(self._stage, PureAsEffects)
        self._most_records = MOST_RECORDS if pure else settings.effects_batch_records
        self._settings, self._sessions, self._host, self._on_fatal = settings, sessions, host, on_fatal
        self._app_version = app_version
        namespace = settings.namespace
        self.partition = Partition(stage.input.full_name(namespace), partition)
        self._group = names.group_id(namespace, stage.name)
        self._id = f"{stage.name}[{partition}]"
        self._changelog = names.changelog_topic(namespace, stage.name)
        self.metrics = PartitionMetrics(stage.name, partition)
        self._queue: deque[Batch] = deque()
        self._arrived = asyncio.Event()
        self._ready = False
        self.knows_its_place = False
        """Whether `metrics.position` says how far the partition has come, which it does before it is ready."""
        self._closed = False
        self._writing = False
        self._paused = False
        self._position = 0
        """Up to where the state has come; what is committed may lie some quiet ticks behind."""
        self._committed_s = 0.0
        """When the last transaction was committed, by the process' own clock."""
        self._pause_s = FIRST_PAUSE_S
        self._failures: tuple[str, int, int] = ("", -1, 0)
        """Error, position and how often in a row."""
        self._task: asyncio.Task[None] | None = None
        self._session: Session | None = None
        self._work: StagePartition | None = None

    @property
    def ready(self) -> bool:
        """Whether the partition is open: batches are wanted."""
        return self._ready

    @property
    def waiting(self) -> bool:
        """Whether there is something to do that is not done: an opening, a batch."""
        return not self._ready or self._writing or bool(self._queue)

    @property
    def place(self) -> str:
        """How far it has come: it moves as long as the work goes on, be it on one batch or on its state."""
        activity = self._work.activity if self._work is not None else 0
        return f"{self.metrics.position} (after {activity} rows or answers)" if activity else f"{self.metrics.position}"

    def start(self) -> None:
        """Open the partition in a task of its own; returns at once."""
        self._task = asyncio.create_task(self._main(), name=f"runner {self._id}")

    def offer(self, batch: Batch) -> None:
        """Take a batch for later; never waits. What is not wanted is dropped and fetched again."""
        if not self._ready:
            return
        self._queue.append(batch)
        self._arrived.set()
        if len(self._queue) >= BATCHES_AHEAD and not self._paused:
            self._paused = True
            self._host.pause(self.partition)

    async def close(self) -> None:
        """Let the running transaction end, briefly; then stop. Nothing is lost if it does not end.

        Its host hears nothing of it afterwards: the partition may have a new runner before its task has ended.
        """
        self._ready, self._closed = False, True
        task = self._task
        if task is None:
            return
        self._host.pause(self.partition)
        if self._writing:
            await asyncio.wait([task], timeout=CLOSE_S)
        task.cancel()
        await asyncio.wait([task], timeout=CLOSE_S)

    async def _main(self) -> None:
        try:
            while True:
                try:
                    await self._open()
                    while self._ready:
                        await self._take(await self._next())
                    return
                except ConfigurationError as error:
                    self._on_fatal(error)
                    return
                except (*FENCED, CommitFailedError) as error:
                    # A newer owner, or our own transaction timed out: let the group say which, then open again.
                    logger.warning("fenced id=%s position=%d error=%s", self._id, self._position, type(error).__name__)
                    wait = self._settings.session_timeout_s
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                        raise
                    if self._is_hopeless(error):
                        self._on_fatal(self._hopeless(error))
                        return
                    wait, self._pause_s = self._pause_s, min(self._pause_s * 2, LONGEST_PAUSE_S)
                    logger.warning("transaction failed id=%s position=%d", self._id, self._position, exc_info=error)
                self.metrics.failures += 1
                self._discard()
                await asyncio.sleep(wait)
        finally:
            self._discard()

    async def _open(self) -> None:
        started = time.monotonic()
        self._require_known_partition()
        self._session = await self._sessions.get()
        own = self._session.end_of(self.partition)
        found = await self._take_over(self._session) if own is None else Committed(own, self._session.id)
        if found is not None:
            self.metrics.position, self.knows_its_place = found.offset, True
        self._work = StagePartition(self._stage, self.partition, app_version=self._app_version)
        described, rows = await changelog_kafka.restore(
            self._settings, self._changelog, self.partition.partition, self._work.restore
        )
        if unfinished := self._work.unfinished():
            raise DataLossError(
                f"{self._changelog}[{self.partition.partition}] has not all parts of row {unfinished[0]!r} and "
                f"{len(unfinished) - 1} others; {changelog_kafka.REMEDY}"
            )
        if own is not None and described != own:
            raise UnavailableError(f"{self._changelog} is readable up to position {described} only, not yet to {own}")
        if found is None and described is not None:
            # The broker forgets a group's offsets a week after its last member; the changelog does not.
            logger.warning("group %s has no offset, going on from the changelog's %d", self._group, described)
        committed = changelog_kafka.start_position(
            described, found, topic=self._changelog, partition=self.partition.partition, group=self._group
        )
        position = await self._start_position(committed)
        self._queue.clear()
        self._position = self.metrics.position = position
        self.knows_its_place = True
        await self._host.seek(self.partition, position)
        self._ready = True
        self._resume()
        self.metrics.restored_rows, self.metrics.open_s = rows, time.monotonic() - started
        logger.info("open id=%s position=%d rows=%d s=%.2f", self._id, position, rows, self.metrics.open_s)

    async def _take_over(self, session: Session) -> Committed | None:
        """Fence the last owner, claim the partition, and return what was committed; raises CommitFailedError.

        Fencing also waits until what the last owner had committed can be read. Each session claims anew, though the id
        stays: an heir may have fenced the one before it and not yet have claimed the partition.
        """
        fenced = {"", session.id}
        while (found := await self._host.committed(self.partition)) is not None and found.owner not in fenced:
            await self._host.require_member()  # a late one must not fence those that came after it
            await session.fence(found.owner)
            fenced.add(found.owner)
        first, _ = await self._host.bounds(self.partition)
        await self._host.claim(self.partition, claims.claim(found, session.id, first=first))
        return found

    def _require_known_partition(self) -> None:
        """Refuse a partition that was added since: it has no changelog, and keys now go elsewhere than before."""
        count = partitions_of(self._stage.input, self._settings)
        if self.partition.partition >= count:
            raise ConfigurationError(
                f"{self.partition.topic} was given more than its {count} partitions: keys would move; "
                "see `rollbus topics check`"
            )

    async def _start_position(self, committed: int | None) -> int:
        """Return where to go on; raises DataLossError where the records there no longer exist."""
        first, end = await self._host.bounds(self.partition)
        where = f"{self.partition.topic}[{self.partition.partition}]"
        if committed is None:
            if first > 0:
                logger.warning("group %s starts %s at %d; older records are gone", self._group, where, first)
            return first
        if first > committed:
            raise DataLossError(
                f"{where}: records {committed} … {first - 1} were deleted by retention before group {self._group} "
                f"read them; raise `retention_hours`, and go on without them by `rollbus worker accept-loss "
                f"{self._stage.name}`"
            )
        if end < committed:
            raise DataLossError(
                f"{where} ends at {end}, but group {self._group} has committed {committed}: the topic was truncated "
                "or made anew; use a new namespace, or delete the group's offsets and the changelog"
            )
        return committed

    async def _next(self) -> Batch:
        """Return the batch that continues the position, joined with those that wait behind it."""
        assert self._session is not None
        batch = await self._first()
        with self._session.preparing():
            batch = await self._joined(batch)
        if self._paused and len(self._queue) < BATCHES_AHEAD:
            self._resume()
        return batch

    async def _joined(self, batch: Batch) -> Batch:
        """Linger for what continues a batch, unless it is full."""
        deadline = time.monotonic() + self._settings.linger_ms / 1000
        while not _is_full(batch):
            if not self._queue:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._arrived.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), remaining)
                continue
            if self._queue[0].start != batch.end:
                break
            batch = batch.joined(self._queue.popleft())
        return batch

    async def _first(self) -> Batch:
        while True:
            while not self._queue:
                if self._paused:  # for batches that it had had already: none of them has brought it on
                    self._resume()
                self._arrived.clear()
                await self._arrived.wait()
            batch = self._queue.popleft()
            if batch.start is None or batch.start > self._position:
                self._queue.clear()
                await self._start_position(self._position)
                await self._host.seek(self.partition, self._position)
                self._resume()
            elif batch.end > self._position:
                return batch if batch.start == self._position else batch.after(self._position)

    def _resume(self) -> None:
        self._paused = False
        self._host.resume(self.partition)

    async def _take(self, batch: Batch) -> None:
        for part in batch.slices(self._most_records):
            if not self._ready:
                return
            await self._run(part)

    async def _run(self, batch: Batch) -> None:
        """Write what one batch comes to; where only time has passed, leave it to a later one."""
        assert self._session is not None
        assert self._work is not None
        started = time.monotonic()
        hold = started < self._committed_s + QUIET_S
        with self._session.preparing():
            processed = await self._work.process(batch.records, hold_quiet=hold)
            quiet = hold and processed.quiet
            rows = [] if quiet else await self._rows(processed, batch.end)
        if quiet:
            self._position = batch.end
            self.metrics.passed(batch)
            return
        stepped = time.monotonic()
        self._writing = True
        try:
            await self._session.commit(self.partition, batch.end, rows)
        finally:
            self._writing = False
        self._position, self._pause_s, self._committed_s = batch.end, FIRST_PAUSE_S, time.monotonic()
        self.metrics.committed(batch, processed, step_s=stepped - started, commit_s=self._committed_s - stepped)

    async def _rows(self, processed: Processed, end: int) -> list[Row]:
        rows = [Row(self._changelog, self.partition.partition, *row) for row in processed.changelog]
        rows.append(Row(self._changelog, self.partition.partition, *changelog_kafka.position_row(end)))
        rows.extend([await self._row(output) for output in processed.outputs])
        return rows

    async def _row(self, output: Encoded) -> Row:
        topic = self._settings.namespace + output.topic
        assert self._session is not None
        count = await self._session.partition_count(topic)
        expected = 1 if topic_of(output.topic).partitions == "one" else self._settings.event_partitions
        if count != expected:
            raise ConfigurationError(
                f"topic {topic} has {count} partitions, not {expected}; keys would move: see `rollbus topics check`"
            )
        return Row(topic, partition_of(output.key, count) if output.key else 0, output.key, output.value)

    def _discard(self) -> None:
        self._ready = False
        if not self._closed:
            self._host.pause(self.partition)
        self._queue.clear()
        self._work = self._session = None

    def _is_hopeless(self, error: BaseException) -> bool:
        """Say whether the same error came too often at the same position; trouble that passes never counts.

        Even state that does not fit its offset is looked at again: a worker that was frozen while it opened may
        have read the two on different sides of its successor's transaction.
        """
        passes = isinstance(error, KafkaError | RollbusError) and error.retriable
        if passes or isinstance(error, TimeoutError | OSError):
            return False
        if isinstance(error, UndecodableError) and self._work is not None and not self._ready:
            return True  # the changelog was written by a newer release
        described, position, times = self._failures
        same = described == repr(error) and position == self._position
        self._failures = (repr(error), self._position, times + 1 if same else 1)
        return self._failures[2] >= self._settings.equal_failures

    def _hopeless(self, error: BaseException) -> RollbusError:
        if isinstance(error, RollbusError):
            return error
        stopped = RunStoppedError(
            f"stage {self._stage.name} fails on {self.partition.topic}[{self.partition.partition}] from offset "
            f"{self._position} on, the same way each time: {error!r}"
        )
        stopped.__cause__ = error
        return stopped


def _is_full(batch: Batch) -> bool:
    if len(batch.records) >= FULL_RECORDS:
        return True
    return sum(len(record.value or b"") for record in batch.records) >= FULL_BYTES
