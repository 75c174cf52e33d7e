"""Rewards by alias become rewards of an episode, and so does what a user says next in a conversation.

A pause is an alias, too: what resumes an episode in a process that does not have its id writes its events under the
pause's name, as the episode's and its root's id. They get the id here, and wait for it as rewards do.

A conversation is an alias that passes from each of its episodes to the next. When it does, the episode before gets a
report: the signal `reply` with the user's words, or `silence` if no next one came within `silence_ms`.

A reward that comes before its alias waits; after the late horizon it is dropped as `unresolved_alias`. The stage
remembers resolved rewards as long, so that a repeated report does not follow an alias that names another episode now;
one that says something else under the same key is dropped as `duplicate_conflict`, as it is in assembly.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rollbus.schemas.ids import PAUSE_PREFIX, SEPARATOR, reward_event_id
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.drops import DropReason
from rollbus.schemas.records.events import AliasDeclared, EpisodeStarted, Event, RewardReported, Signal
from rollbus.schemas.topics import ALIASES, EPISODE_EVENTS
from rollbus.streams.stages.assembly.event_rows import content_checksum
from rollbus.streams.state.configured_stage import ConfiguredStage
from rollbus.streams.state.rows import KEPT_RECORD, KeptRecord, json_codec
from rollbus.streams.state.stage import Incoming, Outgoing, make_drop
from rollbus.streams.state.stage_state import StageState, keys_by_kind
from rollbus.streams.state.table import RowCodec, Table

NEXT_TURN = "next_turn"
"""Name of the reports that a conversation gives."""
BY_USER = "user"
"""Their source."""


@dataclass(frozen=True, slots=True)
class Target:
    """The episode that an alias names."""

    episode_id: str
    root_episode_id: str
    started_at_ms: int
    declared_ms: int
    """Stream time."""
    is_conversation: bool = False
    is_followed: bool = False
    """Whether it is known what the user did next: a signal about the last turn, or silence."""


_TARGET: RowCodec[Target] = json_codec(
    lambda row: [
        row.episode_id,
        row.root_episode_id,
        row.started_at_ms,
        row.declared_ms,
        row.is_conversation,
        row.is_followed,
    ],
    lambda plain: Target(*plain),
)


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """What is remembered of an event."""

    arrived_ms: int
    """Stream time."""
    checksum: int
    """Of its content; 0 for a declaration, whose id no caller chooses."""


_SEEN: RowCodec[SeenEvent] = json_codec(lambda row: [row.arrived_ms, row.checksum], lambda plain: SeenEvent(*plain))


class AliasState(StageState[AssemblyConfig]):
    """The configuration, aliases, events that wait for one, and the ids of events already seen."""

    def __init__(self, config: AssemblyConfig) -> None:
        self.targets: Table[Target] = Table("alias", _TARGET)
        self.waiting: Table[KeptRecord[Event]] = Table("wait", KEPT_RECORD)
        self.seen: Table[SeenEvent] = Table("seen", _SEEN)
        super().__init__(config, self.targets, self.waiting, self.seen)
        self.by_alias: dict[str, set[str]] = defaultdict(set)
        self.order = 0

    def rebuild(self) -> None:
        """Derive which events wait for which alias."""
        self.by_alias.clear()
        for key in self.waiting.rows:
            self.by_alias[key.partition(SEPARATOR)[0]].add(key)
        self.order = 1 + max((row.order for row in self.waiting.rows.values()), default=0)
        super().rebuild()

    def waiting_keys(self) -> Iterable[str]:
        """Return aliases, events that wait for one, and ids seen."""
        return keys_by_kind({"a": self.targets.rows, "w": self.waiting.rows, "s": self.seen.rows})

    def deadline(self, key: str) -> int | None:
        """Return when a row is forgotten, after the late horizon, or a conversation's silence is reported."""
        name = key[1:]
        if key[0] == "a":
            if (row := self.targets.get(name)) is None:
                return None
            silent_ms, forgotten_ms = self.silent_ms(row), self.forgotten_ms(name, row)
            return forgotten_ms if silent_ms is None else min(silent_ms, forgotten_ms)
        if key[0] == "w":
            arrived = waiting_row.arrived_ms if (waiting_row := self.waiting.get(name)) else None
        else:
            arrived = seen_event.arrived_ms if (seen_event := self.seen.get(name)) else None
        return None if arrived is None else self.clock.since(arrived) + self.config.value.late_horizon_ms

    def forgotten_ms(self, alias: str, row: Target) -> int:
        """Return when an alias is forgotten: that of a pause not before what it names is given up."""
        config = self.config.value
        wait_ms = config.late_horizon_ms
        return self.clock.since(row.declared_ms) + (max(wait_ms, config.pause_ms) if is_pause(alias) else wait_ms)

    def silent_ms(self, row: Target) -> int | None:
        """Return when a conversation's silence is to be reported; None if it never is, or the user did something."""
        silence_ms = self.config.value.silence_ms
        if silence_ms is None or not row.is_conversation or row.is_followed:
            return None
        return self.clock.since(row.declared_ms) + silence_ms


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
        """Take in one declaration, reward, event of what was resumed, tick or configuration."""
        state.ensure_rebuilt()
        record = incoming.record
        if isinstance(record, AliasDeclared):
            is_new = _remember(state, record.event_id, 0) is None
            return _declare(state, record, incoming.signer) if is_new else ()
        if isinstance(record, Event):
            return _take_in(state, record, incoming)
        return self.step_control(state, record)

    def pass_time(self, state: AliasState) -> Iterator[Outgoing]:
        """Forget what is older than the late horizon."""
        return _drop_expired(state)


