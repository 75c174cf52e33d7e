"""Aliases to episodes: rewards by alias become rewards of an episode.

A reward that comes before its alias waits; after the late horizon it is dropped as `unresolved_alias`. What was
resolved is remembered as long, so that a repeated report does not follow an alias that has moved on.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rollbus.schemas.config import AssemblyConfig
from rollbus.schemas.control import ConfigApplied, Tick
from rollbus.schemas.drops import Drop, DropReason
from rollbus.schemas.events import AliasDeclared, RewardReported
from rollbus.schemas.topics import ALIASES, DROPS, EPISODE_EVENTS
from rollbus.streams.deadlines import Deadlines
from rollbus.streams.rows import INT, KEPT, Kept, json_codec
from rollbus.streams.stage import Incoming, Outgoing
from rollbus.streams.stage_state import Applied, StageState, misplaced
from rollbus.streams.state import RowCodec, Table

_SEPARATOR = "\x1f"
CONFIGURED_AS = "assembly"
"""Whose configuration holds here too, as far as its late horizon goes."""


@dataclass(frozen=True, slots=True)
class Target:
    """The episode that an alias stands for."""

    episode_id: str
    root_episode_id: str
    started_at_ms: int
    declared_ms: int
    """Stream time."""


_TARGET: RowCodec[Target] = json_codec(
    lambda row: [row.episode_id, row.root_episode_id, row.started_at_ms, row.declared_ms], lambda plain: Target(*plain)
)


class AliasState(StageState):
    """The configuration, aliases, rewards that wait for one, and the ids of events already seen."""

    def __init__(self, config: AssemblyConfig) -> None:
        self.config = Applied(config)
        self.targets: Table[Target] = Table("alias", _TARGET)
        self.waiting: Table[Kept[RewardReported]] = Table("wait", KEPT)
        self.seen: Table[int] = Table("seen", INT)
        super().__init__(self.config.table, self.targets, self.waiting, self.seen)
        self.by_alias: dict[str, set[str]] = defaultdict(set)
        self.order = 0
        self.due = Deadlines(self._deadline)

    def rebuild(self) -> None:
        """Derive which rewards wait for which alias."""
        self.by_alias.clear()
        for key in self.waiting.rows:
            self.by_alias[key.partition(_SEPARATOR)[0]].add(key)
        self.order = 1 + max((row.order for row in self.waiting.rows.values()), default=0)
        self.watch_all()

    def watch_all(self) -> None:
        """Look at every deadline anew, after a restore or with another configuration."""
        tables: dict[str, dict[str, Any]] = {"a": self.targets.rows, "w": self.waiting.rows, "s": self.seen.rows}
        self.due.rebuild(kind + key for kind, rows in tables.items() for key in rows)

    def _deadline(self, key: str) -> int | None:
        name = key[1:]
        if key[0] == "a":
            arrived = row.declared_ms if (row := self.targets.get(name)) else None
        elif key[0] == "w":
            arrived = kept.arrived_ms if (kept := self.waiting.get(name)) else None
        else:
            arrived = self.seen.get(name)
        return None if arrived is None else self.clock.since(arrived) + self.config.value.late_horizon_ms


class AliasStage:
    """Resolves aliases; one instance serves all partitions."""

    name = "alias"
    input = ALIASES

    def __init__(self, config: AssemblyConfig) -> None:
        self._config = config

    def new_state(self) -> AliasState:
        """Return the empty state of a partition."""
        return AliasState(self._config)

    def step(self, state: AliasState, incoming: Incoming) -> Iterator[Outgoing]:
        """Take in one declaration, reward, tick or configuration."""
        state.fresh()
        whole = state.whole(incoming)
        if whole is None:
            return
        record = whole.record
        if isinstance(record, Tick):
            if state.clock.observe(record):
                yield from _expire(state)
        elif isinstance(record, AliasDeclared):
            if _first_time(state, record.event_id):
                yield from _declare(state, record)
        elif isinstance(record, RewardReported):
            if _first_time(state, record.event_id):
                yield from _resolve(state, record, whole.data)
        elif isinstance(record, ConfigApplied):
            if record.stage == CONFIGURED_AS and record.run_id is None:
                state.config.apply(record)
                state.watch_all()
        else:
            raise misplaced(record, self.input)


def _first_time(state: AliasState, event_id: str) -> bool:
    if state.seen.get(event_id) is not None:
        return False
    state.seen.put(event_id, state.clock.now_ms)
    state.due.watch("s" + event_id)
    return True


def _declare(state: AliasState, record: AliasDeclared) -> Iterator[Outgoing]:
    target = Target(record.episode_id, record.root_episode_id, record.episode_started_at_ms, state.clock.now_ms)
    state.targets.put(record.alias, target)
    state.due.watch("a" + record.alias)
    keys = state.by_alias.pop(record.alias, set())
    for key in sorted(keys, key=lambda key: state.waiting.rows[key].order):
        yield _addressed(state.waiting.rows[key].get(), target)
        state.waiting.delete(key)


def _resolve(state: AliasState, record: RewardReported, data: bytes) -> Iterator[Outgoing]:
    if record.episode_id:
        yield Outgoing(EPISODE_EVENTS, record.root_episode_id, record)
        return
    alias = record.alias or ""
    if target := state.targets.get(alias):
        yield _addressed(record, target)
        return
    key = f"{alias}{_SEPARATOR}{record.event_id}"
    state.waiting.put(key, Kept(data, state.clock.now_ms, state.order, record))
    state.order += 1
    state.by_alias[alias].add(key)
    state.due.watch("w" + key)


def _addressed(reward: RewardReported, target: Target) -> Outgoing:
    """The reward with its episode; without a sequence, since it counts in no writer of that episode."""
    record = replace(
        reward,
        episode_id=target.episode_id,
        root_episode_id=target.root_episode_id,
        episode_started_at_ms=target.started_at_ms,
        sequence=-1,
    )
    return Outgoing(EPISODE_EVENTS, target.root_episode_id, record)


def _expire(state: AliasState) -> Iterator[Outgoing]:
    for key in state.due.due(state.clock.now_ms):
        name = key[1:]
        if key[0] == "a":
            state.targets.delete(name)
        elif key[0] == "s":
            state.seen.delete(name)
        else:
            alias, _, event_id = name.partition(_SEPARATOR)
            state.by_alias[alias].discard(name)
            if not state.by_alias[alias]:
                del state.by_alias[alias]
            state.waiting.delete(name)
            yield _drop(state, event_id, DropReason.UNRESOLVED_ALIAS, f"alias {alias!r}")
    for digest in state.lost_parts():
        yield _drop(state, digest, DropReason.MISSING_CHUNK, "parts of a large record never came")


def _drop(state: AliasState, unit_id: str, reason: DropReason, detail: str) -> Outgoing:
    fields: dict[str, Any] = {"unit": "event", "unit_id": unit_id, "stage": AliasStage.name}
    return Outgoing(DROPS, unit_id, Drop(**fields, reason=reason, detail=detail, dropped_at_ms=state.clock.now_ms))
