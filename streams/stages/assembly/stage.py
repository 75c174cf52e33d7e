"""Episode events to trajectories, in the partition of the root episode.

An episode closes when it has ended and every event of every writer is in, or when its grace, its pause or its
inactivity is over. A closed one goes out at once. A hole makes it untrainable: it is kept for analytics and counted as
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
from rollbus.schemas.records.trajectories import LastTurn, Reward, RewardRevised
from rollbus.schemas.topics import EPISODE_EVENTS, TRAJECTORIES
from rollbus.streams.stages.assembly.event_rows import not_after
from rollbus.streams.stages.assembly.rewards import changes, without_words
from rollbus.streams.stages.assembly.rows import KINDS, NOT_ALLOWED, Stub
from rollbus.streams.stages.assembly.state import AssemblyState
from rollbus.streams.stages.assembly.trajectory import Closing, build, last_turn_of
from rollbus.streams.state.configured_stage import ConfiguredStage
from rollbus.streams.state.stage import Incoming, Outgoing, make_drop


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
            return _admit(state, not_after(incoming.record, incoming.taken_ms), incoming)
        return self.step_control(state, incoming.record)

    def pass_time(self, state: AssemblyState) -> Iterator[Outgoing]:
        """Close the episodes whose waiting is over, and forget those whose late horizon is."""
        return _pass_time(state)


def _admit(state: AssemblyState, event: Event, incoming: Incoming) -> Iterable[Outgoing]:
    key, comes_again = state.look_up(event, incoming)
    if comes_again is not None:
        return () if comes_again else _refuse(state, event, incoming.data, DropReason.DUPLICATE_CONFLICT)
    stub = state.stubs.get(event.episode_id)
    if stub is not None and stub.excluded:
        return _refuse(state, event, incoming.data, DropReason.EXCLUDED)
    if type(event) is RewardReported:
        if not state.config.value.allows(event.name, event.source, incoming.signer):
            return _count_reward(state, key, event, incoming, DropReason.REWARD_NOT_ALLOWED)
        if not state.has_room(event, incoming.signer or ""):
            return _count_reward(state, key, event, incoming, DropReason.TOO_MANY_REPORTS)
    if stub is None:
        return _keep(state, key, event, incoming)
    if isinstance(event, RewardReported | Excluded):
        return _revise(state, key, event, incoming, stub)
    return _refuse(state, event, incoming.data, DropReason.LATE_EVENT)


def _keep(state: AssemblyState, key: str, event: Event, incoming: Incoming) -> Iterable[Outgoing]:
    is_complete = state.keep_open(key, event, incoming, KINDS[type(event)])
    if isinstance(event, Excluded):
        state.close(event.episode_id, Stub(state.clock.now_ms, None, excluded=True))
        reason = DropReason.TOO_LARGE if event.reason == PRODUCER_TOO_LARGE else DropReason.EXCLUDED
        drop = _drop(state, "episode", event.episode_id, reason, event.reason)
        return [drop, *_consider(state, event.root_episode_id, at_once=True)]
    finished = _finish(state, event.episode_id) if is_complete else ()
    if type(event) is EpisodeStarted and state.config.value.pass_down:
        return chain(_consider(state, event.root_episode_id), finished)
    return finished


def _count_reward(
    state: AssemblyState, key: str, event: RewardReported, incoming: Incoming, reason: DropReason
) -> Iterator[Outgoing]:
    """Count a reward that does not count; its place in the writer's sequence is taken all the same."""
    if event.sequence < 0 or event.episode_id in state.stubs.rows:
        if not state.keep_refused(event, incoming.data):
            return
    elif state.keep_open(key, event, incoming, NOT_ALLOWED):
        yield from _finish(state, event.episode_id)
    by = f"source {event.source!r}" + (f" and principal {incoming.signer!r}" if incoming.signer else "")
    if event.source in state.config.value.signed_sources and event.source != incoming.signer:
        by += ", without the signature of the source"
    yield _drop(state, "event", event.event_id, reason, f"reward {event.name!r} by {by}, episode {event.episode_id}")


def _revise(
    state: AssemblyState, key: str, event: RewardReported | Excluded, incoming: Incoming, stub: Stub
) -> Iterator[Outgoing]:
    if stub.trajectory_id is None and isinstance(event, RewardReported):
        yield from _refuse(state, event, incoming.data, DropReason.ORPHANED_REWARD)
        return
    state.keep_late(key, event, incoming, KINDS[type(event)])
    if isinstance(event, RewardReported):
        yield from _consider(state, event.episode_id)
        return
    state.families.remove_child(event.episode_id)
    yield from _revise_rewards(state, event.episode_id, replace(stub, is_waiting=False), excluded=True)
    yield from _consider(state, stub.root or event.episode_id, at_once=True)


def _consider(state: AssemblyState, episode_id: str, *, at_once: bool = False) -> Iterator[Outgoing]:
    """Look at the reports on a closed episode, and revise it, and its family, if they change something.

    Reports that come soon after one another wait for a tick: one revision follows from all of them.
    """
    stub = state.stubs.get(episode_id)
    if stub is None:
        return
    if not at_once and not state.may_consider(episode_id, stub):
        state.let_wait(episode_id, stub)
        return
    stub = replace(stub, considered_ms=state.clock.now_ms, is_waiting=False)
    if stub.excluded:
        state.keep_stub(episode_id, stub)
    else:
        yield from _revise_rewards(state, episode_id, stub)
    yield from _revise_children(state, episode_id)


