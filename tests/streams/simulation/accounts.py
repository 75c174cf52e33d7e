"""The accounts of a history, unit by unit: emitted = used + dropped by reason + pending, and no unit in two of them.

Events and episodes are of the namespace. Trajectories, groups and batches are of each run: used means trained there.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.events import EpisodeStarted, Excluded, RewardReported, TurnRecorded
from rollbus.schemas.records.groups import ClosedGroup, Group, StepOutcome
from rollbus.schemas.records.steps import StepCompleted, StepSkipped
from rollbus.schemas.records.trajectories import RewardRevised, Trajectory
from rollbus.schemas.topics import (
    ALIASES,
    BATCHES,
    CLOSED_GROUPS,
    DROPS,
    EPISODE_EVENTS,
    RUN_LOG,
    TRAINING_STEPS,
    TRAJECTORIES,
    Topic,
)
from rollbus.streams.stages.assembly.rows import KINDS
from tests.streams.simulation.history import Past


def check_accounts(past: Past, final: dict[str, Any]) -> None:
    """Raise AssertionError for a unit without a fate or with two; `final` is each task's state in the end."""
    _rewards_by_alias(past, final)
    _events(past, final)
    _episodes(past, final)
    for run in past.runs:
        _trajectories(past, run.run_id, final)
        _groups(past, run.run_id, final)
        _batches(past, run.run_id, final)


def _rewards_by_alias(past: Past, final: dict[str, Any]) -> None:
    """A reward under another name reached its episode's events, or was dropped, or waits for the name."""
    emitted = Counter({record.event_id for record in records(past, ALIASES) if isinstance(record, RewardReported)})
    fates = _once(record.event_id for record in records(past, EPISODE_EVENTS) if getattr(record, "alias", None))
    fates.update(drop.unit_id for drop in _drops(past, "event", stage="alias"))
    for state in _of("alias-", final):
        fates.update(row.get().event_id for row in state.waiting.rows.values())
    _balance("reward by alias", fates, emitted)


def _events(past: Past, final: dict[str, Any]) -> None:
    """An event was dropped for itself, or became part of what its episode became, or lies in an open episode.

    A turn that was not dropped stands in its episode's trajectory, and a reward there or in a later revision; where
    the whole episode was dropped its turns are with it, and its rewards were dropped one by one or excluded with it.
    """
    dropped = Counter(drop.unit_id for drop in _drops(past, "event", stage="assembly"))
    assert set(dropped.values()) <= {1}, f"events dropped twice: {dropped}"
    parts, whole = set[str](), set[str]()
    for record in records(past, TRAJECTORIES):
        if isinstance(record, Trajectory):
            whole.add(record.episode_id)
            parts.update(turn.event_id for turn in record.turns)
        if isinstance(record, Trajectory | RewardRevised):
            parts.update(reward.event_id for reward in record.rewards)
    gone = {drop.unit_id for drop in _drops(past, "episode")} - whole
    excluded = {record.episode_id for record in records(past, EPISODE_EVENTS) if isinstance(record, Excluded)}
    pending = {episode for state in _of("assembly-", final) for episode in state.open}
    for event in {
        record.event_id: record for record in records(past, EPISODE_EVENTS) if type(record) in KINDS
    }.values():
        assert not (event.event_id in parts and event.event_id in dropped), f"{event.event_id} is used and dropped"
        if event.event_id in dropped or event.episode_id in gone | pending:
            continue
        assert event.episode_id in whole | excluded, f"event {event.event_id} of {event.episode_id} has no fate"
        if isinstance(event, TurnRecorded | RewardReported) and event.episode_id not in excluded:
            assert event.event_id in parts, f"{event.event_id} is lost: it is in no trajectory and no drop"


def _episodes(past: Past, final: dict[str, Any]) -> None:
    """An episode that began became a trajectory, or a drop, or is open; one without a start is dropped or open."""
    fates = Counter(record.episode_id for record in records(past, TRAJECTORIES) if isinstance(record, Trajectory))
    fates.update({drop.unit_id for drop in _drops(past, "episode")} - fates.keys())
    for state in _of("assembly-", final):
        fates.update(episode for episode, open_episode in state.open.items() if open_episode.lives)
    assert set(fates.values()) <= {1}, f"more than one fate: {_amiss(fates, Counter(fates.keys()))}"
    begun = {record.episode_id for record in records(past, EPISODE_EVENTS) if isinstance(record, EpisodeStarted)}
    assert begun <= fates.keys(), f"without a fate: {begun - fates.keys()}"


