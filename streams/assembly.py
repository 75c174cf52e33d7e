"""Episode events to trajectories, in the partition of the root episode.

An episode closes when it has ended and every event of every writer is in, or when its grace or its inactivity is
over. A closed one goes out at once. A hole makes it untrainable: it is kept for analytics and counted as
`missing_events`; without its start nobody knows its task, and nothing goes out. A stub stays for the late horizon,
so that later rewards become revisions and anything else that comes late is counted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rollbus.schemas.chunks import Chunk
from rollbus.schemas.config import AssemblyConfig
from rollbus.schemas.control import ConfigApplied, Tick
from rollbus.schemas.drops import Drop, DropReason, DropUnit
from rollbus.schemas.events import Event, Excluded, RewardReported
from rollbus.schemas.topics import DROPS, EPISODE_EVENTS, TRAJECTORIES
from rollbus.schemas.trajectories import Reward, RewardRevised, Trajectory
from rollbus.streams.assembly_build import Closing, build
from rollbus.streams.assembly_rewards import is_sent_again, standing
from rollbus.streams.assembly_state import (
    KINDS,
    NOT_ALLOWED,
    REFUSED,
    SEPARATOR,
    AssemblyState,
    EventRow,
    Stub,
    checksum,
    event_of,
    key_within,
)
from rollbus.streams.stage import Incoming, Outgoing
from rollbus.streams.stage_state import misplaced

_NO_PART = (REFUSED, NOT_ALLOWED)
"""Kinds of rows that no trajectory is made of."""


class AssemblyStage:
    """Assembles episodes; one instance serves all partitions."""

    name = "assembly"
    input = EPISODE_EVENTS

    def __init__(self, config: AssemblyConfig) -> None:
        self._config = config

    def new_state(self) -> AssemblyState:
        """Return the empty state of a partition."""
        return AssemblyState(self._config)

    def step(self, state: AssemblyState, incoming: Incoming) -> Iterable[Outgoing]:
        """Take in one event, chunk, tick or configuration."""
        state.fresh()
        if type(incoming.record) in KINDS:
            return _admit(state, incoming.record, incoming.data)
        return self._take_in_other(state, incoming)

    def _take_in_other(self, state: AssemblyState, incoming: Incoming) -> Iterator[Outgoing]:
        record = incoming.record
        if isinstance(record, Chunk):
            whole = state.whole(incoming)
            if whole is not None:
                yield from self.step(state, whole)
        elif isinstance(record, Tick):
            if state.clock.observe(record):
                yield from _pass_time(state)
        elif isinstance(record, ConfigApplied):
            if record.stage == self.name and record.run_id is None:
                state.config.apply(record)
                state.due.rebuild([*state.open, *state.stubs.rows])
        else:
            raise misplaced(record, self.input)


def _admit(state: AssemblyState, event: Event, data: bytes) -> Iterable[Outgoing]:
    within = key_within(event)
    key = f"{event.episode_id}{SEPARATOR}{within}"
    stub = state.stubs.get(event.episode_id)
    known = state.events.get(key)
    known_sum = _checksum_of(known) if known else stub.seen.get(within) if stub else None
    if known_sum is not None:
        if known_sum == checksum(data) or (known and event.sequence < 0 and is_sent_again(event_of(known), event)):
            return ()
        return _refuse(state, event, data, DropReason.DUPLICATE_CONFLICT)
    if type(event) is RewardReported and not state.config.value.allows(event.name, event.source):
        return _not_allowed(state, key, event, data, stub)
    if stub is None:
        return _keep(state, key, event, data)
    if stub.excluded:
        return _refuse(state, event, data, DropReason.EXCLUDED)
    if isinstance(event, RewardReported | Excluded):
        return _revise(state, key, event, data, stub)
    return _refuse(state, event, data, DropReason.LATE_EVENT)


def _keep(state: AssemblyState, key: str, event: Event, data: bytes) -> Iterable[Outgoing]:
    episode = state.keep(key, event, EventRow(KINDS[type(event)], state.clock.now_ms, data, event))
    if isinstance(event, Excluded):
        _close(state, event.episode_id, Stub(state.clock.now_ms, None, excluded=True))
        return [_drop(state, "episode", event.episode_id, DropReason.EXCLUDED, event.reason)]
    return _finish(state, event.episode_id) if episode.complete() else ()


def _not_allowed(
    state: AssemblyState, key: str, event: RewardReported, data: bytes, stub: Stub | None
) -> Iterator[Outgoing]:
    """Count a reward that its source may not set; its place in the writer's sequence is taken all the same."""
    row = EventRow(NOT_ALLOWED, state.clock.now_ms, data, event)
    detail = f"reward {event.name!r} by source {event.source!r}, episode {event.episode_id}"
    yield _drop(state, "event", event.event_id, DropReason.REWARD_NOT_ALLOWED, detail)
    if stub is not None:
        state.put(key, row)
    elif state.keep(key, event, row).complete():
        yield from _finish(state, event.episode_id)


def _revise(
    state: AssemblyState, key: str, event: RewardReported | Excluded, data: bytes, stub: Stub
) -> Iterator[Outgoing]:
    if stub.trajectory_id is None and isinstance(event, RewardReported):
        yield from _refuse(state, event, data, DropReason.ORPHANED_REWARD)
        return
    state.put(key, EventRow(KINDS[type(event)], state.clock.now_ms, data, event))
    rewards = standing(_rewards(state, event.episode_id))
    excluded = isinstance(event, Excluded)
    if excluded or _values(rewards) != stub.rewards:
        stub = replace(stub, revision=stub.revision + 1, rewards=_values(rewards), excluded=excluded)
        state.stubs.put(event.episode_id, stub)
        if stub.trajectory_id is not None:
            yield _revision(state, event.episode_id, stub, rewards)


