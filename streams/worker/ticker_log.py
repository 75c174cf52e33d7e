"""The ticker's changelog: which ticks there are, which of them each input has, and what the stages have passed.

One compacted partition. The ticker writes its rows in the transactions of the ticks themselves, so a successor goes on
where it stopped. What other workers report is in a row each, outside transactions.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from aiokafka import TopicPartition

from rollbus.runtime.kafka.reading import read_from
from rollbus.runtime.kafka.writing import Row
from rollbus.schemas.codec import decode, decode_if, encode
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.control import RunCommand, Tick
from rollbus.schemas.signing import OWNER
from rollbus.schemas.topics import RUN_LOG, Topic, topic_of
from rollbus.streams.kafka import names
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.state.ticker import ConfigChange, Pulse
from rollbus.streams.state.watermarks import Passed, to_spans, to_ticks

_TICK, _REACHED, _MEMBERS = b"tick", b"reached", b"members"
_CONFIG, _PULSE, _CHANGE, _PASSED = b"config\x1f", b"pulse\x1f", b"change\x1f", b"passed\x1f"
_MERGED_REPORT = "merged"
"""In place of the name of a process: the report that says what several said."""
NEWEST_OFFSETS = 2_000
"""The last tick is searched among so many newest offsets of each input."""


@dataclass(slots=True)
class WrittenTicks:
    """What a namespace's tickers have kept of what they wrote."""

    tick: Tick | None = None
    """The newest."""
    configs: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By place: the configuration's hash, and the fingerprint of the owner's key, empty for none."""
    reached: dict[str, int] = field(default_factory=dict)
    """By topic: the last tick that it has."""
    members: frozenset[str] | None = None
    """Stages that hold up time; None before the first row of them."""
    ticks: dict[int, Tick] = field(default_factory=dict)
    """Those that some input does not have yet."""
    changes: dict[tuple[int, str], ConfigChange] = field(default_factory=dict)
    """By tick and place."""
    passed: dict[str, Passed] = field(default_factory=dict)
    """By process."""

    def apply_row(self, key: bytes, value: bytes | None) -> None:
        """Apply one row; None as value forgets it. A row of a kind that a newer release has added is left out."""
        if key.startswith(_PULSE):
            _put(self.ticks, int(key.removeprefix(_PULSE)), value and decode(value))
        elif key.startswith(_CHANGE):
            number, place, topic = key.removeprefix(_CHANGE).decode().split("\x1f")
            change = value and ConfigChange(place, topic_of(topic), decode(value))
            _put(self.changes, (int(number), place), change)
        elif key.startswith(_PASSED):
            _put(self.passed, key.removeprefix(_PASSED).decode(), value and read_report(value)[0])
        elif key.startswith(_CONFIG) and value is None:
            self.configs.pop(key.removeprefix(_CONFIG).decode(), None)
        elif value is None:
            return
        elif key == _TICK:
            self.tick = decode(value)
        elif key == _REACHED:
            self.reached = json.loads(value)
        elif key == _MEMBERS:
            self.members = frozenset(json.loads(value))
        elif key.startswith(_CONFIG):
            config_hash, _, signed_with = value.decode().partition("@")
            self.configs[key.removeprefix(_CONFIG).decode()] = config_hash, signed_with

    def pulses(self) -> list[Pulse]:
        """Return the ticks that are on their way, in order."""
        return [
            Pulse(tick, tuple(change for (tick_number, _), change in self.changes.items() if tick_number == number))
            for number, tick in sorted(self.ticks.items())
        ]


def _put(rows: dict[Any, Any], key: Any, row: Any) -> None:
    if row:
        rows[key] = row
    else:
        rows.pop(key, None)


class TickerLog:
    """Rows of the changelog, to be written and read."""

    def __init__(self, settings: StreamSettings) -> None:
        self._settings = settings
        self.topic = names.changelog_topic(settings.namespace, names.TICKER)

    def pulse_rows(self, pulse: Pulse) -> Iterator[Row]:
        """Yield what keeps a new tick until every input has it."""
        yield self._row(_TICK, encode(pulse.tick))
        yield self._row(_pulse_key(pulse), encode(pulse.tick))
        fingerprint = self._settings.signing.fingerprint
        signed_with = f"@{fingerprint}" if fingerprint else ""
        for change in pulse.changes:
            yield self._row(_change_key(pulse, change), encode(change.record))
            yield self._row(_CONFIG + change.place.encode(), (change.record.config_hash + signed_with).encode())

    def pulse_tombstones(self, pulse: Pulse) -> Iterator[Row]:
        """Yield what forgets a tick that every input has."""
        yield self._row(_pulse_key(pulse), None)
        for change in pulse.changes:
            yield self._row(_change_key(pulse, change), None)

    def run_removal_rows(self, run_id: str, places: Iterable[str], tick: int) -> Iterator[Row]:
        """Yield what says that a run is removed, and what forgets its configurations: a run that is back gets them."""
        removed = RunCommand(run_id=run_id, command="removed", command_id=f"removed before tick {tick}")
        yield Row(RUN_LOG.full_name(self._settings.namespace), 0, run_id.encode(), encode(removed))
        for place in places:
            yield self._row(_CONFIG + place.encode(), None)

    def reached_row(self, reached: Mapping[str, int]) -> Row:
        """Return the row of the last tick of each input."""
        return self._row(_REACHED, json.dumps(reached).encode())

    def members_row(self, members: Iterable[str]) -> Row:
        """Return the row of the stages that hold up time."""
        return self._row(_MEMBERS, json.dumps(sorted(members)).encode())

    def report_row(self, process: str, passed: Passed | None, *, is_busy: bool = False) -> Row:
        """Return a process's report; None forgets it."""
        key = _PASSED + process.encode()
        if passed is None:
            return self._row(key, None)
        spans = {stage: to_spans(ticks) for stage, ticks in passed.items()}
        return self._row(key, json.dumps({"busy": is_busy, "passed": spans}, separators=(",", ":")).encode())

    def merged_report_rows(self, processes: Collection[str], passed: Passed) -> Iterator[Row]:
        """Yield what puts the reports of processes together into one, which says no less."""
        if processes:
            yield from (self.report_row(process, None) for process in processes)
            yield self.report_row(_MERGED_REPORT, passed)

    async def read(self) -> WrittenTicks:
        """Return what the rows of the changelog say."""
        written_ticks = WrittenTicks()
        async with aclosing(read_from(self._settings.kafka, {TopicPartition(self.topic, 0): 0})) as rows:
            async for row in rows:
                if row.key is not None:
                    written_ticks.apply_row(row.key, row.value)
        return written_ticks

    async def find_last_tick(self, topics: Iterable[Topic]) -> Tick | None:
        """Return the newest tick in these inputs: stages ignore ticks that are not later."""
        last: Tick | None = None
        for topic in topics:
            signer_of = self._settings.signer_of(topic)
            place = TopicPartition(topic.full_name(self._settings.namespace), 0)
            async with aclosing(read_from(self._settings.kafka, {place: 0}, newest=NEWEST_OFFSETS)) as rows:
                async for row in rows:
                    tick = decode_if(row.value, Tick)
                    if tick is None or (signer_of is not None and signer_of(row) != OWNER):
                        continue
                    if last is None or tick.number > last.number:
                        last = tick
        return last

    def _row(self, key: bytes, value: bytes | None) -> Row:
        return Row(self.topic, 0, key, value)


