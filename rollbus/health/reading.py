"""The log and the broker → looks, one after the other: beats, steps, windows, dead letters and lags; it writes nothing.

Silence is judged by the broker's clock, whatever this machine's says (`clock`).
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from rollbus.health.clock import BrokerClock
from rollbus.health.lag import make_lag_rows
from rollbus.health.own_machine import is_frozen, is_gone
from rollbus.health.picture import Look, Picture, draw_picture
from rollbus.runtime.health.alarms.lags import LAG_S, Lag, LagHistory
from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.health.alarms.processes import Beat, ProcessHealth
from rollbus.runtime.health.alarms.runs import StepRecord
from rollbus.runtime.kafka.clients import new_admin, running
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.lag import LagReader, open_lag
from rollbus.runtime.kafka.log_id import find_log_ids
from rollbus.runtime.kafka.partitions import find_partitions
from rollbus.runtime.kafka.reading import assign_paused, open_reader, read_bounds, read_on
from rollbus.runtime.log_mark import LogId
from rollbus.schemas.codec import decode_if
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.records.drops import DeadLetter, is_set_aside
from rollbus.schemas.records.groups import CurriculumState
from rollbus.schemas.records.health import Heartbeat
from rollbus.schemas.records.steps import StepCompleted, StepFailed, StepSkipped, StepStarted
from rollbus.schemas.topics import CURRICULUM, DEAD_LETTERS, EPISODE_EVENTS, HEARTBEATS, TRAINING_STEPS
from rollbus.schemas.wall_clock import wall_clock_ms

TOPICS_OF_HEALTH = (HEARTBEATS, TRAINING_STEPS, CURRICULUM, DEAD_LETTERS, EPISODE_EVENTS)
STEPS: tuple[type[Any], ...] = (StepStarted, StepCompleted, StepSkipped, StepFailed)
STEPS_KEPT = 500
"""Newest records of training steps, and of curriculum windows, of all runs together."""
LONGEST_WAIT_S = 12.0
"""For a first beat, which shows the time of the broker's clock."""
LOOK_AGAIN_S = 0.5
ANSWER_S = 20.0
"""Longest wait for the broker in one look."""


class HealthReader:
    """Looks at one namespace again and again; `open_health` makes it."""

    def __init__(
        self,
        namespace: str,
        consumer: Any,
        lag: LagReader,
        event_places: Collection[Any],
        logs: Mapping[str, LogId],
        limits: AlarmLimits,
        clock_ms: Callable[[], int],
        history: LagHistory | None = None,
    ) -> None:
        self._namespace, self._consumer, self._lag = namespace, consumer, lag
        self._limits, self._clock = limits, BrokerClock(clock_ms)
        self._beats: dict[str, Beat] = {}
        self._unread: dict[str, int] = {}
        self._steps: deque[StepRecord] = deque(maxlen=STEPS_KEPT)
        self._windows: dict[str, CurriculumState] = {}
        self._dead_letter_times: dict[tuple[str, int, int], int] = {}
        """When the newest dead letter of a record came, by the record's place; several consumers may refuse one."""
        self._event_places, self._logs = event_places, logs
        self._is_first = True
        self.history = history or LagHistory(LAG_S)
        self.is_outdated = False
        """Whether topics were made since it was opened, for the first time or again: it does not see their records."""

    async def picture(self) -> Picture:
        """Look once; raises UnavailableError."""
        try:
            async with asyncio.timeout(ANSWER_S):
                look = await self._look()
        except TimeoutError:
            raise UnavailableError(f"the broker has not answered for {ANSWER_S:.0f} s") from None
        self.history.add(look.now_ms, look.lags)
        return draw_picture(look, self.history, self._limits)

    async def settled_picture(self) -> Picture:
        """Look until the broker's clock is known, or until no process is left that would beat."""
        picture = await self.picture()
        intervals = [beat.heartbeat.interval_ms for beat in self._beats.values() if not beat.heartbeat.is_last]
        wait_s = min(LONGEST_WAIT_S, max(intervals, default=0) / 1000 + 1)
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                while self._clock.ahead_ms is None and intervals:
                    await asyncio.sleep(LOOK_AGAIN_S)
                    picture = await self.picture()
        return picture

    async def living_processes(self) -> tuple[ProcessHealth, ...]:
        """Return the processes of which none is known to be gone: after a kill, the last beat still counts for a while.

        One whose process number this machine no longer has, as in another container, gets the time of a beat to show
        that it lives.
        """
        picture = await self.settled_picture()
        gone_beats = {name: beat for name, beat in self._beats.items() if is_gone(beat.heartbeat)}
        doubtful = [
            name for process in picture.processes if process.is_alive and (name := process.process) in gone_beats
        ]
        if doubtful:
            await asyncio.sleep(max(gone_beats[name].heartbeat.interval_ms for name in doubtful) / 1000 + 1)
            picture = await self.picture()
        return tuple(
            process
            for process in picture.processes
            if process.process not in gone_beats
            or self._beats[process.process].taken_ms > gone_beats[process.process].taken_ms
        )

    async def _look(self) -> Look:
        await self._read_new_records()
        rows = make_lag_rows(self._namespace, await self._lag.read_namespace(self._namespace))
        self.is_outdated = await find_log_ids(self._consumer, _topic_names(self._namespace)) != self._logs
        return Look(
            now_ms=self._clock.now_ms(),
            beats=[replace(beat, is_frozen=is_frozen(beat.heartbeat)) for beat in self._beats.values()],
            lags=[Lag(row.group, row.topic, row.members, row.lag) for row in rows],
            steps=list(self._steps),
            windows=dict(self._windows),
            dead_letters=len(self._dead_letter_times),
            newest_dead_letter_ms=max(self._dead_letter_times.values(), default=None),
            unread_beats=dict(self._unread),
            events=await self._count_events(),
        )

    async def _count_events(self) -> int | None:
        if not self._event_places:
            return None
        bounds = await read_bounds(self._consumer, self._event_places)
        return sum(end - begin for begin, end in bounds.values())

    async def _read_new_records(self) -> None:
        places = set(self._consumer.assignment()) - set(self._event_places)
        bounds = await read_bounds(self._consumer, places)
        async with aclosing(read_on(self._consumer, {place: end for place, (_, end) in bounds.items()})) as records:
            async for record in records:
                self._add_record(record)
        self._is_first = False

    def _add_record(self, record: Any) -> None:
        name = record.topic.removeprefix(self._namespace)
        if name == DEAD_LETTERS.name:
            letter = decode_if(record.value, DeadLetter) or record
            place = (letter.topic, letter.partition, letter.offset)
            self._dead_letter_times[place] = record.timestamp
            if is_set_aside(letter):
                del self._dead_letter_times[place]
        elif name == TRAINING_STEPS.name:
            step: StepRecord | None = decode_if(record.value, *STEPS)
            if step is not None:
                self._steps.append(step)
        elif name == CURRICULUM.name:
            window = decode_if(record.value, CurriculumState)
            if window is not None:
                self._windows[window.run_id] = window
        elif record.value is not None:
            self._add_beat(record)

    def _add_beat(self, record: Any) -> None:
        if (beat := decode_if(record.value, Heartbeat)) is None:
            self._unread[(record.key or b"").decode(errors="replace")] = record.timestamp
            return
        earlier_beat = self._beats.get(beat.process)
        self._beats[beat.process] = Beat(beat, record.timestamp, earlier_beat.heartbeat if earlier_beat else None)
        self._clock.learn(beat, record.timestamp, is_new=not self._is_first)


