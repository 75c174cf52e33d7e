"""State of a release that let larger rewards through, whose trajectories are dropped, and of a newer one."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.config import AssemblyConfig, BatchingConfig, CurriculumConfig, GroupingConfig, RunConfig
from rollbus.schemas.drops import Drop
from rollbus.schemas.groups import CurriculumState, Group, TrainingBatch
from rollbus.streams.assembly import AssemblyStage
from rollbus.streams.batch import Partition
from rollbus.streams.curriculum import CurriculumStage
from rollbus.streams.curriculum_state import GroupRow
from rollbus.streams.grouping import GroupingStage
from rollbus.streams.grouping_state import Baseline, ScoreRow
from rollbus.streams.processing import StagePartition
from tests.builders import make_command, make_group, make_member, make_reward, make_score, make_tick
from tests.stepping import Stepper, reasons
from tests.streams.test_transaction_parts import Raw

HUGE = 1e200


def grouping(*huge: str, **config: Any) -> Stepper:
    """A group in the making, of which these members' rows say more than can be computed with."""
    stepper = Stepper(GroupingStage(RunConfig(grouping=GroupingConfig(**({"group_size": 4} | config)))))
    stepper.tick()
    stepper.feed(*(make_score(f"t{number}", float(number)) for number in range(3)))
    for name in huge:
        row: ScoreRow = stepper.state.scores.rows[name]
        data = encode(replace(row.score(), value=HUGE))
        stepper.state.scores.put(name, ScoreRow(data, row.arrived_ms, row.order, row.joined_ms, True))
    stepper._log()
    stepper.restore()
    return stepper


def groups_of(records: list[Any]) -> list[Group]:
    return [record for record in records if isinstance(record, Group)]


@pytest.mark.parametrize("name", ["t0", "t1"])
def test_the_last_member_closes_no_group_with_one_that_cannot_be_computed_with(name: str) -> None:
    stepper = grouping(name)
    (drop,) = stepper.feed(make_score("t3", 3.0))
    assert (drop.reason, drop.trajectory_ids, drop.detail) == ("score_failed", (name,), f"the score is {HUGE}")
    (group,) = groups_of(stepper.feed(make_score("t4", 4.0)))
    assert group.closed_by == "full"
    assert {member.trajectory_id for member in group.members} == {"t0", "t1", "t2", "t3", "t4"} - {name}


def test_a_window_that_ends_closes_with_those_that_can_be_compared() -> None:
    stepper = grouping("t1")
    found = stepper.tick(600)
    assert reasons(found) == ["score_failed"]
    assert [member.reward for member in groups_of(found)[0].members] == [0.0, 2.0]


def test_a_window_that_ends_with_too_few_left_is_incomplete() -> None:
    found = grouping("t1", "t2").tick(600)
    assert sorted(reasons(found)) == ["incomplete_group", "score_failed", "score_failed"]
    assert groups_of(found) == []


def test_a_group_of_nothing_else_leaves_only_drops() -> None:
    stepper = grouping("t0", "t1", "t2")
    assert reasons(stepper.tick(600)) == ["score_failed"] * 3
    assert stepper.tick(600) == []


def test_a_baseline_that_cannot_be_computed_with_begins_anew() -> None:
    stepper = Stepper(GroupingStage(RunConfig(grouping=GroupingConfig(strategy="baseline", baseline_decay=0.5))))
    stepper.tick()
    stepper.state.baselines.put("example:play:x1", Baseline(HUGE, 0.5))
    first, second = groups_of(stepper.feed(make_score("a", 1.0), make_score("b", 0.0)))
    assert (first.has_signal, second.members[0].advantage) == (False, -1.0)


@pytest.mark.parametrize("mode", ["harness", "pools", "advantage_range", "off"])
def test_a_window_drops_the_group_that_cannot_be_computed_with(mode: Any) -> None:
    windows = CurriculumConfig(mode=mode, initial_percentile=1.0, random_subsample=1.0, hard_share=1.0, easy_share=1.0)
    batches = BatchingConfig(groups_per_step=1)
    stepper = Stepper(CurriculumStage(RunConfig(curriculum=windows, batching=batches)))
    stepper.tick()
    members = (make_member("a", HUGE), make_member("b", -HUGE))
    huge = replace(make_group("huge", (0.0, 1.0)), members=members, reward_mean=HUGE, reward_max=HUGE)
    for number in range(3):  # three of them, so that their sum is none
        row = GroupRow(encode(replace(huge, group_id=f"huge{number}")), number, 0, 0, 2, 1e308)
        stepper.state.in_window.put(f"huge{number}", row)
    stepper._log()
    stepper.restore()
    found = stepper.feed(make_group("fine", (0.0, 1.0)), make_command("end_window"))
    drops = [record for record in found if isinstance(record, Drop)]
    assert [(drop.reason, drop.unit_id) for drop in drops] == [("score_failed", f"huge{number}") for number in range(3)]
    assert drops[0].trajectory_ids == ("a", "b")
    (state,) = [record for record in found if isinstance(record, CurriculumState)]
    assert (state.reward_mean, state.admitted_group_ids) == (0.5, ("fine",))
    (batch,) = [record for record in found if isinstance(record, TrainingBatch)]
    assert [group.group_id for group in batch.groups] == ["fine"]


UNKNOWN = b"\xc3\x01" + bytes(8)
"""Where a frame of a schema begins that this release does not have."""
WINDOW = RunConfig(
    curriculum=CurriculumConfig(mode="harness", initial_percentile=1.0, window_span_ms=1_000),
    batching=BatchingConfig(groups_per_step=1),
)


def kept_by_a_newer_release(stage: Any, record: Any) -> StagePartition:
    """Return a stage whose row keeps a record that only a newer release can read."""
    stepper = Stepper(stage)
    stepper.tick()
    stepper.feed(record)
    work = StagePartition(stepper.stage, Partition("t", 0), app_version="1")
    frame = encode(record)[: len(UNKNOWN)]
    for key, value in stepper.changelog.items():
        work.restore(key, value.replace(frame, UNKNOWN))
    return work


@pytest.mark.parametrize(
    ("stage", "record"),
    [
        (AssemblyStage(AssemblyConfig()), make_reward("e", 1.0)),
        (GroupingStage(RunConfig()), make_score("t")),
        (CurriculumStage(WINDOW), make_group("g", (0.0, 1.0))),
    ],
    ids=lambda each: getattr(each, "name", type(each).__name__),
)
def test_a_row_that_only_a_newer_release_can_read_makes_no_dead_letter_of_a_tick(stage: Any, record: Any) -> None:
    """What the tick would have closed was never told of again."""
    tick = Raw(9, encode(make_tick(9, stream_time_ms=make_tick(0).stream_time_ms + 10**9)))
    with pytest.raises(ValueError, match=r"unknown schema fingerprint.*run the newer release that wrote it"):
        asyncio.run(kept_by_a_newer_release(stage, record).process([tick]))