def is_report(key: bytes | None) -> bool:
    """Say whether a row is the report of a worker."""
    return key is not None and key.startswith(_PASSED)


def read_report(value: bytes) -> tuple[Passed, bool]:
    """Return what a worker has passed, and whether its stages have had work."""
    report = json.loads(value)
    return {stage: to_ticks(spans) for stage, spans in report["passed"].items()}, bool(report["busy"])


def _pulse_key(pulse: Pulse) -> bytes:
    return _PULSE + str(pulse.number).encode()


def _change_key(pulse: Pulse, change: ConfigChange) -> bytes:
    return _CHANGE + f"{pulse.number}\x1f{change.place}\x1f{change.topic.name}".encode()


async def require_owner_key(settings: StreamSettings) -> None:
    """Raise ConfigurationError if the log's configurations are signed, and the settings hold no key of the owner.

    Such a worker would take over the clock, and all others would refuse its ticks.
    """
    if settings.signing.fingerprint:
        return
    written_ticks = await TickerLog(settings).read()
    if any(signed_with for _, signed_with in written_ticks.configs.values()):
        raise ConfigurationError(
            f"the owner has signed the configurations in the log of {settings.kafka.bootstrap_servers}, and this "
            "worker has no key: the others would refuse its ticks. Set `signing: owner:`, or start the worker where "
            "the stack's secrets are (docs/security-doors.md)"
        )
