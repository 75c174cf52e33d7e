"""Rewards by alias become rewards of an episode.

A reward that comes before its alias waits; after the late horizon it is dropped as `unresolved_alias`. The stage
remembers resolved rewards as long, so that a repeated report does not follow an alias that names another episode now.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.events import AliasDeclared, RewardReported
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS
from rollbus.streams.state.configured import ConfiguredStage
from rollbus.streams.state.rows import INT, KEPT, Kept, json_codec
from rollbus.streams.state.stage import Incoming, Outgoing, dropped
from rollbus.streams.state.stage_state import StageState, keys_by_kind
from rollbus.streams.state.table import RowCodec, Table

_SEPARATOR = "\x1f"


@dataclass(frozen=True, slots=True)
class Target:
    """The episode that an alias names."""

    episode_id: str
    root_episode_id: str
    started_at_ms: int
    declared_ms: int
    """Stream time."""


_TARGET: RowCodec[Target] = json_codec(
    lambda row: [row.episode_id, row.root_episode_id, row.started_at_ms, row.declared_ms], lambda plain: Target(*plain)
)


class AliasState(StageState[AssemblyConfig]):
    """The configuration, aliases, rewards that wait for one, and the ids of events already seen."""

    def __init__(self, config: AssemblyConfig) -> None:
        self.targets: Table[Target] = Table("alias", _TARGET)
        self.waiting: Table[Kept[RewardReported]] = Table("wait", KEPT)
        self.seen: Table[int] = Table("seen", INT)
        super().__init__(config, self.targets, self.waiting, self.seen)
        self.by_alias: dict[str, set[str]] = defaultdict(set)
        self.order = 0

    def rebuild(self) -> None:
        """Derive which rewards wait for which alias."""
        self.by_alias.clear()
        for key in self.waiting.rows:
            self.by_alias[key.partition(_SEPARATOR)[0]].add(key)
        self.order = 1 + max((row.order for row in self.waiting.rows.values()), default=0)
        super().rebuild()

    def waiting_keys(self) -> Iterable[str]:
        """Return aliases, rewards that wait for one, and ids seen."""
        return keys_by_kind({"a": self.targets.rows, "w": self.waiting.rows, "s": self.seen.rows})

    def deadline(self, key: str) -> int | None:
        """Return when a row is forgotten: after the late horizon."""
        name = key[1:]
        if key[0] == "a":
            arrived = row.declared_ms if (row := self.targets.get(name)) else None
        elif key[0] == "w":
            arrived = waiting_row.arrived_ms if (waiting_row := self.waiting.get(name)) else None
        else:
            arrived = self.seen.get(name)
        return None if arrived is None else self.clock.since(arrived) + self.config.value.late_horizon_ms


class AliasStage(ConfiguredStage[AliasState]):
    """Resolves aliases; one instance serves all partitions."""

    name = "alias"
    input = ALIASES
    configured_as = "assembly"
    """Its late horizon holds here too."""

    def __init__(self, config: AssemblyConfig) -> None:
        self._config = config

    def new_state(self) -> AliasState:
        """Return the empty state of a partition."""
        return AliasState(self._config)

    def step(self, state: AliasState, incoming: Incoming) -> Iterable[Outgoing]:
        """Take in one declaration, reward, tick or configuration."""
        state.ensure_rebuilt()
        record = incoming.record
        if isinstance(record, AliasDeclared):
            return _resolve_waiting(state, record) if _is_first_time(state, record.event_id) else ()
        if isinstance(record, RewardReported):
            return _take_in(state, record, incoming)
        return self.step_control(state, record)

    def pass_time(self, state: AliasState) -> Iterator[Outgoing]:
        """Forget what is older than the late horizon."""
        return _drop_expired(state)


def _take_in(state: AliasState, record: RewardReported, incoming: Incoming) -> Iterable[Outgoing]:
    signer = incoming.signer
    if record.source in state.config.value.signed_sources and signer != record.source:
        detail = f"reward {record.name!r} without the signature of source {record.source!r}"
        return [_drop(state, record.event_id, DropReason.REWARD_NOT_ALLOWED, detail)]
    name = record.event_id if signer is None else f"{record.event_id}{_SEPARATOR}{signer}"
    return _resolve(state, record, incoming.data, name, signer) if _is_first_time(state, name) else ()


def _is_first_time(state: AliasState, name: str) -> bool:
    """Say whether an event is new, by its id, or its id and its signer: no other then takes its place beforehand."""
    if state.seen.get(name) is not None:
        return False
    state.seen.put(name, state.clock.now_ms)
    state.due.watch("s" + name)
    return True


def _resolve_waiting(state: AliasState, record: AliasDeclared) -> Iterator[Outgoing]:
    target = Target(record.episode_id, record.root_episode_id, record.episode_started_at_ms, state.clock.now_ms)
    state.targets.put(record.alias, target)
    state.due.watch("a" + record.alias)
    keys = state.by_alias.pop(record.alias, set())
    for key in sorted(keys, key=lambda key: state.waiting.rows[key].order):
        signer = next(iter(key.split(_SEPARATOR)[2:]), None)
        yield _with_episode(state.waiting.rows[key].get(), target, signer)
        state.waiting.delete(key)


def _resolve(
    state: AliasState, record: RewardReported, data: bytes, name: str, signer: str | None
) -> Iterator[Outgoing]:
    if record.episode_id:
        yield Outgoing(EPISODE_EVENTS, record.root_episode_id, record, signer)
        return
    alias = record.alias or ""
    if target := state.targets.get(alias):
        yield _with_episode(record, target, signer)
        return
    key = f"{alias}{_SEPARATOR}{name}"
    state.waiting.put(key, Kept(data, state.clock.now_ms, state.order, record))
    state.order += 1
    state.by_alias[alias].add(key)
    state.due.watch("w" + key)


def _with_episode(reward: RewardReported, target: Target, signer: str | None) -> Outgoing:
    """Return the reward with its episode; without a sequence, since no writer of that episode counts it."""
    record = replace(
        reward,
        episode_id=target.episode_id,
        root_episode_id=target.root_episode_id,
        episode_started_at_ms=target.started_at_ms,
        sequence=-1,
    )
    return Outgoing(EPISODE_EVENTS, target.root_episode_id, record, signer)


def _drop_expired(state: AliasState) -> Iterator[Outgoing]:
    for key in state.due.due(state.clock.now_ms):
        name = key[1:]
        if key[0] == "a":
            state.targets.delete(name)
        elif key[0] == "s":
            state.seen.delete(name)
        else:
            alias, event_id, *_ = name.split(_SEPARATOR)
            state.by_alias[alias].discard(name)
            if not state.by_alias[alias]:
                del state.by_alias[alias]
            state.waiting.delete(name)
            yield _drop(state, event_id, DropReason.UNRESOLVED_ALIAS, f"alias {alias!r}")


def _drop(state: AliasState, unit_id: str, reason: DropReason, detail: str) -> Outgoing:
    return dropped("event", unit_id, reason, detail, stage=AliasStage.name, now_ms=state.clock.now_ms)
