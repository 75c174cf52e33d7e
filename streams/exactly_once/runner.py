"""One input partition: each batch goes whole into one Kafka transaction, exactly once.

The order that makes it safe:
  open    fence the owner that may have a transaction open on the partition, which settles it, and claim the
          partition; read the committed offset; restore the state and check that both come from the same transaction;
          seek there.
  batch   step; outputs, changelog and offset go into the next transaction of the session that the stage's partitions
          share; wait until it is committed.
  error   throw away the state, and the session if its transaction failed; wait; open again. Nothing is retried in
          place.
A batch is processed only if it continues the position, so lost, stale or repeated deliveries do no harm. Ticks without
effect wait a while for a transaction that has more to write; if the worker dies, they are read again.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiokafka.errors import CommitFailedError, KafkaError

from rollbus.runtime.cancelling import is_being_cancelled
from rollbus.runtime.kafka.writing import Row, partition_of
from rollbus.runtime.log_mark import LogMark
from rollbus.runtime.metrics import TRANSACTION_SECONDS
from rollbus.runtime.tasks import start_task
from rollbus.schemas.errors import (
    ConfigurationError,
    RollbusError,
    RunStoppedError,
    UnavailableError,
    UndecodableError,
)
from rollbus.schemas.topics import topic_of
from rollbus.streams.exactly_once import changelog
from rollbus.streams.exactly_once.batch import Batch, Partition
from rollbus.streams.exactly_once.claims import Committed
from rollbus.streams.exactly_once.metrics import PartitionMetrics
from rollbus.streams.exactly_once.partition_start import Beginning, Host, require_known_partition
from rollbus.streams.exactly_once.processing import Encoded, Processed, StagePartition
from rollbus.streams.exactly_once.rounds import header_of
from rollbus.streams.exactly_once.transaction import FENCED, ProducerSession, ProducerSessions
from rollbus.streams.kafka import names
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.state.stage import EffectsStage, PureAsEffects

logger = logging.getLogger(__name__)

BATCHES_AHEAD = 3
"""Fetched batches that wait for their transaction before the partition is paused; this bounds memory."""
FULL_RECORDS, FULL_BYTES = 2_000, 1_048_576
"""A batch of this size does not wait for more."""
MOST_RECORDS = 2_500
"""Records of one transaction: what an open transaction holds back must not wait for long."""
MOST_RECORDS_WITH_EFFECTS = 256
"""Of a stage that asks the outside world, which takes longer: what it has asked is asked again after a crash."""
QUIET_S = 30.0
"""How long ticks without effect may go without a transaction: an idle stage reads so much again after a restart."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
CLOSE_S = 2.0
"""How long a closing runner waits for its running transaction."""

OnTick = Callable[[str, int, int, bool], None]
"""Told a stage, its partition, the tick before which everything is committed, and whether there was work."""


