"""Episode events to trajectories, in the partition of the root episode.

An episode closes when it has ended and every event of every writer is in, or when its grace or its inactivity is
over. A closed one goes out at once. A hole makes it untrainable: it is kept for analytics and counted as
`missing_events`; without its start its task is unknown, and nothing goes out. A stub stays for the late horizon,
so that later rewards become revisions and anything else that comes late is counted. Where the configuration passes a
root's rewards down, what changes them revises its sub-agents' trajectories too.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.drops import PRODUCER_TOO_LARGE, DropReason, DropUnit
from rollbus.schemas.records.events import EpisodeStarted, Event, Excluded, RewardReported
from rollbus.schemas.records.trajectories import Reward, RewardRevised
from rollbus.schemas.topics import EPISODE_EVENTS, TRAJECTORIES
from rollbus.streams.stages.assembly.rows import KINDS, NOT_ALLOWED, Stub
from rollbus.streams.stages.assembly.state import AssemblyState
from rollbus.streams.stages.assembly.trajectory import Closing, build
from rollbus.streams.state.configured import ConfiguredStage
from rollbus.streams.state.stage import Incoming, Outgoing, dropped


class AssemblyStage(ConfiguredStage[AssemblyState]):
    """Assembles episodes; one instance serves all partitions."""

    name = configured_as = "assembly"
    input = EPISODE_EVENTS

    def __init__(self, config: AssemblyConfig) -> None:
        self._config = config

    def new_state(self) -> AssemblyState:
        """Return the empty state of a partition."""
        return AssemblyState(self._config)

    def step(self, state: AssemblyState, incoming: Incoming) -> Iterable[Outgoing]:
        """Take in one event, tick or configuration."""
        state.ensure_rebuilt()
        if type(incoming.record) in KINDS:
            return _admit(state, incoming.record, incoming.data, incoming.signer)
        return self.step_control(state, incoming.record)

    def pass_time(self, state: AssemblyState) -> Iterator[Outgoing]:
        """Close the episodes whose waiting is over, and forget those whose late horizon is."""
        return _pass_time(state)


def _admit(state: AssemblyState, event: Event, data: bytes, signer: str | None) -> Iterable[Outgoing]:
    key, comes_again = state.look_up(event, data, signer)
    if comes_again is not None:
        return () if comes_again else _refuse(state, event, data, DropReason.DUPLICATE_CONFLICT)
    stub = state.stubs.get(event.episode_id)
    if stub is not None and stub.excluded:
        return _refuse(state, event, data, DropReason.EXCLUDED)
    if type(event) is RewardReported and not state.config.value.allows(event.name, event.source, signer):
        return _count_not_allowed(state, key, event, data, stub)
    if stub is None:
        return _keep(state, key, event, data)
    if isinstance(event, RewardReported | Excluded):
        return _revise(state, key, event, data, stub)
    return _refuse(state, event, data, DropReason.LATE_EVENT)


def _keep(state: AssemblyState, key: str, event: Event, data: bytes) -> Iterable[Outgoing]:
    is_complete = state.keep_open(key, event, data, KINDS[type(event)])
    if isinstance(event, Excluded):
        state.close(event.episode_id, Stub(state.clock.now_ms, None, excluded=True))
        reason = DropReason.TOO_LARGE if event.reason == PRODUCER_TOO_LARGE else DropReason.EXCLUDED
        drop = _drop(state, "episode", event.episode_id, reason, event.reason)
        return [drop, *_revise_family(state, event.root_episode_id)]
    finished = _finish(state, event.episode_id) if is_complete else ()
    if type(event) is EpisodeStarted and state.config.value.pass_down:
        return chain(_revise_family(state, event.root_episode_id), finished)
    return finished


def _count_not_allowed(
    state: AssemblyState, key: str, event: RewardReported, data: bytes, stub: Stub | None
) -> Iterator[Outgoing]:
    """Count a reward that its source may not set; its place in the writer's sequence is taken all the same."""
    detail = f"reward {event.name!r} by source {event.source!r}, episode {event.episode_id}"
    yield _drop(state, "event", event.event_id, DropReason.REWARD_NOT_ALLOWED, detail)
    if stub is not None:
        state.keep_late(key, event, data, NOT_ALLOWED)
    elif state.keep_open(key, event, data, NOT_ALLOWED):
        yield from _finish(state, event.episode_id)


