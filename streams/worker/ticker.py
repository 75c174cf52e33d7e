"""Write ticks and changed configurations into every partition of every stage's input, in one transaction each.

The same transaction writes the last tick into the ticker's own changelog, so a successor continues where this one
stopped. Of two tickers the newer fences the older, which waits for a session timeout and then tries again.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

from rollbus.runtime.cancelling import is_being_cancelled
from rollbus.runtime.kafka.clients import start_uncancelled, stop_producer
from rollbus.runtime.kafka.reading import read_from
from rollbus.runtime.kafka.writing import Row, write_transaction
from rollbus.runtime.tasks import OnEnd, report_end, start_task
from rollbus.schemas.codec import decode, decode_if, encode
from rollbus.schemas.errors import ConfigurationError, UnavailableError
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.signing import OWNER
from rollbus.schemas.topics import RUN_LOG, Topic
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.streams.exactly_once.transaction import new_producer
from rollbus.streams.kafka import names
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of
from rollbus.streams.state.ticker import config_changes, inputs_in_use, next_tick

logger = logging.getLogger(__name__)

_TICK = b"tick"
_CONFIG = b"config\x1f"
RETRY_S = 1.0
CLOSE_S = 2.0
NONCE_BYTES = 16
"""As many as no producer guesses: the draw of a canary is keyed with them."""
LOOKED_AT = 2_000
"""The last tick is searched among so many newest offsets of the run log: without ticks no group comes either."""


@dataclass(slots=True)
class WrittenTicks:
    """What a namespace's tickers have kept of what they wrote."""

    tick: Tick | None = None
    configs: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By place: the configuration's hash, and the fingerprint of the owner's key, empty for none."""


async def read_written(settings: StreamSettings) -> WrittenTicks:
    """Return what is in the ticker's changelog."""
    written = WrittenTicks()
    changelog = TopicPartition(names.changelog_topic(settings.namespace, names.TICKER), 0)
    async with aclosing(read_from(settings.kafka, {changelog: 0})) as rows:
        async for row in rows:
            if row.key == _TICK:
                written.tick = decode(row.value)
            elif row.key is not None and row.key.startswith(_CONFIG) and row.value is not None:
                config_hash, _, signed_with = row.value.decode().partition("@")
                written.configs[row.key.removeprefix(_CONFIG).decode()] = config_hash, signed_with
    return written


async def require_owner_key(settings: StreamSettings) -> None:
    """Raise ConfigurationError if the log's configurations are signed, and the settings hold no key of the owner.

    Such a worker would take over the clock, and all others would refuse its ticks.
    """
    if settings.signing.fingerprint:
        return
    if any(signed_with for _, signed_with in (await read_written(settings)).configs.values()):
        raise ConfigurationError(
            f"the owner has signed the configurations in the log of {settings.kafka.bootstrap_servers}, and this "
            "worker has no key: the others would refuse its ticks. Set `signing: owner:`, or start the worker where "
            "the stack's secrets are (docs/security.md)"
        )


