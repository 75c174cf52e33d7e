"""Write ticks and changed configurations into every partition of every stage's input, in one transaction each.

What was written last stands in the ticker's own changelog, in the same transaction, so a successor goes on where
this one stopped. Of two tickers the newer fences the older, which stands back for a session and then looks again.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress

from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

from rollbus.schemas.cancelling import is_being_cancelled
from rollbus.schemas.chunks import is_chunk
from rollbus.schemas.codec import decode, encode, record_name
from rollbus.schemas.control import ConfigApplied, Tick
from rollbus.schemas.errors import RecordError
from rollbus.schemas.starting_kafka import start_whole
from rollbus.schemas.topics import RUN_LOG, Topic
from rollbus.streams import names
from rollbus.streams.changelog_kafka import read_partition
from rollbus.streams.output_kafka import Row, new_producer, stop_producer, write
from rollbus.streams.settings import StreamSettings
from rollbus.streams.ticker import config_changes, inputs_in_use, next_tick
from rollbus.streams.topics import partitions_of

logger = logging.getLogger(__name__)

_TICK = b"tick"
_CONFIG = b"config\x1f"
RETRY_S = 1.0
CLOSE_S = 2.0
LOOKED_AT = 2_000
"""Newest offsets of the run log among which the last tick is looked for: where nobody ticks, no group comes either."""


def wall_clock_ms() -> int:
    """Return the one reading of the wall clock that the streams take."""
    return int(time.time() * 1000)


class Ticker:
    """The ticker of a namespace, while this process owns the partition that it goes with."""

    def __init__(
        self,
        settings: StreamSettings,
        configs: Sequence[ConfigApplied] = (),
        *,
        clock: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._settings, self._configs, self._clock = settings, configs, clock
        self._changelog = names.changelog_topic(settings.namespace, names.TICKER)
        self._kept = RUN_LOG.full_name(settings.namespace)
        self._inputs = inputs_in_use(configs)
        self._wanted = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.last: Tick | None = None
        self._applied: dict[str, str] = {}
        list(config_changes(configs, {}))  # a wrong one is refused here

    @property
    def wanted(self) -> bool:
        """Whether it is this process that should tick."""
        return self._wanted.is_set()

    def want(self, wanted: bool) -> None:
        """Tick from now on, or stand back after the tick that is being written."""
        if not wanted:
            self._wanted.clear()
            return
        self._wanted.set()
        if self._task is None:
            self._task = asyncio.create_task(self._main(), name="ticker")

    async def stop(self) -> None:
        """Tick no more; a tick that is being written may end, else it holds back the readers of every input."""
        task, self._task = self._task, None
        if task is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._writing.acquire(), CLOSE_S)
            task.cancel()
            await asyncio.wait([task])

    async def _main(self) -> None:
        while True:
            await self._wanted.wait()
            pause = RETRY_S
            producer = new_producer(self._settings, names.ticker_id(self._settings.namespace))
            try:
                await start_whole(producer.start)
                await self._restore()
                await self._tick_while_wanted(producer)
            except (ProducerFenced, InvalidProducerEpoch):
                logger.warning("another ticker took over after tick=%s", self.last and self.last.number)
                pause = self._settings.session_timeout_s
            except (KafkaError, TimeoutError, OSError) as error:
                logger.warning("ticking failed, beginning anew in %.0f s error=%r", pause, error)
            except (Exception, asyncio.CancelledError) as error:  # a clock must not stop for what nobody thought of
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
                logger.error("ticking failed, beginning anew in %.0f s", pause, exc_info=error)
            finally:
                await stop_producer(producer)
            await asyncio.sleep(pause)

    async def _restore(self) -> None:
        self.last, self._applied = None, {}
        async with aclosing(read_partition(self._settings, self._changelog, 0)) as rows:
            async for key, value in rows:
                if key == _TICK:
                    self.last = decode(value)
                elif key is not None and key.startswith(_CONFIG) and value is not None:
                    self._applied[key.removeprefix(_CONFIG).decode()] = value.decode()
        if self.last is None:
            self.last = await self._last_written()
        logger.info("ticking from tick=%s", self.last and self.last.number)

    async def _last_written(self) -> Tick | None:
        """Return the newest tick of the run log, which is kept for ever: stages take none of an earlier number."""
        last: Tick | None = None
        async with aclosing(read_partition(self._settings, self._kept, 0, newest=LOOKED_AT)) as rows:
            async for _, value in rows:
                with suppress(RecordError):  # poison
                    if value and not is_chunk(value) and record_name(value) == Tick.__name__:
                        last = decode(value)
        if last is not None:
            logger.warning("%s has lost the last tick, going on from that in %s", self._changelog, self._kept)
        return last

    async def _tick_while_wanted(self, producer: AIOKafkaProducer) -> None:
        interval_s = self._settings.tick_interval_ms / 1000
        due = time.monotonic() + (interval_s if self.last else 0.0)
        while self._wanted.is_set():
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due + interval_s, time.monotonic())
            tick = next_tick(self.last, wall_clock_ms=self._clock(), interval_ms=self._settings.tick_interval_ms)
            async with self._writing:
                await self._write(producer, tick)

    async def _write(self, producer: AIOKafkaProducer, tick: Tick) -> None:
        changes = list(config_changes(self._configs, self._applied))
        rows = [row for change in changes for row in self._everywhere([change.topic], encode(change.record))]
        rows += self._everywhere(self._inputs, encode(tick))
        rows.append(Row(self._changelog, 0, _TICK, encode(tick)))
        rows += [
            Row(self._changelog, 0, _CONFIG + change.place.encode(), change.record.config_hash.encode())
            for change in changes
        ]
        async with asyncio.timeout(self._settings.transaction_timeout_s):
            await producer.begin_transaction()
            await write(producer, rows)
            await producer.commit_transaction()
        self.last = tick
        for change in changes:
            self._applied[change.place] = change.record.config_hash
            logger.info("applied configuration %s of %s", change.record.config_hash, change.place)

    def _everywhere(self, topics: Iterable[Topic], value: bytes) -> list[Row]:
        return [
            Row(topic.full_name(self._settings.namespace), partition, None, value)
            for topic in topics
            for partition in range(partitions_of(topic, self._settings))
        ]