def _revise(
    state: AssemblyState, key: str, event: RewardReported | Excluded, data: bytes, stub: Stub
) -> Iterator[Outgoing]:
    if stub.trajectory_id is None and isinstance(event, RewardReported):
        yield from _refuse(state, event, data, DropReason.ORPHANED_REWARD)
        return
    state.keep_late(key, event, data, KINDS[type(event)])
    excluded = isinstance(event, Excluded)
    if excluded:
        state.families.remove_child(event.episode_id)
    yield from _revise_rewards(state, event.episode_id, stub, excluded=excluded)
    yield from _revise_family(state, stub.root or event.episode_id)


def _revise_family(state: AssemblyState, root: str) -> Iterator[Outgoing]:
    """Revise the closed episodes of a closed root whose rewards in force have changed."""
    if not state.config.value.pass_down or state.stubs.get(root) is None:
        return
    for child in state.families.children_of(root):
        if stub := state.stubs.get(child):
            yield from _revise_rewards(state, child, stub)


def _revise_rewards(state: AssemblyState, episode_id: str, stub: Stub, *, excluded: bool = False) -> Iterator[Outgoing]:
    rewards = state.rewards_in_force(episode_id, stub.root, stub.agent)
    if excluded or _values(rewards) != stub.rewards:
        stub = replace(stub, revision=stub.revision + 1, rewards=_values(rewards), excluded=excluded)
        state.keep_stub(episode_id, stub)
        if stub.trajectory_id is not None:
            yield _revision(state, episode_id, stub, rewards)


def _refuse(state: AssemblyState, event: Event, data: bytes, reason: DropReason) -> Iterator[Outgoing]:
    """Count an event that cannot be used, once however often it comes."""
    if state.keep_refused(event, data):
        yield _drop(state, "event", event.event_id, reason, f"{type(event).__name__} of episode {event.episode_id}")


def _pass_time(state: AssemblyState) -> Iterator[Outgoing]:
    now_ms = state.clock.now_ms
    for episode_id in state.due.due(now_ms):
        if episode_id in state.stubs.rows:
            state.forget(episode_id)
        elif state.open[episode_id].lives:
            yield from _finish(state, episode_id)
        else:
            yield from _drop_orphans(state, episode_id, state.rewards_of(episode_id))
            state.close(episode_id, Stub(now_ms, None))


def _finish(state: AssemblyState, episode_id: str) -> Iterator[Outgoing]:
    """Close an episode: its trajectory, or a drop where its start is missing; and a drop for what is missing."""
    holes, now_ms = state.open[episode_id].holes(), state.clock.now_ms
    events = state.events_of(episode_id)
    trajectory = build(
        events, state.config.value, state.config.hash, Closing(now_ms, holes, state.open[episode_id].first_ms)
    )
    if trajectory is None or holes:
        detail = ", ".join(f"{writer}: {count if count > 0 else '?'}" for writer, count in holes.items())
        detail = f"missing by writer: {detail}" if holes else "no EpisodeStarted"
        yield _drop(state, "episode", episode_id, DropReason.MISSING_EVENTS, detail)
    if trajectory is None:
        yield from _drop_orphans(state, episode_id, [each for each in events if isinstance(each, RewardReported)])
        state.close(episode_id, Stub(now_ms, None))
        return
    root = trajectory.root_episode_id if trajectory.root_episode_id != episode_id else ""
    if root and state.config.value.pass_down:
        trajectory = replace(trajectory, rewards=state.rewards_in_force(episode_id, root, trajectory.agent))
    yield Outgoing(TRAJECTORIES, trajectory.group_hint, trajectory)
    values, agent = _values(trajectory.rewards), trajectory.agent if root else ""
    stub = Stub(now_ms, trajectory.trajectory_id, trajectory.group_hint, rewards=values, root=root, agent=agent)
    state.close(episode_id, stub)
    yield from _revise_family(state, root or episode_id)


def _drop_orphans(state: AssemblyState, episode_id: str, rewards: Iterable[RewardReported]) -> Iterator[Outgoing]:
    for event_id in sorted(reward.event_id for reward in rewards):
        yield _drop(state, "event", event_id, DropReason.ORPHANED_REWARD, f"episode {episode_id}")


def _values(rewards: tuple[Reward, ...]) -> tuple[tuple[str, float], ...]:
    return tuple((reward.event_id, reward.value) for reward in rewards)


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
    return dropped(unit, unit_id, reason, detail, stage=AssemblyStage.name, now_ms=state.clock.now_ms)