class Ticker:
    """The ticker of a namespace, while this process owns the partition that decides who ticks."""

    def __init__(
        self,
        settings: StreamSettings,
        configs: Sequence[ConfigApplied] = (),
        *,
        clock: Callable[[], int] = wall_clock_ms,
        on_fatal: OnEnd = report_end,
    ) -> None:
        self._settings, self._configs, self._clock, self._on_fatal = settings, configs, clock, on_fatal
        self._changelog = names.changelog_topic(settings.namespace, names.TICKER)
        self._run_log = RUN_LOG.full_name(settings.namespace)
        self._inputs = inputs_in_use(configs)
        self._wanted = asyncio.Event()
        self._writing = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self.last: Tick | None = None
        self._applied: dict[str, str] = {}
        list(config_changes(configs, {}))  # raises for a wrong one

    @property
    def is_wanted(self) -> bool:
        """Whether this process should tick."""
        return self._wanted.is_set()

    def set_wanted(self, wanted: bool) -> None:
        """Tick from now on, or stop after the tick that is being written."""
        if not wanted:
            self._wanted.clear()
            return
        self._wanted.set()
        if self._task is None:
            self._task = start_task(self._main(), "ticker", on_end=self._on_fatal)

    async def stop(self) -> None:
        """Stop ticking; a tick that is being written may end, since it would hold back the readers of every input."""
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
                await start_uncancelled(producer.start)
                await self._restore()
                await self._tick_while_wanted(producer)
            except (ProducerFenced, InvalidProducerEpoch):
                logger.warning("another ticker took over after tick=%s", self.last and self.last.number)
                pause = self._settings.session_timeout_s
            except (KafkaError, UnavailableError, TimeoutError, OSError) as error:
                logger.warning("ticking failed, trying again in %.0f s error=%r", pause, error)
            except BaseException as error:  # a clock must not stop for an unforeseen error
                if isinstance(error, asyncio.CancelledError) and is_being_cancelled():
                    raise
                logger.error("ticking failed, trying again in %.0f s", pause, exc_info=error)
            finally:
                await stop_producer(producer)
            await asyncio.sleep(pause)

    async def _restore(self) -> None:
        written = await read_written(self._settings)
        self.last, own = written.tick, self._settings.signing.fingerprint
        self._applied = {  # a configuration that another key signed may not have counted
            place: config_hash for place, (config_hash, signed_with) in written.configs.items() if signed_with == own
        }
        if self.last is None:
            self.last = await self._last_written()
        logger.info("ticking from tick=%s", self.last and self.last.number)

    async def _last_written(self) -> Tick | None:
        """Return the newest tick of the run log, which is kept for ever: stages ignore ticks with an earlier number."""
        last: Tick | None = None
        place = TopicPartition(self._run_log, 0)
        async with aclosing(read_from(self._settings.kafka, {place: 0}, newest=LOOKED_AT)) as rows:
            async for row in rows:
                last = decode_if(row.value, Tick) or last
        if last is not None:
            logger.warning("%s has lost the last tick, continuing from the one in %s", self._changelog, self._run_log)
        return last

    async def _tick_while_wanted(self, producer: AIOKafkaProducer) -> None:
        interval_s = self._settings.tick_interval_ms / 1000
        due = time.monotonic() + (interval_s if self.last else 0.0)
        while self._wanted.is_set():
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due + interval_s, time.monotonic())
            tick = next_tick(
                self.last,
                wall_clock_ms=self._clock(),
                interval_ms=self._settings.tick_interval_ms,
                nonce=secrets.token_hex(NONCE_BYTES),
            )
            async with self._writing:
                await self._write(producer, tick)

    async def _write(self, producer: AIOKafkaProducer, tick: Tick) -> None:
        changes = list(config_changes(self._configs, self._applied))
        rows = [
            row for change in changes for row in self._rows_for_every_partition([change.topic], encode(change.record))
        ]
        rows += self._rows_for_every_partition(self._inputs, encode(tick))
        rows.append(Row(self._changelog, 0, _TICK, encode(tick)))
        fingerprint = self._settings.signing.fingerprint
        signed_with = f"@{fingerprint}" if fingerprint else ""
        rows += [
            Row(self._changelog, 0, _CONFIG + change.place.encode(), (change.record.config_hash + signed_with).encode())
            for change in changes
        ]
        async with asyncio.timeout(self._settings.transaction_timeout_s):
            await write_transaction(producer, rows)
        self.last = tick
        for change in changes:
            self._applied[change.place] = change.record.config_hash
            logger.info("applied configuration %s of %s", change.record.config_hash, change.place)

    def _rows_for_every_partition(self, topics: Iterable[Topic], value: bytes) -> list[Row]:
        return [
            Row(name, partition, None, value, headers)
            for topic in topics
            for name in [topic.full_name(self._settings.namespace)]
            for headers in [self._settings.signing.sign(OWNER, name, None, value) if topic.is_open else ()]
            for partition in range(partitions_of(topic, self._settings))
        ]