@asynccontextmanager
async def open_health(
    connection: KafkaConnection,
    namespace: str,
    limits: AlarmLimits | None = None,
    *,
    history: LagHistory | None = None,
    clock_ms: Callable[[], int] = wall_clock_ms,
) -> AsyncIterator[HealthReader]:
    """Connect to look at a namespace; topics that it lacks are left out. Raises UnavailableError.

    With the `history` of an earlier reader, it knows which lags have grown.
    """
    names = _topic_names(namespace)
    async with AsyncExitStack() as stack:
        async with running(connection, new_admin(connection), what="looking at health") as admin:
            logs = await find_log_ids(admin, names)
            places = await find_partitions(admin, logs)
        consumer = await stack.enter_async_context(open_reader(connection, "looking at health"))
        assign_paused(consumer, places)
        bounds = await read_bounds(consumer, places)
        long_topics = [topic.full_name(namespace) for topic in (TRAINING_STEPS, CURRICULUM)]
        for place, (begin, end) in bounds.items():
            consumer.seek(place, max(begin, end - STEPS_KEPT) if place.topic in long_topics else begin)
        lag = await stack.enter_async_context(open_lag(connection))
        event_places = [place for place in places if place.topic == EPISODE_EVENTS.full_name(namespace)]
        yield HealthReader(
            namespace,
            consumer,
            lag,
            event_places,
            logs,
            limits or AlarmLimits(),
            clock_ms,
            history,
        )


def _topic_names(namespace: str) -> list[str]:
    return [topic.full_name(namespace) for topic in TOPICS_OF_HEALTH]


async def read_health(connection: KafkaConnection, namespace: str, limits: AlarmLimits | None = None) -> Picture:
    """Return the picture of a namespace now, for a command or the page; raises UnavailableError."""
    async with open_health(connection, namespace, limits) as health:
        return await health.settled_picture()


async def read_living_processes(
    connection: KafkaConnection, namespace: str, limits: AlarmLimits | None = None
) -> tuple[ProcessHealth, ...]:
    """Return the processes of a namespace that live now; the caller starts those that are missing."""
    async with open_health(connection, namespace, limits) as health:
        return await health.living_processes()