def _take_in(state: AliasState, record: Event, incoming: Incoming) -> Iterable[Outgoing]:
    signer = incoming.signer
    if (
        isinstance(record, RewardReported)
        and record.source in state.config.value.signed_sources
        and signer != record.source
    ):
        detail = f"reward {record.name!r} without the signature of source {record.source!r}"
        return [_drop(state, record.event_id, DropReason.REWARD_NOT_ALLOWED, detail)]
    name = record.event_id if signer is None else f"{record.event_id}{SEPARATOR}{signer}"
    checksum = content_checksum(record)
    is_same = _remember(state, name, checksum)
    if is_same is None:
        return _resolve(state, record, incoming.data, name, signer)
    if is_same or _remember(state, f"{name}{SEPARATOR}{SEPARATOR}{checksum:08x}", checksum):
        return ()
    return [_drop(state, record.event_id, DropReason.DUPLICATE_CONFLICT, _describe(record))]


def _remember(state: AliasState, name: str, checksum: int) -> bool | None:
    """Remember an event from its first time on; return None then, else whether it says the same as then.

    Its name is its id, or its id and its signer: no other then takes its place beforehand.
    """
    seen_event = state.seen.get(name)
    if seen_event is not None:
        return seen_event.checksum == checksum
    state.seen.put(name, SeenEvent(state.clock.now_ms, checksum))
    state.due.watch("s" + name)
    return None


def _describe(event: Event) -> str:
    subject = f"alias {event.alias!r}" if isinstance(event, RewardReported) else event.root_episode_id
    return f"{type(event).__name__} of {subject}"


def _declare(state: AliasState, record: AliasDeclared, signer: str | None) -> Iterator[Outgoing]:
    """Let an alias name another episode; in a conversation, report to the episode before what the user says next."""
    before = state.targets.get(record.alias)
    if is_pause(record.root_episode_id):  # what resumed the episode pauses it again
        if before is not None:
            state.targets.put(record.alias, replace(before, declared_ms=state.clock.now_ms))
            state.due.watch("a" + record.alias)
        return
    if record.conversation and before is not None and before.is_conversation:
        if before.root_episode_id == record.root_episode_id:
            return  # another writer of the same episode, or a sub-agent's: the user said nothing new
        event_id = reward_event_id(before.episode_id, NEXT_TURN, record.event_id)
        yield _report_signal(before, "reply", event_id, record.occurred_at_ms, signer, record.message)
    target = Target(
        record.episode_id,
        record.root_episode_id,
        record.episode_started_at_ms,
        state.clock.now_ms,
        is_conversation=record.conversation,
    )
    keys = sorted(state.by_alias.pop(record.alias, set()), key=lambda key: state.waiting.rows[key].order)
    for key in keys:
        signer = next(iter(key.split(SEPARATOR)[2:]), None)
        waiting_event = state.waiting.rows[key].get()
        if _speaks_of_last_turn(waiting_event):
            target = replace(target, is_followed=True)
        yield _with_episode(waiting_event, target, signer)
        state.waiting.delete(key)
    state.targets.put(record.alias, target)
    state.due.watch("a" + record.alias)


