"""Faust's Kafka transport, changed in six places so that agents receive whole batches of committed records.

  reads        committed records only, with range assignment and our limits
  fetches      a partition's fetched records become one Batch, stamped with the positions before and after it,
               in the fetch thread: positions compared anywhere else would race with it
  seeks        never by itself: the runner knows the position, Faust would read it too early
  commits      never: offsets are part of the runner's transaction
  resumes      only partitions whose runner is open
  stops        also while the broker is away, without a word from a fetch that is cut off
The names in Faust that this relies on are pinned by tests/streams/worker/test_faust_names.py.
"""

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from typing import Any, ClassVar, TypeVar, cast

import faust
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError
from faust.app.base import BootStrategy
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.types.tuples import ConsumerMessage
from mode import Service

from rollbus.runtime.kafka.clients import new_consumer, stop_clients
from rollbus.runtime.kafka.fetch_wait import set_fetch_wait
from rollbus.streams.exactly_once.batch import Batch, Partition
from rollbus.streams.kafka.settings import StreamSettings

T = TypeVar("T")
POLL_S, PATIENT_POLL_S = 0.25, 6.0
"""How long one fetch waits, the second while nothing comes."""
FETCH_ROUTINE_MS = 10_000
"""How long aiokafka's fetching sleeps at most; whatever gives it work wakes it before."""
KEEPALIVE_S = 10.0
RECORDS_AT_ONCE = 2_000
"""Records of one hand-over, about as many as a transaction has: the rest of a fetch stays compressed."""
IDLE_S = 0.1
"""Pause while no partition is open."""
NEVER_MS = 24 * 24 * 3_600_000
"""After so long without a fetch aiokafka leaves the group and does not come back. A worker without a partition fetches
nothing, yet it must take over from others; the watchdog ends a worker that works too long on what it has.
"""


class BatchThread(driver.AIOKafkaConsumerThread):
    """The fetch thread: membership, heartbeats, fetching."""

    def __post_init__(self) -> None:
        """Remember the position up to which each partition was handed over."""
        super().__post_init__()
        self._handed: dict[TP, int] = {}

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        settings: StreamSettings = self.app.settings  # type: ignore[attr-defined]
        session_ms = int(settings.session_timeout_s * 1000)
        self._assignor = RangePartitionAssignor
        return new_consumer(
            settings.kafka,
            client_id=self.app.conf.broker_client_id,
            group_id=self.app.conf.id,
            partition_assignment_strategy=[RangePartitionAssignor],
            max_poll_records=RECORDS_AT_ONCE,
            fetch_max_wait_ms=settings.fetch_max_wait_ms,
            session_timeout_ms=session_ms,
            heartbeat_interval_ms=session_ms // 3,
            consumer_timeout_ms=FETCH_ROUTINE_MS,
            rebalance_timeout_ms=session_ms * 2,
            max_poll_interval_ms=NEVER_MS,
            metadata_max_age_ms=30_000,
        )

    async def on_thread_stop(self) -> None:
        """Stop the consumer as every other is stopped: while a broker is away, fetches that aiokafka cancels raise.

        Faust's own method, which is left out, lets that end the thread with a traceback, and the connections open.
        """
        await super(driver.AIOKafkaConsumerThread, self).on_thread_stop()
        await stop_clients(self._consumer)

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Forget the positions of the last assignment."""
        self._handed.clear()
        await super().on_partitions_assigned(assigned, generation_id)

    async def _fetch_records(
        self,
        consumer: AIOKafkaConsumer,
        active_partitions: set[TP],
        timeout: float | None = None,  # noqa: ASYNC109 - Faust's signature
        max_records: int | None = None,
    ) -> Mapping[TP, Any]:
        if not active_partitions:  # for aiokafka no partition means all
            await asyncio.sleep(IDLE_S)
            return {}
        active: Any = _Active(active_partitions)
        try:
            fetched = await super()._fetch_records(consumer, active, timeout=timeout, max_records=max_records)
        except NoOffsetForPartitionError:
            return {}  # from before the runner's first seek
        except OffsetOutOfRangeError as error:
            return {tp: [_lost_batch(Partition(*tp), offset)] for tp, offset in dict(error.args[0]).items()}
        batches = {}
        for tp, records in fetched.items():
            if tp not in consumer.assignment():
                continue
            end = await consumer.position(tp)
            batches[tp] = [Batch(Partition(*tp), self._handed.get(TP(*tp)), end, records)]
            self._handed[TP(*tp)] = end
        return batches

    async def _keepalive2(self) -> None:
        """Do nothing: the watchdog looks at positions."""

    @Service.task
    async def _thread_keepalive(self) -> None:
        async for _ in self.itertimer(KEEPALIVE_S, name="keepalive"):
            pass

    def set_patience(self, wait_ms: int) -> None:
        """Let the broker hold a fetch that finds nothing for so long, from the next fetch on; any thread may ask."""
        set_fetch_wait(self._consumer, wait_ms)

    async def rewind(self, partition: Partition, offset: int) -> None:
        """Fetch from an offset; the next batch begins there."""
        await self.call_thread(self._rewind, TP(*partition), offset)

    async def _rewind(self, tp: TP, offset: int) -> None:
        self._ensure_consumer().seek(TopicPartition(*tp), offset)
        self._handed[tp] = offset

    async def call_with_consumer(self, function: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Call a function with the consumer, in this thread."""
        return cast(T, await self.call_thread(function, self._ensure_consumer(), *arguments))


