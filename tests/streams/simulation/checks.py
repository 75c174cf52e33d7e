"""What must hold after every history, whatever happened in it."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from rollbus.schemas.groups import Group, StepOutcome
from rollbus.schemas.steps import StepCompleted
from rollbus.schemas.topics import (
    BATCHES,
    CURRICULUM,
    DROPS,
    EPISODE_EVENTS,
    RUN_LOG,
    SCORES,
    TRAINING_STEPS,
    TRAJECTORIES,
    Topic,
)
from tests.flow.reference import Expected, expect, leave_one_out
from tests.streams.simulation.cluster import undisturbed
from tests.streams.simulation.history import Past
from tests.streams.simulation.log import Place


def check(past: Past) -> None:
    """Raise AssertionError for whatever is lost, double, out of order, different or unaccounted for."""
    _nobody_hangs(past)
    final = _equal_to_one_undisturbed_life(past)
    _in_order_by_key(past)
    _every_episode_has_one_fate(past, final)
    for run in past.runs:
        _accounts_balance(past, run.run_id, final)
    if past.calm:
        _as_worked_out_at_once(past)


def _nobody_hangs(past: Past) -> None:
    for task in past.cluster.tasks:
        end = len(past.broker.entries[task.place])
        assert past.broker.offsets[task.name] == end, f"{task.name} hangs"


def _equal_to_one_undisturbed_life(past: Past) -> dict[str, Any]:
    """Each task has written, partition by partition, what one naive pass over its input writes; return final states."""
    written, final = past.broker.written(), {}
    for task in past.cluster.tasks:
        final[task.name], outputs = undisturbed(task, past.broker)
        expected = defaultdict[Place, list[tuple[str, Any]]](list)
        for out in outputs:
            expected[past.broker.place(out.topic, out.key)].append((out.key, out.record))
        found = {place: rows for (writer, place), rows in written.items() if writer == task.name}
        assert found == expected, f"{task.name}: {_difference(found, expected)}"
    return final


def _difference(found: dict[Place, list[Any]], expected: dict[Place, list[Any]]) -> str:
    for place in found.keys() | expected.keys():
        there, wanted = found.get(place, []), expected.get(place, [])
        for index in range(max(len(there), len(wanted))):
            if there[index : index + 1] != wanted[index : index + 1]:
                return f"record {index} to {place} is {there[index : index + 1]} and not {wanted[index : index + 1]}"
    return ""


def _in_order_by_key(past: Past) -> None:
    """Revisions of a trajectory rise; batches, windows and steps of a run count without gap or repetition."""
    seen: dict[str, int] = {}
    for score in _records(past, SCORES, "Score"):
        assert score.revision > seen.get(score.trajectory_id, -1), f"scores of {score.trajectory_id} are out of order"
        seen[score.trajectory_id] = score.revision
    for run in past.runs:
        counted = {
            "batches": [batch.number for batch in _of_run(past, BATCHES, run.run_id)],
            "windows": [state.window for state in _of_run(past, CURRICULUM, run.run_id)],
            "steps": [step.step - 1 for step in _of_run(past, TRAINING_STEPS, run.run_id)],
        }
        for name, numbers in counted.items():
            assert numbers == list(range(len(numbers))), f"{name} of run {run.run_id}: {numbers}"


def _every_episode_has_one_fate(past: Past, final: dict[str, Any]) -> None:
    """An episode that began became a trajectory, or a drop, or is open; one without a start is dropped or open."""
    fates = Counter(one.episode_id for one in _records(past, TRAJECTORIES, "Trajectory"))
    drops = [drop for drop in _records(past, DROPS, "Drop") if drop.unit == "episode" and drop.run_id is None]
    fates.update({drop.unit_id for drop in drops} - fates.keys())
    for name, state in final.items():
        if name.startswith("assembly-"):
            fates.update(episode for episode, found in state.open.items() if found.lives)
    assert set(fates.values()) <= {1}, f"more than one fate: {_amiss(fates, Counter(fates.keys()))}"
    begun = {one.episode_id for one in _records(past, EPISODE_EVENTS, "EpisodeStarted")}
    assert begun <= fates.keys(), f"without a fate: {begun - fates.keys()}"


def _accounts_balance(past: Past, run_id: str, final: dict[str, Any]) -> None:
    """Emitted = trained + dropped by reason + pending: for trajectories and groups, each exactly once."""
    emitted = Counter(one.trajectory_id for one in _records(past, TRAJECTORIES, "Trajectory"))
    fates = Counter[str]()
    for step in _of_run(past, TRAINING_STEPS, run_id):
        if isinstance(step, StepCompleted):
            fates.update(member.trajectory_id for member in step.trained)
    drops = _of_run(past, DROPS, run_id)
    fates.update(name for drop in drops for name in drop.trajectory_ids)
    curriculum = final[f"curriculum.{run_id}-0"]
    rows = [*curriculum.waiting.rows.values(), *(row for row in curriculum.in_window.rows.values() if row.data)]
    fates.update(member.trajectory_id for row in rows for member in row.group().members)
    for name, state in final.items():
        if name.startswith(f"grouping.{run_id}-"):
            fates.update(state.scores.rows)
    assert fates == emitted, f"run {run_id}: {_amiss(fates, emitted)}"
    assert set(emitted.values()) <= {1}, f"emitted twice: {_amiss(emitted, Counter(emitted.keys()))}"
    batches = {batch.batch_hash for batch in _of_run(past, BATCHES, run_id)}
    answered = [one.batch_hash for one in _of_run(past, RUN_LOG, run_id) if isinstance(one, StepOutcome)]
    assert sorted(answered) == sorted(batches), f"run {run_id}: batches without an answer, or with two"
    assert not curriculum.batches.rows, f"run {run_id}: answered batches that are still open"


def _amiss(found: Counter[str], expected: Counter[str]) -> str:
    return f"too often {dict(found - expected)}, missing {dict(expected - found)}"


def _as_worked_out_at_once(past: Past) -> None:
    """Trajectories, groups with advantages, and drops before batching are what follows from all events at once."""
    expected = judged(expect(past.events)) if past.runs[0].grouping.rewards else expect(past.events)
    emitted = Counter(one.trajectory_id for one in _records(past, TRAJECTORIES, "Trajectory"))
    assert emitted == Counter(expected.trajectories)
    groups = {
        group.group_key.removeprefix("group:"): {one.trajectory_id: one for one in group.members}
        for group in _of_run(past, RUN_LOG, "main")
        if isinstance(group, Group)
    }
    assert {name: members.keys() for name, members in groups.items()} == {
        name: members.keys() for name, members in expected.groups.items()
    }
    for name, members in expected.groups.items():
        for trajectory_id, (reward, advantage) in members.items():
            found = groups[name][trajectory_id]
            assert (found.reward, round(found.advantage, 9)) == (reward, round(advantage, 9))
    dropped = Counter[tuple[str, str]]()
    starts = {event.episode_id for event in past.events if type(event).__name__ == "EpisodeStarted"}
    for drop in _records(past, DROPS, "Drop"):
        if drop.stage in ("grouping", "group-scoring") and drop.run_id == "main":
            dropped.update((drop.reason, name) for name in drop.trajectory_ids)
        elif drop.unit == "episode" and drop.unit_id not in starts:
            dropped[drop.reason, drop.unit_id] += 1
    assert dropped == expected.dropped


def judged(expected: Expected) -> Expected:
    """Work out what `places` makes of the groups, with a weight of 2."""
    for name, members in list(expected.groups.items()):
        if len(members) > 2:
            expected.dropped.update(("score_failed", member) for member in members)
            del expected.groups[name]
        else:
            rewards = {each: members[each][0] + 2.0 * place for place, each in enumerate(sorted(members))}
            expected.groups[name] = leave_one_out(rewards)
    return expected


def _records(past: Past, topic: Topic, kind: str) -> Iterator[Any]:
    return (each.record for each in past.broker.committed(topic) if type(each.record).__name__ == kind)


def _of_run(past: Past, topic: Topic, run_id: str) -> list[Any]:
    found = (each.record for each in past.broker.committed(topic))
    return [record for record in found if getattr(record, "run_id", None) == run_id]
