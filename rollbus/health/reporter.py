"""Pictures of health, one after the other → alarms that begin and end, each reported once.

Pure but for `watch`, the loop. What hovers around its limit is one alarm: it ends once it has been away for a while.
After a restart, what is still wrong is reported again. A receiver of alarms may hang
or fail: it gets the same one again after growing pauses, the others wait in order, and looking goes on.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rollbus.health.picture import Picture
from rollbus.health.reading import open_health
from rollbus.health.status import FunnelCounter, explain_problems
from rollbus.runtime import metrics
from rollbus.runtime.health.alarms.lags import LAG_S, LagHistory
from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.runtime.health.alarms.problem import RUNBOOK, Problem
from rollbus.runtime.health.heart import Report
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import UnavailableError

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
MOST_WAITING = 1_000
"""Alarms that wait for a webhook; of more, the oldest are left out, and the log has them."""
Tell = Callable[[Mapping[str, object]], None]
"""Takes one alarm, or raises."""


@dataclass(frozen=True, slots=True)
class AlarmChange:
    """An alarm that began or ended."""

    state: Literal["firing", "resolved"]
    problem: Problem
    at_ms: int

    def body(self) -> dict[str, Any]:
        """Return it for a webhook: `text` for people, `alarm` for programs."""
        sentence = self.problem.what if self.state == "firing" else f"no longer: {self.problem.what}"
        remedy = f" → {self.problem.remedy}" if self.state == "firing" else ""
        return {
            "text": f"[{self.state}] {self.problem.alarm}: {sentence}{remedy}",
            "alarm": {"state": self.state, "at_ms": self.at_ms, **asdict(self.problem)},
        }


@dataclass(slots=True)
class Alarms:
    """What fires, by alarm and subject."""

    firing: dict[tuple[str, str], Problem] = field(default_factory=dict)
    _away_since_ms: dict[tuple[str, str], int] = field(default_factory=dict)
    """Of what fires: since when it is no longer seen."""

    def compare(self, problems: tuple[Problem, ...], at_ms: int, *, hold_ms: float = 0.0) -> Iterator[AlarmChange]:
        """Yield what began since the last call, and what ended: it has not been seen for `hold_ms`."""
        now: dict[tuple[str, str], Problem] = {(problem.alarm, problem.subject): problem for problem in problems}
        for key, problem in now.items():
            if key not in self.firing:
                yield AlarmChange("firing", problem, at_ms)
        away = {
            key: min(self._away_since_ms.get(key, at_ms), at_ms)  # the clock may have been set back
            for key in self.firing
            if key not in now
        }
        for key, since_ms in away.items():
            if at_ms - since_ms >= hold_ms:
                yield AlarmChange("resolved", self.firing[key], at_ms)
            else:
                now[key] = self.firing[key]
        self.firing, self._away_since_ms = now, {key: away[key] for key in away if key in now}


def broker_problem(connection: KafkaConnection, error: UnavailableError) -> Problem:
    """Return the problem that hides all others: what fires goes on, since nothing shows that it ended."""
    return Problem("broker", connection.bootstrap_servers, str(error), f"{RUNBOOK}#broker")


@dataclass(slots=True)
class HealthReporter:
    """Looks again and again, and reports changes; `run` until stopped."""

    connection: KafkaConnection
    namespace: str
    limits: AlarmLimits
    interval_s: float
    tell: Tell | None
    clock_ms: Callable[[], int]
    own_process: Callable[[], str | None] = lambda: None
    """The name under which this process beats."""
    counter: FunnelCounter | None = None
    """Counts what explains a problem; without it the log alone does."""
    alarms: Alarms = field(default_factory=Alarms)
    looks: int = 0
    trouble: str | None = None
    _history: LagHistory = field(default_factory=lambda: LagHistory(LAG_S))
    """Over all connections: what grows goes on growing while the broker is away."""
    _waiting: deque[AlarmChange] = field(default_factory=lambda: deque(maxlen=MOST_WAITING))
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def report(self) -> Report:
        """Say how often it has looked; what it finds wrong elsewhere is no trouble of its own."""
        return Report(holds=("alarms",), work=self.looks, is_behind=bool(self._waiting), trouble=self.trouble)

    async def run(self, stop: asyncio.Event) -> None:
        """Look until `stop` is set."""
        telling = asyncio.create_task(self._tell_for_ever(), name="telling of alarms")
        looking = asyncio.create_task(self._look_for_ever(), name="looking for alarms")
        stopping = asyncio.create_task(stop.wait())
        try:
            finished_tasks, _ = await asyncio.wait({telling, looking, stopping}, return_when=asyncio.FIRST_COMPLETED)
            for task in finished_tasks - {stopping}:
                task.result()  # an error of ours ends the process
        finally:
            for task in (telling, looking, stopping):
                task.cancel()
            await asyncio.gather(telling, looking, stopping, return_exceptions=True)

    async def _look_for_ever(self) -> None:
        while True:
            try:
                async with open_health(
                    self.connection, self.namespace, self.limits, history=self._history, clock_ms=self.clock_ms
                ) as health:
                    self._take(await self._explain(await health.settled_picture()))
                    while not health.is_outdated:
                        await asyncio.sleep(self.interval_s)
                        self._take(await self._explain(await health.picture()))
            except UnavailableError as error:
                others = [problem for problem in self.alarms.firing.values() if problem.alarm != "broker"]
                self._notice((broker_problem(self.connection, error), *others), self.clock_ms())
            await asyncio.sleep(self.interval_s)

    async def _explain(self, picture: Picture) -> Picture:
        return picture if self.counter is None else await explain_problems(picture, self.counter, self.limits)

    def _take(self, picture: Picture) -> None:
        self.looks += 1
        self._notice(leave_out_silence_of(self.own_process(), picture.problems), picture.at_ms)
        export_picture(picture)

    def _notice(self, problems: tuple[Problem, ...], at_ms: int) -> None:
        for change in self.alarms.compare(problems, at_ms, hold_ms=self.limits.hold_s * 1000):
            logger.warning("%s", change.body()["text"])
            if self.tell is not None:
                self._waiting.append(change)
                self._arrived.set()
        metrics.FIRING.clear()
        for alarm, subject in self.alarms.firing:
            metrics.FIRING.labels(alarm, subject).set(1)

    async def _tell_for_ever(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            await self._arrived.wait()
            while self._waiting and self.tell is not None:
                change = self._waiting[0]
                try:
                    await asyncio.to_thread(self.tell, change.body())
                except Exception as error:  # a webhook may answer anything
                    self.trouble = f"an alarm could not be delivered: {error}"
                    logger.warning("%s; trying again in %.0f s", self.trouble, pause_s)
                    await asyncio.sleep(pause_s)
                    pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
                    continue
                self.trouble, pause_s = None, FIRST_PAUSE_S
                with suppress(ValueError):  # one that was left out meanwhile
                    self._waiting.remove(change)
            self._arrived.clear()


def leave_out_silence_of(process: str | None, problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems without the silence of the process that looks: it lives, however slowly it has started."""
    return tuple(problem for problem in problems if (problem.alarm, problem.subject) != ("silence", process))


def export_picture(picture: Picture) -> None:
    """Set the gauges that only a look at the whole log can fill."""
    for gauge in (metrics.LAG, metrics.BEAT_AGE_SECONDS, metrics.STEP_AGE_SECONDS, metrics.RUN_REWARD):
        gauge.clear()
    for group in picture.groups:
        metrics.LAG.labels(group.group, group.topic).set(group.lag)
    missed = {problem.subject for problem in picture.problems if problem.alarm == "silence"}
    for process in picture.processes:
        if process.is_alive or process.process in missed:  # another may have taken a silent one's place
            metrics.BEAT_AGE_SECONDS.labels(process.kind, process.process).set(process.beat_age_ms / 1000)
    for run in picture.runs:
        if run.step_age_ms is not None:
            metrics.STEP_AGE_SECONDS.labels(run.run_id).set(run.step_age_ms / 1000)
        if run.reward is not None:
            metrics.RUN_REWARD.labels(run.run_id).set(run.reward)
    metrics.DEAD_LETTERS.set(picture.dead_letters)