def _trajectories(past: Past, run_id: str, final: dict[str, Any]) -> None:
    emitted = _once(record.trajectory_id for record in records(past, TRAJECTORIES) if isinstance(record, Trajectory))
    fates = Counter[str]()
    for step in of_run(past, TRAINING_STEPS, run_id, StepCompleted):
        fates.update(member.trajectory_id for member in step.trained)
    fates.update(name for drop in of_run(past, DROPS, run_id, Drop) for name in drop.trajectory_ids)
    fates.update(member.trajectory_id for group in _pending(run_id, final) for member in group.members)
    for state in _of(f"grouping.{run_id}-", final):
        fates.update(list(state.scores.rows))
    _balance(f"run {run_id}: trajectory", fates, emitted)


def _groups(past: Past, run_id: str, final: dict[str, Any]) -> None:
    """A closed group was trained, or dropped, or waits in the curriculum; one to be judged was judged or dropped."""
    groups = _once(group.group_id for group in of_run(past, RUN_LOG, run_id, Group))
    drops = list(_drops(past, "group", run_id))
    fates = Counter[str]()
    for step in of_run(past, TRAINING_STEPS, run_id, StepCompleted):
        fates.update({member.group_id for member in step.trained})
    fates.update(drop.unit_id for drop in drops if drop.stage in ("curriculum", "trainer"))
    fates.update(group.group_id for group in _pending(run_id, final))
    _balance(f"run {run_id}: group", fates, groups)
    closed = [record.group for record in records(past, CLOSED_GROUPS) if isinstance(record, ClosedGroup)]
    if any(group.run_id == run_id for group in closed):
        judged = groups + Counter(drop.unit_id for drop in drops if drop.stage == "group-scoring")
        judged_groups = _once(group.group_id for group in closed if group.run_id == run_id)
        _balance(f"run {run_id}: group to be judged", judged, judged_groups)


def _batches(past: Past, run_id: str, final: dict[str, Any]) -> None:
    """A batch became one step, completed or skipped, and has one answer; its groups are in no other batch."""
    batches = of_run(past, BATCHES, run_id, object)
    cut = _once(batch.batch_hash for batch in batches)
    steps = of_run(past, TRAINING_STEPS, run_id, StepCompleted | StepSkipped)
    _balance(f"run {run_id}: batch by step", Counter(step.batch_hash for step in steps), cut)
    answers = of_run(past, RUN_LOG, run_id, StepOutcome)
    _balance(f"run {run_id}: batch by answer", Counter(answer.batch_hash for answer in answers), cut)
    _once(group.group_id for batch in batches for group in batch.groups)
    (curriculum,) = _of(f"curriculum.{run_id}-", final)
    assert not curriculum.batches.rows, f"run {run_id}: answered batches that are still open"


def _pending(run_id: str, final: dict[str, Any]) -> list[Group]:
    """Groups that wait in the curriculum for their window's end or for room in a batch."""
    (state,) = _of(f"curriculum.{run_id}-", final)
    in_window = [row for row in state.in_window.rows.values() if row.data]
    return [row.group() for row in [*state.waiting.rows.values(), *in_window]]


def _of(prefix: str, final: dict[str, Any]) -> list[Any]:
    return [state for name, state in final.items() if name.startswith(prefix)]


def _drops(past: Past, unit: str, run_id: str | None = None, *, stage: str | None = None) -> Iterator[Drop]:
    drops = (drop for drop in records(past, DROPS) if drop.unit == unit and drop.run_id == run_id)
    return (drop for drop in drops if stage is None or drop.stage == stage)


def _once(ids: Iterable[str]) -> Counter[str]:
    """Count ids that must each be there once."""
    counted = Counter(ids)
    assert set(counted.values()) <= {1}, f"emitted twice: {_amiss(counted, Counter(counted.keys()))}"
    return counted


def _balance(unit: str, fates: Counter[str], emitted: Counter[str]) -> None:
    assert fates == emitted, f"{unit}: {_amiss(fates, emitted)}"


def _amiss(counted: Counter[str], expected: Counter[str]) -> str:
    return f"too often {dict(counted - expected)}, missing {dict(expected - counted)}"


def records(past: Past, topic: Topic) -> Iterator[Any]:
    """Return what a topic says, committed."""
    return past.broker.records(topic)


def of_run(past: Past, topic: Topic, run_id: str, kind: Any) -> list[Any]:
    """Return what a topic says of a run, records of a kind."""
    records_of_kind = (record for record in records(past, topic) if isinstance(record, kind))
    return [record for record in records_of_kind if getattr(record, "run_id", None) == run_id]
