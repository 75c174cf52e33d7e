"""Admitted groups become batches: as far ahead as allowed, none too stale, every fate told."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.records.config import BatchingConfig, RunConfig
from rollbus.schemas.records.groups import Group, TrainingBatch
from rollbus.streams.stages.curriculum.batching import NO_PARENT, VersionPath, take_turns
from rollbus.streams.stages.curriculum.stage import CurriculumStage
from tests.builders import make_command, make_group, make_member, make_outcome, make_tick, make_version
from tests.stepper import Stepper, reasons


def batching(**config: Any) -> Stepper:
    stepper = Stepper(CurriculumStage(RunConfig(batching=BatchingConfig(**{"groups_per_step": 2} | config))))
    stepper.tick()
    return stepper


def batches(records: list[Any]) -> list[TrainingBatch]:
    return [record for record in records if isinstance(record, TrainingBatch)]


def named(batch: TrainingBatch) -> list[str]:
    return [group.group_id for group in batch.groups]


def test_the_next_batch_is_cut_after_the_outcome_of_the_last() -> None:
    stepper = batching()
    (first,) = batches(stepper.feed(*(make_group(f"g{index}") for index in range(5))))
    assert (first.number, named(first)) == (0, ["g0", "g1"])
    stepper.restore()
    (second,) = batches(stepper.feed(make_outcome(first), make_outcome(first)))
    assert (second.number, named(second), second.newest_policy_version) == (1, ["g2", "g3"], 1)
    assert batches(stepper.feed(make_outcome(second))) == []


def test_batches_ahead_bounds_how_many_are_open() -> None:
    stepper = batching(batches_ahead=2)
    assert len(batches(stepper.feed(*(make_group(f"g{index}") for index in range(9))))) == 2


def test_the_batch_hash_depends_on_content_and_place() -> None:
    batch, same_batch = (batches(batching().feed(make_group("a"), make_group("b")))[0] for _ in range(2))
    other_batch = batches(batching().feed(make_group("a"), make_group("b", (0.0, 0.5))))[0]
    assert batch.batch_hash == same_batch.batch_hash != other_batch.batch_hash


def test_the_oldest_groups_of_a_full_line_are_superseded() -> None:
    stepper = batching(max_waiting_groups=3)
    records = stepper.feed(*(make_group(f"g{index}") for index in range(7)))
    assert [drop.unit_id for drop in records if drop not in batches(records)] == ["g2", "g3"]
    assert set(reasons(records)) == {"superseded"}


def test_a_line_shorter_than_a_batch_still_makes_batches() -> None:
    stepper = batching(groups_per_step=4, max_waiting_groups=1)
    assert len(batches(stepper.feed(*(make_group(f"g{index}") for index in range(4))))) == 1


def test_a_short_batch_is_cut_when_the_oldest_has_waited_long_enough() -> None:
    stepper = batching(groups_per_step=9, flush_ms=30_000)
    stepper.feed(make_group("g0"))
    assert stepper.tick(29) == []
    assert [named(batch) for batch in batches(stepper.tick(1))] == [["g0"]]
    assert stepper.tick(60) == []


def test_without_settings_a_short_batch_is_cut_after_ten_minutes() -> None:
    stepper = Stepper(CurriculumStage(RunConfig()))
    stepper.tick()
    stepper.feed(make_group("g0"))
    assert stepper.tick(599) == []
    assert [named(batch) for batch in batches(stepper.tick(1))] == [["g0"]]


def test_steps_are_not_faster_than_late_rewards() -> None:
    stepper = batching(groups_per_step=1, max_off_policy_steps=2)
    stepper.tick(100)
    started_ms = make_tick(0).stream_time_ms
    late = [make_group(name, members=(make_member(name, advantage=1.0, first_seen_ms=started_ms),)) for name in "abc"]
    (first,) = batches(stepper.feed(late[0]))
    assert batches(stepper.feed(make_outcome(first), late[1])) == []
    stepper.restore()
    assert stepper.tick(49) == []
    (second,) = batches(stepper.tick(1))
    assert batches(stepper.feed(make_outcome(second, step=2))) == []


def test_lag_counts_completed_steps_and_not_version_numbers() -> None:
    stepper = batching(max_off_policy_steps=2)
    stepper.feed(make_version(0), make_version(10, 0), make_version(20, 10))
    stepper.feed(make_group("old", version=0))
    (drop,) = stepper.feed(make_version(30, 20))
    assert (drop.reason, drop.trajectory_ids) == ("stale", ("old-0", "old-1"))
    assert named(batches(stepper.feed(make_group("a", version=10), make_group("b", version=30)))[0]) == ["a", "b"]


def test_a_stale_member_leaves_and_the_others_keep_their_advantages() -> None:
    stepper = batching(groups_per_step=1, max_off_policy_steps=0)
    stepper.feed(make_version(0), make_version(1, 0))
    members = tuple(
        make_member(f"m{index}", float(index), version=min(index, 1), advantage=index - 1.0) for index in range(3)
    )
    records = stepper.feed(make_group("g", (0.0, 1.0, 2.0), members=members))
    assert [member.advantage for member in batches(records)[0].groups[0].members] == [0.0, 1.0]
    assert [drop.trajectory_ids for drop in records if drop not in batches(records)] == [("m0",)]


def test_a_group_with_one_member_left_leaves_whole() -> None:
    stepper = batching(groups_per_step=1, max_off_policy_steps=0)
    stepper.feed(make_version(0), make_version(1, 0))
    members = (make_member("old", version=0, advantage=-0.5), make_member("new", version=1, advantage=0.5))
    records = stepper.feed(make_group("g", members=members))
    assert reasons(records) == ["stale"]
    assert records[0].trajectory_ids == ("old", "new")


def test_after_a_rollback_what_the_bad_version_sampled_is_off_lineage() -> None:
    stepper = batching()
    stepper.feed(make_version(0), make_version(1, 0), make_group("good", version=0), make_version(2, 1))
    stepper.feed(make_version(2, 1, state="rolled_back"))
    (drop, batch) = stepper.feed(make_group("bad", version=2), make_group("fine", version=1))
    assert (drop.reason, drop.trajectory_ids) == ("off_lineage", ("bad-0", "bad-1"))
    assert (named(batch), batch.newest_policy_version) == (["good", "fine"], 1)


def test_a_version_served_before_its_announcement_is_not_stale() -> None:
    stepper = batching(groups_per_step=1, max_off_policy_steps=0)
    stepper.feed(make_version(0))
    assert len(batches(stepper.feed(make_group("new", version=7)))) == 1


def test_versions_of_another_model_change_nothing() -> None:
    stepper = batching(groups_per_step=1, max_off_policy_steps=0)
    stepper.feed(make_version(5, 4, model="another"))
    assert len(batches(stepper.feed(make_group("g", version=0)))) == 1


@pytest.mark.parametrize("state", ["skipped", "failed"])
def test_a_batch_without_new_weights_frees_its_place(state: str) -> None:
    stepper = batching(groups_per_step=1)
    (first,) = batches(stepper.feed(make_group("a"), make_group("b")))
    (second,) = batches(stepper.feed(make_outcome(first, state=state, version=0)))
    assert (named(second), second.newest_policy_version) == (["b"], 0)


def test_a_paused_run_cuts_no_batch_until_it_resumes() -> None:
    stepper = batching(groups_per_step=1)
    assert stepper.feed(make_command("pause", key="a"), make_group("g0"), make_group("g1")) == []
    stepper.restore()
    assert len(batches(stepper.feed(make_command("resume", key="b")))) == 1


def test_stop_drops_waiting_and_later_groups() -> None:
    stepper = batching(groups_per_step=3)
    stepper.feed(make_group("g0"), make_group("g1"))
    assert reasons(stepper.feed(make_command("stop", key="a"), make_group("g2"))) == ["run_stopped"] * 3
    stepper.feed(make_command("resume", key="b"))
    assert stepper.feed(make_group("g3")) == []


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12, unique=True).map(sorted), st.integers(-2, 35))
def test_a_lag_is_the_number_of_steps_between(versions: list[int], version: int) -> None:
    parents = dict(zip(versions, [NO_PARENT, *versions[:-1]], strict=True))
    lag = VersionPath(parents, versions[-1]).lag(version)
    if version in versions:
        assert lag == len(versions) - 1 - versions.index(version)
    elif version > versions[-1]:
        assert lag == 0
    elif version < versions[0]:
        assert lag is not None
        assert lag >= len(versions)
    else:
        assert lag is None


def test_a_cyclic_lineage_still_ends() -> None:
    assert VersionPath({1: 2, 2: 1}, 2).lag(1) == 1


def recorded_by(principal: str, name: str, *others: str, size: int = 2) -> Group:
    """A group of members that a principal recorded; of its last ones, as many as `others` are theirs."""
    recorders = [principal] * (size - len(others)) + list(others)
    members = tuple(
        make_member(f"{name}-{place}", place % 2, advantage=place % 2 - 0.5, principal=recorder)
        for place, recorder in enumerate(recorders)
    )
    return make_group(name, members=members)


def test_a_batch_takes_the_groups_of_several_principals_in_turn() -> None:
    stepper = batching(groups_per_step=4)
    stepper.feed(make_command("pause"))
    stepper.feed(*(recorded_by("flood", f"f{number}") for number in range(8)))
    stepper.feed(*(recorded_by("agent-7", f"a{number}") for number in range(3)))
    (first,) = batches(stepper.feed(make_command("resume", key="on")))
    assert named(first) == ["f0", "f1", "a0", "a1"]
    stepper.restore()
    (second,) = batches(stepper.feed(make_outcome(first)))
    assert named(second) == ["f2", "f3", "f4", "a2"]
    assert batches(stepper.feed(make_outcome(second, step=2, base=1))) == [], "three are not a batch"


def test_the_backlog_of_one_principal_drops_no_group_of_another() -> None:
    stepper = batching(groups_per_step=2, max_waiting_groups=4)
    stepper.feed(make_command("pause"))
    stepper.feed(*(recorded_by("agent-7", f"a{number}") for number in range(2)))
    dropped = stepper.feed(*(recorded_by("flood", f"f{number}") for number in range(6)))
    assert [(drop.unit_id, drop.reason) for drop in dropped] == [
        ("f0", "source_share"),
        ("f1", "source_share"),
        ("f2", "source_share"),
        ("f3", "source_share"),
    ]
    stepper.restore()
    (batch,) = batches(stepper.feed(make_command("resume", key="on")))
    assert named(batch) == ["a0", "f4"]


def test_a_member_in_a_group_of_others_counts_as_its_principals_turn() -> None:
    groups = [recorded_by("agent-7", "a0", "flood", "flood", "flood", size=7), recorded_by("flood", "f0")]
    groups += [recorded_by("agent-8", "b0", size=4), recorded_by("agent-8", "b1", size=4)]
    assert list(take_turns(groups)) == [0, 2, 1, 3]


@given(st.lists(st.sampled_from("abc"), max_size=30))
def test_taking_turns_keeps_every_group_and_each_principals_order(principals: list[str]) -> None:
    groups = [recorded_by(principal, f"g{place}") for place, principal in enumerate(principals)]
    turns = list(take_turns(groups))
    assert sorted(turns) == list(range(len(groups)))
    for principal in "abc":
        places = [place for place in turns if principals[place] == principal]
        assert places == sorted(places)
    if len(set(principals)) <= 1:
        assert turns == sorted(turns)


@given(st.lists(st.sampled_from("abc"), min_size=6, max_size=30), st.integers(min_value=1, max_value=6))
def test_no_principal_has_more_of_a_batch_than_one_that_still_waits(principals: list[str], places: int) -> None:
    turns = list(take_turns([recorded_by(principal, f"g{place}") for place, principal in enumerate(principals)]))
    taken = Counter(principals[place] for place in turns[:places])
    waiting = {principals[place] for place in turns[places:]}
    assert all(max(taken.values()) <= taken[principal] + 1 for principal in waiting)