def _revise_children(state: AssemblyState, root: str) -> Iterator[Outgoing]:
    """Revise the closed episodes of a closed root whose rewards in force have changed."""
    if not state.config.value.pass_down:
        return
    for child in state.families.children_of(root):
        if stub := state.stubs.get(child):
            yield from _revise_rewards(state, child, stub)


def _revise_rewards(state: AssemblyState, episode_id: str, stub: Stub, *, excluded: bool = False) -> Iterator[Outgoing]:
    rewards, before = state.rewards_in_force(episode_id, stub.root, stub.agent), stub.rewards
    if not excluded and _values(rewards) == before:
        state.keep_stub(episode_id, stub)
        return
    new, withdrawn = changes(before, rewards, chain(state.reports_of(stub.root), state.reports_of(episode_id)))
    stub = replace(stub, revision=stub.revision + 1, rewards=_values(rewards), excluded=excluded)
    if excluded:  # from now on no record repeats what the person said
        rewards, withdrawn = without_words(rewards), without_words(withdrawn)
        stub = replace(stub, last_turn=None)
    state.keep_stub(episode_id, stub)
    if stub.trajectory_id is not None:
        yield _revision(state, episode_id, stub, rewards, new, withdrawn)


def _refuse(state: AssemblyState, event: Event, data: bytes, reason: DropReason) -> Iterator[Outgoing]:
    """Count an event that cannot be used, once however often it comes."""
    if state.keep_refused(event, data):
        yield _drop(state, "event", event.event_id, reason, f"{type(event).__name__} of episode {event.episode_id}")


def _pass_time(state: AssemblyState) -> Iterator[Outgoing]:
    now_ms = state.clock.now_ms
    for episode_id in state.due.due(now_ms):
        if stub := state.stubs.get(episode_id):
            yield from _consider_or_forget(state, episode_id, stub)
        elif state.open[episode_id].lives:
            yield from _finish(state, episode_id)
        else:
            yield from _drop_orphans(state, episode_id)
            state.close(episode_id, Stub(now_ms, None))


def _consider_or_forget(state: AssemblyState, episode_id: str, stub: Stub) -> Iterator[Outgoing]:
    if stub.is_waiting:
        yield from _consider(state, episode_id, at_once=True)
    if state.is_past(episode_id, stub):
        state.forget(episode_id)
    else:
        state.due.watch(episode_id)


def _finish(state: AssemblyState, episode_id: str) -> Iterator[Outgoing]:
    """Close an episode: its trajectory, or a drop where its start is missing; and a drop for what is missing."""
    holes, now_ms = state.open[episode_id].holes(), state.clock.now_ms
    closing = Closing(now_ms, holes, state.open[episode_id].first_ms, state.principal_of(episode_id))
    rewards = state.rewards_in_force(episode_id, "", "")
    trajectory = build(state.events_of(episode_id), rewards, state.config.value, state.config.hash, closing)
    if trajectory is None or holes:
        detail = ", ".join(f"{writer}: {count if count > 0 else '?'}" for writer, count in holes.items())
        detail = f"missing by writer: {detail}" if holes else "no EpisodeStarted"
        yield _drop(state, "episode", episode_id, DropReason.MISSING_EVENTS, detail)
    if trajectory is None:
        yield from _drop_orphans(state, episode_id)
        state.close(episode_id, Stub(now_ms, None))
        return
    root = trajectory.root_episode_id if trajectory.root_episode_id != episode_id else ""
    if root and state.config.value.pass_down:
        trajectory = replace(trajectory, rewards=state.rewards_in_force(episode_id, root, trajectory.agent))
    yield Outgoing(TRAJECTORIES, trajectory.group_hint, trajectory)
    values, agent = _values(trajectory.rewards), trajectory.agent if root else ""
    stub = Stub(
        now_ms,
        trajectory.trajectory_id,
        trajectory.group_hint,
        rewards=values,
        root=root,
        agent=agent,
        last_turn=last_turn_of(trajectory),
    )
    state.close(episode_id, stub)
    if state.config.value.pass_down:
        yield from _consider(state, root) if root else _revise_children(state, episode_id)


def _drop_orphans(state: AssemblyState, episode_id: str) -> Iterator[Outgoing]:
    for event_id in sorted(report.record.event_id for report in state.reports_of(episode_id)):
        yield _drop(state, "event", event_id, DropReason.ORPHANED_REWARD, f"episode {episode_id}")


def _values(rewards: tuple[Reward, ...]) -> tuple[tuple[str, float], ...]:
    return tuple((reward.event_id, reward.value) for reward in rewards)


def _revision(
    state: AssemblyState,
    episode_id: str,
    stub: Stub,
    rewards: tuple[Reward, ...],
    new: tuple[str, ...],
    withdrawn: tuple[Reward, ...],
) -> Outgoing:
    revised = RewardRevised(
        trajectory_id=stub.trajectory_id or "",
        episode_id=episode_id,
        group_hint=stub.group_hint,
        revision=stub.revision,
        rewards=rewards,
        new=new,
        withdrawn=withdrawn,
        excluded=stub.excluded,
        revised_at_ms=state.clock.now_ms,
        last_turn=_last_turn(stub) if any(reward.signal for reward in rewards) else None,
    )
    return Outgoing(TRAJECTORIES, stub.group_hint, revised)


def _last_turn(stub: Stub) -> LastTurn | None:
    if stub.last_turn is None:
        return None
    event_id, question, answer = stub.last_turn
    return LastTurn(event_id=event_id, question=question, answer=answer)


def _drop(state: AssemblyState, unit: DropUnit, unit_id: str, reason: DropReason, detail: str) -> Outgoing:
    return make_drop(unit, unit_id, reason, detail, stage=AssemblyStage.name, now_ms=state.clock.now_ms)