def _resolve(state: AliasState, record: Event, data: bytes, name: str, signer: str | None) -> Iterator[Outgoing]:
    if is_pause(record.root_episode_id):
        alias = record.root_episode_id
    elif isinstance(record, RewardReported) and not record.episode_id:
        alias = record.alias or ""
    else:
        yield Outgoing(EPISODE_EVENTS, record.root_episode_id, record, signer)
        return
    if target := state.targets.get(alias):
        if _speaks_of_last_turn(record):
            state.targets.put(alias, replace(target, is_followed=True))
        yield _with_episode(record, target, signer)
        return
    key = f"{alias}{SEPARATOR}{name}"
    state.waiting.put(key, KeptRecord(data, state.clock.now_ms, state.order, record))
    state.order += 1
    state.by_alias[alias].add(key)
    state.due.watch("w" + key)


def _speaks_of_last_turn(event: Event) -> bool:
    """Say whether an event reports what a user did after the last turn."""
    return isinstance(event, RewardReported) and bool(event.signal) and event.turn_event_id is None


def is_pause(alias: str) -> bool:
    """Say whether a name is that of a pause."""
    return alias.startswith(PAUSE_PREFIX)


def _with_episode(event: Event, target: Target, signer: str | None) -> Outgoing:
    """Return the event with its episode; a reward by alias has no sequence, since no writer of that episode counts it.

    A sub-agent of what was resumed has an id of its own below the root's.
    """
    fields: dict[str, Any] = {"root_episode_id": target.root_episode_id}
    alias = event.root_episode_id
    if not is_pause(alias):
        fields["sequence"] = -1
    elif isinstance(event, EpisodeStarted):
        fields["parent_episode_id"] = _resolved_id(event.parent_episode_id or alias, alias, target)
    if event.episode_id in ("", alias):
        fields["episode_started_at_ms"] = target.started_at_ms
    fields["episode_id"] = _resolved_id(event.episode_id or alias, alias, target)
    return Outgoing(EPISODE_EVENTS, target.root_episode_id, replace(event, **fields), signer)


def _resolved_id(episode_id: str, alias: str, target: Target) -> str:
    return target.episode_id if episode_id == alias else target.root_episode_id + episode_id.removeprefix(alias)


def _report_signal(
    target: Target, signal: Signal, event_id: str, at_ms: int, signer: str | None, words: str | None = None
) -> Outgoing:
    """Return the report to a conversation's last episode of what its user did next."""
    record = RewardReported(
        event_id=event_id,
        episode_id=target.episode_id,
        root_episode_id=target.root_episode_id,
        writer_id="conversation",
        sequence=-1,
        occurred_at_ms=at_ms,
        episode_started_at_ms=target.started_at_ms,
        name=NEXT_TURN,
        source=BY_USER,
        comment=words,
        signal=signal,
    )
    return Outgoing(EPISODE_EVENTS, target.root_episode_id, record, signer)


def _pass_time_of_alias(state: AliasState, alias: str) -> Iterator[Outgoing]:
    """Report a conversation's silence, or forget an alias that is older than the late horizon."""
    row, now_ms = state.targets.get(alias), state.clock.now_ms
    if row is None:
        return
    silent_ms = state.silent_ms(row)
    if silent_ms is not None and silent_ms <= now_ms:
        event_id = reward_event_id(row.episode_id, NEXT_TURN, "silence")
        yield _report_signal(row, "silence", event_id, now_ms, None)
        state.targets.put(alias, replace(row, is_followed=True))
    if state.forgotten_ms(alias, row) <= now_ms:
        state.targets.delete(alias)
    else:
        state.due.watch("a" + alias)


def _drop_expired(state: AliasState) -> Iterator[Outgoing]:
    for key in state.due.due(state.clock.now_ms):
        name = key[1:]
        if key[0] == "a":
            yield from _pass_time_of_alias(state, name)
        elif key[0] == "s":
            state.seen.delete(name)
        else:
            alias, event_id, *_ = name.split(SEPARATOR)
            state.by_alias[alias].discard(name)
            if not state.by_alias[alias]:
                del state.by_alias[alias]
            state.waiting.delete(name)
            yield _drop(state, event_id, DropReason.UNRESOLVED_ALIAS, f"alias {alias!r}")


def _drop(state: AliasState, unit_id: str, reason: DropReason, detail: str) -> Outgoing:
    return make_drop("event", unit_id, reason, detail, stage=AliasStage.name, now_ms=state.clock.now_ms)
