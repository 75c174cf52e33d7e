"""The clock that is written into the log: the last tick and the wall clock give the next tick. Pure.

Stream time follows the wall clock, at between half and twice its speed and never backwards. After an outage it catches
up slowly enough that nothing times out; after the wall clock was set back it goes slower, and does not stop.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import canonical_json
from rollbus.schemas.records.config import Config
from rollbus.schemas.records.control import ConfigApplied, Tick
from rollbus.schemas.topics import CONFIGURED, STAGE_INPUTS, Topic

MOST_INTERVALS, LEAST_INTERVALS = 2.0, 0.5
"""How many intervals stream time advances per tick."""
BUSY_S = 3.0
"""So long after the last record there is a tick each interval; later one each IDLE_INTERVALS."""
IDLE_INTERVALS = 5
"""A tick that nothing waits for costs broker and stages as much as any: an idle namespace has fewer of them."""


def next_tick(last: Tick | None, *, wall_clock_ms: int, interval_ms: int, nonce: str = "") -> Tick:
    """Return the tick to write now; the first one of a namespace takes the wall clock as it is."""
    shared: dict[str, Any] = {"wall_clock_ms": wall_clock_ms, "interval_ms": interval_ms, "nonce": nonce}
    if last is None:
        return Tick(number=0, stream_time_ms=wall_clock_ms, **shared)
    behind = wall_clock_ms - last.stream_time_ms
    advance = int(max(LEAST_INTERVALS * interval_ms, min(behind, MOST_INTERVALS * interval_ms)))
    return Tick(number=last.number + 1, stream_time_ms=last.stream_time_ms + advance, **shared)


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """A configuration that its stage does not know yet."""

    place: str
    """The key under which the ticker remembers the last configuration applied."""
    topic: Topic
    record: ConfigApplied


@dataclass(frozen=True, slots=True)
class Pulse:
    """A tick, and the configurations that travel in front of it."""

    tick: Tick
    changes: tuple[ConfigChange, ...] = ()

    @property
    def number(self) -> int:
        """The tick's."""
        return self.tick.number


def config_applied(stage: str, run_id: str | None, config: Config) -> ConfigApplied:
    """Return the record that puts a configuration into effect."""
    content = canonical_json(config.model_dump(mode="json"))
    return ConfigApplied(stage=stage, run_id=run_id, config_hash=config.config_hash(), content=content)


def removed_runs(configs: Iterable[ConfigApplied], applied: Iterable[str]) -> dict[str, list[str]]:
    """Return the runs that configurations were applied for and that have none now, each with its places."""
    runs = {record.run_id for record in configs if record.run_id}
    removed: dict[str, list[str]] = {}
    for place in applied:
        run_id = place.split(" in ")[0].partition(".")[2]
        if run_id and run_id not in runs:
            removed.setdefault(run_id, []).append(place)
    return removed


@dataclass(slots=True)
class Pace:
    """When the next tick is due, by a clock that its caller reads."""

    interval_s: float
    _ticked_at_s: float = 0.0
    _busy_until_s: float = 0.0

    def begin(self, *, now_s: float, is_first: bool) -> None:
        """Begin to tick: the first tick of all is due now, another one after an interval."""
        self._ticked_at_s = now_s - (self.interval_s if is_first else 0.0)
        self.note_work(now_s=now_s)  # what was there before, and settings that have changed, wait for no idle tick

    def note_work(self, *, now_s: float) -> None:
        """Take note that there has been more than time."""
        self._busy_until_s = now_s + BUSY_S

    def is_busy(self, *, now_s: float) -> bool:
        """Say whether there has been more than time lately."""
        return now_s < self._busy_until_s

    def due_s(self, *, now_s: float) -> float:
        """Return when the next tick is due."""
        return self._ticked_at_s + self.interval_s * (1 if self.is_busy(now_s=now_s) else IDLE_INTERVALS)

    def take_tick(self, *, now_s: float) -> int:
        """Begin the next interval; return how long the last one was, in ms, as far as that was meant to pass."""
        passed_s = min(max(now_s - self._ticked_at_s, self.interval_s), self.interval_s * IDLE_INTERVALS)
        self._ticked_at_s = now_s
        return int(passed_s * 1000)


def config_changes(configs: Iterable[ConfigApplied], applied: Mapping[str, str]) -> Iterator[ConfigChange]:
    """Yield the configurations that are not applied yet; raises ConfigurationError for a stage that takes none."""
    for record in configs:
        if record.stage not in CONFIGURED:
            raise ConfigurationError(
                f"stage {record.stage!r} takes no configuration; those that do: {sorted(CONFIGURED)}"
            )
        stage = f"{record.stage}.{record.run_id}" if record.run_id else record.stage
        for topic in CONFIGURED[record.stage]:
            place = stage if topic is STAGE_INPUTS[record.stage] else f"{stage} in {topic.name}"
            if applied.get(place) != record.config_hash:
                yield ConfigChange(place, topic, record)
