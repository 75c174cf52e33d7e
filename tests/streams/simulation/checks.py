"""What must hold after every history, whatever happened in it."""

from collections import Counter, defaultdict
from typing import Any

from rollbus.schemas.records.groups import CurriculumState, Group, TrainingBatch
from rollbus.schemas.records.trajectories import Score, Trajectory
from rollbus.schemas.topics import BATCHES, CURRICULUM, DROPS, RUN_LOG, SCORES, TRAINING_STEPS, TRAJECTORIES
from tests.flow.reference import ExpectedFates, expect, leave_one_out
from tests.streams.simulation.accounts import check_accounts, of_run, records
from tests.streams.simulation.history import Past
from tests.streams.simulation.log import Headers, Place
from tests.streams.simulation.naive import undisturbed_life


def check(past: Past) -> None:
    """Raise AssertionError for whatever is lost, double, out of order, different or unaccounted for."""
    _nobody_hangs(past)
    final = _equal_to_one_undisturbed_life(past)
    _in_order_by_key(past)
    check_accounts(past, final)
    if past.calm:
        _as_worked_out_at_once(past)


def _nobody_hangs(past: Past) -> None:
    for task in past.cluster.tasks:
        end = len(past.broker.entries[task.place])
        assert past.broker.offsets[task.name] == end, f"{task.name} hangs"


def _equal_to_one_undisturbed_life(past: Past) -> dict[str, Any]:
    """Each task has written, partition by partition, what one naive pass over its input writes; return final states."""
    written, final = past.broker.frames(), {}
    for task in past.cluster.tasks:
        topic, partition = task.stage.input, task.partition
        entries = past.broker.entries_of(topic, partition)
        final[task.name], outputs = undisturbed_life(task.stage, entries, task.place)
        expected = defaultdict[Place, list[tuple[bytes, bytes, Headers]]](list)
        for topic, key, value, headers in outputs:
            expected[past.broker.place(topic, key)].append((key, value, headers))
        rows_by_place = {place: rows for (writer, place), rows in written.items() if writer == task.name}
        assert rows_by_place == expected, f"{task.name}: {_difference(rows_by_place, expected)}"
    return final


def _difference(rows_by_place: dict[Place, list[Any]], expected: dict[Place, list[Any]]) -> str:
    for place in rows_by_place.keys() | expected.keys():
        there, expected_rows = rows_by_place.get(place, []), expected.get(place, [])
        for index in range(max(len(there), len(expected_rows))):
            if there[index : index + 1] != expected_rows[index : index + 1]:
                row, expected_row = there[index : index + 1], expected_rows[index : index + 1]
                return f"record {index} to {place} is {row} and not {expected_row}"
    return ""


def _in_order_by_key(past: Past) -> None:
    """Revisions of a trajectory rise; batches, windows and steps of a run count without gap or repetition."""
    seen: dict[str, int] = {}
    for score in records(past, SCORES):
        if not isinstance(score, Score):
            continue
        assert score.revision > seen.get(score.trajectory_id, -1), f"scores of {score.trajectory_id} are out of order"
        seen[score.trajectory_id] = score.revision
    for run in past.runs:
        counted = {
            "batches": [batch.number for batch in of_run(past, BATCHES, run.run_id, TrainingBatch)],
            "windows": [state.window for state in of_run(past, CURRICULUM, run.run_id, CurriculumState)],
            "steps": [step.step - 1 for step in of_run(past, TRAINING_STEPS, run.run_id, object)],
        }
        for name, numbers in counted.items():
            assert numbers == list(range(len(numbers))), f"{name} of run {run.run_id}: {numbers}"


def _as_worked_out_at_once(past: Past) -> None:
    """Trajectories, groups with advantages, and drops before batching are what follows from all events at once."""
    expected = expect_judged(expect(past.events)) if past.runs[0].grouping.rewards else expect(past.events)
    emitted = Counter(record.trajectory_id for record in records(past, TRAJECTORIES) if isinstance(record, Trajectory))
    assert emitted == Counter(expected.trajectories)
    groups = {
        group.group_key.removeprefix("group:"): {member.trajectory_id: member for member in group.members}
        for group in of_run(past, RUN_LOG, "main", Group)
    }
    assert {name: members.keys() for name, members in groups.items()} == {
        name: members.keys() for name, members in expected.groups.items()
    }
    for name, members in expected.groups.items():
        for trajectory_id, (reward, advantage) in members.items():
            member = groups[name][trajectory_id]
            assert (member.reward, round(member.advantage, 9)) == (reward, round(advantage, 9))
    dropped = Counter[tuple[str, str]]()
    starts = {event.episode_id for event in past.events if type(event).__name__ == "EpisodeStarted"}
    for drop in records(past, DROPS):
        if drop.stage in ("grouping", "group-scoring") and drop.run_id == "main":
            dropped.update((drop.reason, name) for name in drop.trajectory_ids)
        elif drop.unit == "episode" and drop.unit_id not in starts:
            dropped[drop.reason, drop.unit_id] += 1
    assert dropped == expected.dropped


def expect_judged(expected: ExpectedFates) -> ExpectedFates:
    """Work out what `places` makes of the groups, with a weight of 2."""
    for name, members in list(expected.groups.items()):
        if len(members) > 2:
            expected.dropped.update(("score_failed", member) for member in members)
            del expected.groups[name]
        else:
            rewards = {
                trajectory_id: members[trajectory_id][0] + 2.0 * place
                for place, trajectory_id in enumerate(sorted(members))
            }
            expected.groups[name] = leave_one_out(rewards)
    return expected
