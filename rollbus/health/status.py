"""The log, the broker and ClickHouse → one answer: the picture of health, each run's funnel, and what to say first.

`rollbus status`, `rollbus top` and the page show this one answer.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rollbus.health.funnel.counting import count_funnels
from rollbus.health.funnel.funnel import Funnel
from rollbus.health.funnel.numbers import FunnelSettings
from rollbus.health.funnel.verdict import Verdict, give_verdict, hold_funnels
from rollbus.health.picture import Picture, add_traffic, to_json
from rollbus.health.reading import read_health
from rollbus.health.watch import HealthWatch
from rollbus.runtime.health.alarms.limits import AlarmLimits
from rollbus.schemas.errors import UnavailableError
from rollbus.schemas.wall_clock import wall_clock_ms

if TYPE_CHECKING:
    from rollbus.settings import Settings

ANSWER_HOLDS_S = 5.0
"""How long counts are repeated: several browsers ask every few seconds."""


@dataclass(frozen=True, slots=True)
class NamespaceStatus:
    """What is known of a namespace at one moment."""

    picture: Picture | None
    """None while Kafka cannot be reached."""
    funnels: tuple[Funnel, ...]
    verdict: Verdict
    error: str | None = None
    """Why there is no picture."""

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values, for programs and the page."""
        return {
            "verdict": asdict(self.verdict),
            "funnels": [asdict(funnel) for funnel in self.funnels],
            "health": None if self.picture is None else to_json(self.picture),
            "error": self.error,
        }


class FunnelCounter:
    """Counts the funnels of the settings' runs; repeats an answer for a moment. Thread-safe."""

    def __init__(self, settings: "Settings") -> None:
        """Nothing is asked before the first question."""
        self._clickhouse, self._namespace = settings.clickhouse, settings.namespace
        self._runs = [FunnelSettings(run, settings.scoring, settings.assembly) for run in settings.runs]
        self._lock = threading.Lock()
        self._holds_until_s, self._funnels = 0.0, tuple[Funnel, ...]()

    def count(self, now_ms: int) -> tuple[Funnel, ...]:
        """Return each run's funnel; `now_ms` is by the broker's clock."""
        with self._lock:
            if time.monotonic() >= self._holds_until_s:
                self._funnels = count_funnels(self._clickhouse, self._namespace, self._runs, now_ms)
                self._holds_until_s = time.monotonic() + ANSWER_HOLDS_S
            return self._funnels


async def read_status(settings: "Settings") -> NamespaceStatus:
    """Look once; a broker or a ClickHouse that is away is part of the answer."""
    connection, limits = settings.kafka, settings.health.alarms
    return await _look(lambda: read_health(connection, settings.namespace, limits), FunnelCounter(settings), limits)


class StatusWatch:
    """Answers several askers over one connection to the broker, which stays open."""

    def __init__(self, settings: "Settings") -> None:
        """Nothing connects before the first question."""
        self._health = HealthWatch(settings.kafka, settings.namespace, settings.health.alarms)
        self._counter, self._limits = FunnelCounter(settings), settings.health.alarms

    async def ask(self) -> NamespaceStatus:
        """Return what is known now."""
        return await _look(self._health.ask, self._counter, self._limits)

    async def close(self) -> None:
        """Disconnect."""
        await self._health.close()


async def _look(
    read_picture: Callable[[], Awaitable[Picture]], counter: FunnelCounter, limits: AlarmLimits
) -> NamespaceStatus:
    picture, error = None, None
    try:
        picture = await read_picture()
    except UnavailableError as unavailable:
        error = str(unavailable)
    now_ms = wall_clock_ms() if picture is None else picture.at_ms
    funnels = await asyncio.to_thread(counter.count, now_ms)
    if picture is None:
        return NamespaceStatus(None, funnels, Verdict("the broker does not answer", is_wrong=True), error)
    picture = _explain(picture, funnels, limits)
    funnels = hold_funnels(picture, funnels)
    return NamespaceStatus(picture, funnels, give_verdict(picture, funnels))


async def explain_problems(picture: Picture, counter: FunnelCounter, limits: AlarmLimits) -> Picture:
    """Return the picture with what ClickHouse knows of its problems; it is asked only where that may help."""
    if not any(problem.alarm == "no_step" for problem in picture.problems):
        return picture
    funnels = await asyncio.to_thread(counter.count, picture.at_ms)
    return _explain(picture, funnels, limits)


def _explain(picture: Picture, funnels: Sequence[Funnel], limits: AlarmLimits) -> Picture:
    newest_episode_ms = max((funnel.newest_episode_ms for funnel in funnels), default=0)
    return add_traffic(picture, newest_episode_ms, limits, {funnel.run_id: funnel.owed_since_ms for funnel in funnels})