class _Active:
    """The partitions that a fetch may return: those that are active when records come, not when it began.

    It is never empty, since no partition means all.
    """

    def __init__(self, partitions: Container[TP]) -> None:
        self._partitions = partitions

    def __contains__(self, tp: object) -> bool:
        return tp in self._partitions


class BatchConsumer(driver.Consumer):
    """The main thread's side: hands batches to the agent."""

    _thread: BatchThread

    poll_s: float = POLL_S
    is_open: Callable[[TP], bool] = staticmethod(lambda tp: False)
    """Whether the partition's runner is open; set by the app."""

    def _new_consumer_thread(self) -> BatchThread:
        return BatchThread(self, loop=self.loop, beacon=self.beacon)

    async def perform_seek(self) -> None:
        """Do nothing: the runner seeks."""

    async def commit(self, topics: Any = None, start_new_transaction: bool = True) -> bool:
        """Do nothing: the runner commits."""
        return False

    @property
    def thread(self) -> BatchThread:
        """The fetch thread."""
        return self._thread

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Do nothing: the watchdog looks at positions."""

    def resume_partitions(self, tps: Iterable[TP]) -> None:
        """Resume what is open; the others follow when their runner is."""
        super().resume_partitions({TP(*tp) for tp in tps if self.is_open(TP(*tp))})

    async def _wait_next_records(self, timeout: float) -> tuple[Any, Any]:  # noqa: ASYNC109 - as above
        if not self.flow_active:
            resumed: Any = self.can_resume_flow
            await self.wait(resumed)
        active = self._get_active_partitions()
        return await self._getmany(active_partitions=active, timeout=timeout), active

    async def _drain_messages(self, fetcher: Any) -> None:
        while not (self._stopped.is_set() or fetcher._stopped.is_set()):
            try:
                batches, _ = await self._wait_next_records(self.poll_s)
            except self.consumer_stopped_errors:
                if self.app.should_stop:
                    return
                raise
            for tp, (batch,) in (batches or {}).items():
                if self.flow_active:
                    message = _message(TP(*tp), batch, self.app.consumer_generation_id)
                    await self.wait_first(self.callback(message), self.suspend_flow.wait())
            await asyncio.sleep(0)


class BatchTransport(driver.Transport):
    """Faust's transport with the consumer above."""

    Consumer: ClassVar[Any] = BatchConsumer


class BatchSchema(faust.Schema[Any, Any]):
    """Passes a batch through where Faust decodes single records."""

    def compile(self, app: Any, **kwargs: Any) -> Any:
        """Return the function that wraps a message as it is."""

        async def wrap(message: Any, *, propagate: bool = False) -> Any:
            return app.create_event(None, message.value, message.headers, message)

        return wrap


class _Monitor(faust.Monitor):
    """Counts nothing each second: the runners have metrics of their own."""

    @Service.task
    async def _sampler(self) -> None:
        await self.wait_until_stopped()


class _Boot(BootStrategy):
    enable_web = False
    enable_kafka_producer = False


class BatchApp(faust.App):
    """A Faust app whose agents receive batches; it produces nothing itself."""

    BootStrategy = _Boot

    def __init__(self, group: str, settings: StreamSettings) -> None:
        self.settings = settings
        super().__init__(
            group,
            broker="kafka://" + settings.kafka.bootstrap_servers.replace(",", ";"),
            broker_session_timeout=settings.session_timeout_s,
            broker_heartbeat_interval=settings.session_timeout_s / 3,
            broker_commit_interval=NEVER_MS / 1000,
            Monitor=_Monitor,
            autodiscover=False,
            web_enabled=False,
            topic_allow_declare=False,
            topic_disable_leader=True,
            table_standby_replicas=0,
            stream_wait_empty=False,
            stream_buffer_maxsize=64,
        )

    def _new_transport(self) -> BatchTransport:
        return BatchTransport(self.conf.broker_consumer, self)

    def _create_directories(self) -> None:
        """Create nothing: there are no tables."""

    @property
    def batches(self) -> BatchConsumer:
        """The consumer, with its own type."""
        return cast(BatchConsumer, self.consumer)

    def batch_topic(self, name: str) -> Any:
        """Return the topic from which an agent reads batches; nothing is acknowledged to Faust."""
        return self.topic(name, schema=BatchSchema(key_serializer="raw", value_serializer="raw"), acks=False)


def _lost_batch(partition: Partition, offset: int) -> Batch:
    """Return a batch that continues nothing, so that the runner checks its position."""
    return Batch(partition, None, offset, [])


def _message(tp: TP, batch: Batch, generation_id: int) -> ConsumerMessage:
    value: Any = batch
    return ConsumerMessage(
        tp.topic, tp.partition, batch.end, 0.0, 0, None, None, value, None, 0, 0, tp, generation_id=generation_id
    )