class Runner:
    """Owns one input partition of one stage while it is assigned to this process."""

    def __init__(
        self,
        stage: Any,
        partition: int,
        *,
        settings: StreamSettings,
        sessions: ProducerSessions,
        host: Host,
        on_fatal: Callable[[BaseException], None],
        on_tick: OnTick = lambda *_: None,
        app_version: str = "",
    ) -> None:
        self._on_tick = on_tick
        self._stage: EffectsStage[Any, Any] = stage if hasattr(stage, "answer") else PureAsEffects(stage)
        pure = isinstance(self._stage, PureAsEffects)
        self._most_records = MOST_RECORDS if pure else MOST_RECORDS_WITH_EFFECTS
        self._settings, self._sessions, self._host, self._on_fatal = settings, sessions, host, on_fatal
        self._app_version = app_version
        namespace = settings.namespace
        self.partition = Partition(stage.input.full_name(namespace), partition)
        self._group = names.group_id(namespace, stage.name)
        self._beginning = Beginning(host, self.partition, self._group, stage.name, sessions.reading)
        self._id = f"{stage.name}[{partition}]"
        self._changelog = names.changelog_topic(namespace, stage.name)
        self.metrics = PartitionMetrics(stage.name, partition)
        self._queue: deque[Batch] = deque()
        self._arrived = asyncio.Event()
        self._ready = False
        self.is_position_known = False
        """Whether `metrics.position` is the partition's; this can be so already while its state is restored."""
        self._closed = False
        self._writing = False
        self._paused = False
        self.trouble: str | None = None
        """What its last failed transaction or opening failed by; None again once a transaction is committed."""
        self._mark: LogMark | None = None
        """How the position knows its log."""
        self._position = 0
        """Position of the state; the committed one may be some ticks without effect behind."""
        self._committed_s = 0.0
        """When the last transaction was committed, by the clock of this process."""
        self._retry_wait_s = FIRST_PAUSE_S
        self._failures: tuple[str, int, int] = ("", -1, 0)
        """Error, position and how often in a row."""
        self._task: asyncio.Task[None] | None = None
        self._session: ProducerSession | None = None
        self._stage_partition: StagePartition | None = None

    @property
    def ready(self) -> bool:
        """Whether the partition is open and takes batches."""
        return self._ready

    @property
    def has_work(self) -> bool:
        """Whether the partition is being opened, a batch waits, or a transaction is being committed."""
        return not self._ready or self._writing or bool(self._queue)

    @property
    def progress_mark(self) -> str:
        """Position, and within it the rows restored or answers received: it changes as long as the work goes on."""
        activity = self._stage_partition.activity if self._stage_partition is not None else 0
        if not self._ready:
            activity += self._sessions.reading.records
        return f"{self.metrics.position} (after {activity} rows or answers)" if activity else f"{self.metrics.position}"

    def start(self) -> None:
        """Open the partition in a task of its own; returns at once."""
        self._task = start_task(self._main(), f"runner {self._id}", on_end=self._on_fatal, endless=False)

    def enqueue(self, batch: Batch) -> None:
        """Queue a batch; never waits. While the partition is not open, batches are dropped and fetched again later."""
        if not self._ready:
            return
        self._queue.append(batch)
        self._arrived.set()
        if len(self._queue) >= BATCHES_AHEAD and not self._paused:
            self._paused = True
            self._host.pause(self.partition)

    async def close(self) -> None:
        """Wait a moment for the running transaction, then stop. Nothing is lost if it does not end.

        The runner does not call its host afterwards: the partition may have a new runner before its task has ended.
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
                        await self._run_slices(await self._next_batch())
                    return
                except ConfigurationError as error:
                    self._on_fatal(error)
                    return
                except (*FENCED, CommitFailedError) as error:
                    # A newer owner, or our own transaction timed out: the group decides which, then open again.
                    logger.warning("fenced id=%s position=%d error=%s", self._id, self._position, type(error).__name__)
                    wait = self._settings.session_timeout_s
                except (Exception, asyncio.CancelledError) as error:
                    if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                        raise
                    if self._count_failure(error):
                        self._on_fatal(self._stopping_error(error))
                        return
                    wait, self._retry_wait_s = self._retry_wait_s, min(self._retry_wait_s * 2, LONGEST_PAUSE_S)
                    self.trouble = f"{type(error).__name__}: {error}"
                    foreseen = isinstance(error, UnavailableError)
                    logger.warning(
                        "transaction failed id=%s position=%d error=%s",
                        self._id,
                        self._position,
                        self.trouble,
                        exc_info=None if foreseen else error,
                    )
                self.metrics.failures += 1
                self._discard()
                await asyncio.sleep(wait)
        finally:
            self._discard()

    async def _open(self) -> None:
        start_s = time.monotonic()
        require_known_partition(self._stage, self.partition, self._settings)
        self._session = await self._sessions.get()
        session_end = self._session.end_of(self.partition)
        group_offset = (
            await self._beginning.take_over(self._session)
            if session_end is None
            else Committed(session_end, self._session.id)
        )
        if group_offset is not None:
            self.metrics.position, self.is_position_known = group_offset.offset, True
        self._stage_partition = StagePartition(
            self._stage,
            self.partition,
            app_version=self._app_version,
            max_record_bytes=self._settings.kafka.max_record_bytes,
            signer_of=self._settings.signer_of(self._stage.input),
        )
        changelog_position, rows, mark = await changelog.restore(
            self._sessions.reading, self._changelog, self.partition.partition, self._stage_partition.restore
        )
        if session_end is not None and changelog_position != session_end:
            raise UnavailableError(
                f"{self._changelog} is readable up to position {changelog_position} only, not yet to {session_end}"
            )
        if group_offset is None and changelog_position is not None:
            # The broker forgets a group's offsets a week after its last member; the changelog does not.
            logger.warning(
                "group %s has no offset, continuing from the changelog's %d", self._group, changelog_position
            )
        committed = changelog.require_agreed_position(
            changelog_position,
            group_offset,
            topic=self._changelog,
            partition=self.partition.partition,
            group=self._group,
            stage=self._stage.name,
        )
        self._mark = await self._beginning.require_same_log(committed, mark)
        position = await self._beginning.require_records_exist(committed)
        self._queue.clear()
        self._position = self.metrics.position = position
        self.is_position_known = True
        await self._host.seek(self.partition, position)
        self._ready = True
        self._resume()
        self._on_tick(self.metrics.stage, self.partition.partition, self._stage_partition.last_tick, False)
        self.metrics.restored_rows, self.metrics.open_s = rows, time.monotonic() - start_s
        logger.info("open id=%s position=%d rows=%d s=%.2f", self._id, position, rows, self.metrics.open_s)

    async def _next_batch(self) -> Batch:
        """Return the batch that continues the position, joined with the batches that wait behind it."""
        assert self._session is not None
        batch = await self._first_batch()
        with self._session.preparing():
            batch = await self._join_waiting(batch)
        if self._paused and len(self._queue) < BATCHES_AHEAD:
            self._resume()
        return batch

    async def _join_waiting(self, batch: Batch) -> Batch:
        """Linger for batches that continue this one, unless it is full."""
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

    async def _first_batch(self) -> Batch:
        while True:
            while not self._queue:
                if self._paused:  # the batches that filled the queue were all old
                    self._resume()
                self._arrived.clear()
                await self._arrived.wait()
            batch = self._queue.popleft()
            if batch.start is None or batch.start > self._position:
                self._queue.clear()
                await self._beginning.require_records_exist(self._position)
                await self._host.seek(self.partition, self._position)
                self._resume()
            elif batch.end > self._position:
                return batch if batch.start == self._position else batch.after(self._position)

    def _resume(self) -> None:
        self._paused = False
        self._host.resume(self.partition)

    async def _run_slices(self, batch: Batch) -> None:
        for part in batch.slices(self._most_records):
            if not self._ready:
                return
            await self._run_batch(part)

    async def _run_batch(self, batch: Batch) -> None:
        """Write the results of one batch; if only time has passed, leave that to a later batch."""
        assert self._session is not None
        assert self._stage_partition is not None
        start_s = time.monotonic()
        hold = start_s < self._committed_s + QUIET_S
        with self._session.preparing():
            processed = await self._stage_partition.process(batch.records, hold_quiet=hold)
            quiet = hold and processed.quiet
            mark = self._mark.after(batch.records) if self._mark is not None else None
            rows = [] if quiet else await self._rows_of(processed, batch.end, mark)
        if quiet:
            self._position = batch.end
            self.metrics.passed(batch)
            self._pass_tick(processed)
            return
        stepped = time.monotonic()
        self._writing = True
        try:
            await self._session.commit(self.partition, batch.end, rows)
        finally:
            self._writing = False
        self._position, self._retry_wait_s, self._committed_s = batch.end, FIRST_PAUSE_S, time.monotonic()
        self._mark = mark
        self.trouble = None
        TRANSACTION_SECONDS.labels(self.metrics.stage).observe(self._committed_s - start_s)
        self.metrics.committed(batch, processed, step_s=stepped - start_s, commit_s=self._committed_s - stepped)
        self._pass_tick(processed)

    def _pass_tick(self, processed: Processed) -> None:
        """Report a tick that the partition has passed, or work on its way to the next one."""
        assert self._stage_partition is not None
        tick = self._stage_partition.last_tick if processed.tick is None else processed.tick
        self._on_tick(self.metrics.stage, self.partition.partition, tick, not processed.quiet)

    async def _rows_of(self, processed: Processed, end: int, mark: LogMark | None) -> list[Row]:
        rows = [Row(self._changelog, self.partition.partition, *row) for row in processed.changelog]
        rows.append(Row(self._changelog, self.partition.partition, *changelog.position_row(end, mark)))
        rows.extend([await self._output_row(output) for output in processed.outputs])
        return rows

    async def _output_row(self, output: Encoded) -> Row:
        topic = self._settings.namespace + output.topic
        assert self._session is not None
        count = await self._session.partition_count(topic)
        expected_count = 1 if topic_of(output.topic).partitions == "one" else self._settings.event_partitions
        if count != expected_count:
            raise ConfigurationError(
                f"topic {topic} has {count} partitions, not {expected_count}; "
                "keys would move: see `rollbus topics check`"
            )
        headers = header_of(output.topic, output.round)
        if output.signer:
            headers = (*headers, *self._settings.signing.sign(output.signer, topic, output.key, output.value))
        return Row(topic, partition_of(output.key, count) if output.key else 0, output.key, output.value, headers)

    def _discard(self) -> None:
        self._ready = False
        if not self._closed:
            self._host.pause(self.partition)
        self._queue.clear()
        self._stage_partition = self._session = None

    def _count_failure(self, error: BaseException) -> bool:
        """Count an error; return whether it came too often at the same position.

        Errors that pass by themselves never count.
        Even a state that does not match its offset is restored again: a worker that was frozen while it opened may have
        read one before and the other after its successor's transaction.
        """
        passes = isinstance(error, KafkaError | RollbusError) and error.retriable
        if passes or isinstance(error, TimeoutError | OSError):
            return False
        if isinstance(error, UndecodableError) and self._stage_partition is not None and not self._ready:
            return True  # the changelog was written by a newer release
        previous, position, times = self._failures
        same = previous == repr(error) and position == self._position
        self._failures = (repr(error), self._position, times + 1 if same else 1)
        return self._failures[2] >= self._settings.equal_failures

    def _stopping_error(self, error: BaseException) -> RollbusError:
        if isinstance(error, RollbusError):
            return error
        stop = RunStoppedError(
            f"stage {self._stage.name} fails on {self.partition.topic}[{self.partition.partition}] from offset "
            f"{self._position} on, the same way each time: {error!r}"
        )
        stop.__cause__ = error
        return stop


def _is_full(batch: Batch) -> bool:
    if len(batch.records) >= FULL_RECORDS:
        return True
    return sum(len(record.value or b"") for record in batch.records) >= FULL_BYTES