def _refuse(state: AssemblyState, event: Event, data: bytes, reason: DropReason) -> Iterator[Outgoing]:
    """Count an event that cannot be used, once however often it comes."""
    mark = checksum(data)
    key = SEPARATOR.join((event.episode_id, "", "-1", f"{event.event_id}{mark:08x}"))
    if state.events.get(key) is None:
        state.put(key, EventRow(REFUSED, state.clock.now_ms, mark.to_bytes(4, "big")))
        yield _drop(state, "event", event.event_id, reason, f"{type(event).__name__} of episode {event.episode_id}")


def _pass_time(state: AssemblyState) -> Iterator[Outgoing]:
    now_ms = state.clock.now_ms
    for episode_id in state.due.due(now_ms):
        if episode_id in state.stubs.rows:
            _forget(state, episode_id)
        elif state.open[episode_id].lives:
            yield from _finish(state, episode_id)
        else:
            for reward in sorted(_rewards(state, episode_id), key=lambda reward: reward.event_id):
                yield _drop(state, "event", reward.event_id, DropReason.ORPHANED_REWARD, f"episode {episode_id}")
            _close(state, episode_id, Stub(now_ms, None))
    for digest in state.chunks.expire(now_ms - state.config.value.inactivity_ms):
        yield _drop(state, "event", digest, DropReason.MISSING_CHUNK, "parts of a large record never came")


def _finish(state: AssemblyState, episode_id: str) -> Iterator[Outgoing]:
    """Close an episode: its trajectory, or a drop where its start is missing; and a drop for what is missing."""
    episode, now_ms = state.open[episode_id], state.clock.now_ms
    holes = episode.holes()
    events = [event_of(row) for key in episode.keys if (row := state.events.rows[key]).kind not in _NO_PART]
    trajectory = build(events, state.config.value, state.config.hash, Closing(now_ms, holes))
    if trajectory is None or holes:
        detail = ", ".join(f"{writer}: {count if count > 0 else '?'}" for writer, count in holes.items())
        detail = f"missing by writer: {detail}" if holes else "no EpisodeStarted"
        yield _drop(state, "episode", episode_id, DropReason.MISSING_EVENTS, detail)
    if trajectory is None:
        rewards = sorted(event.event_id for event in events if isinstance(event, RewardReported))
        for event_id in rewards:
            yield _drop(state, "event", event_id, DropReason.ORPHANED_REWARD, f"episode {episode_id}")
        _close(state, episode_id, Stub(now_ms, None))
        return
    yield Outgoing(TRAJECTORIES, trajectory.group_hint, trajectory)
    _close(state, episode_id, _stub_of(trajectory, now_ms))


def _stub_of(trajectory: Trajectory, now_ms: int) -> Stub:
    return Stub(now_ms, trajectory.trajectory_id, trajectory.group_hint, rewards=_values(trajectory.rewards))


def _close(state: AssemblyState, episode_id: str, stub: Stub) -> None:
    """Replace an open episode's rows by its new stub; rewards stay, since later ones may supersede them."""
    late: list[str] = []
    rows, of_episode = state.events.rows, len(episode_id) + len(SEPARATOR)
    for key in state.open.pop(episode_id).keys:
        row = rows[key]
        if row.kind == REFUSED or (row.kind == "r" and not stub.excluded):
            late.append(key)
        else:
            stub.seen[key[of_episode:]] = checksum(row.data)
            state.events.delete(key)
    state.late[episode_id] = late
    state.stubs.put(episode_id, stub)
    state.due.watch(episode_id)


def _forget(state: AssemblyState, episode_id: str) -> None:
    for key in state.late.pop(episode_id, ()):
        state.events.delete(key)
    state.stubs.delete(episode_id)


def _rewards(state: AssemblyState, episode_id: str) -> list[RewardReported]:
    """Reward reports of an episode, open or closed."""
    episode = state.open.get(episode_id)
    keys = episode.keys if episode else state.late.get(episode_id, [])
    return [event_of(row) for key in keys if (row := state.events.rows[key]).kind == "r"]


def _values(rewards: tuple[Reward, ...]) -> tuple[tuple[str, float], ...]:
    return tuple((reward.event_id, reward.value) for reward in rewards)


def _checksum_of(row: EventRow) -> int:
    return int.from_bytes(row.data, "big") if row.kind == REFUSED else checksum(row.data)


def _revision(state: AssemblyState, episode_id: str, stub: Stub, rewards: tuple[Reward, ...]) -> Outgoing:
    revised = RewardRevised(
        trajectory_id=stub.trajectory_id or "",
        episode_id=episode_id,
        group_hint=stub.group_hint,
        revision=stub.revision,
        rewards=rewards,
        excluded=stub.excluded,
        revised_at_ms=state.clock.now_ms,
    )
    return Outgoing(TRAJECTORIES, stub.group_hint, revised)


def _drop(state: AssemblyState, unit: DropUnit, unit_id: str, reason: DropReason, detail: str) -> Outgoing:
    fields: dict[str, Any] = {"unit": unit, "unit_id": unit_id, "reason": reason.value, "detail": detail}
    return Outgoing(DROPS, unit_id, Drop(**fields, stage=AssemblyStage.name, dropped_at_ms=state.clock.now_ms))
