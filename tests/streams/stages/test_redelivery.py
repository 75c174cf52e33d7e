"""Re-delivery, batch bounds and restarts change nothing: the same for every stage."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    CurriculumConfig,
    GroupingConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.steps import Evaluation
from rollbus.schemas.records.trajectories import Location, RewardRevised, Score
from rollbus.streams.stages.alias import AliasStage
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.curriculum.batching import batch_hash
from rollbus.streams.stages.curriculum.stage import CurriculumStage
from rollbus.streams.stages.grouping.stage import GroupingStage
from rollbus.streams.stages.scoring.stage import ScoringStage
from rollbus.streams.state.stage import Incoming, PureAsEffects
from tests.builders import (
    START_MS,
    make_alias,
    make_alias_reward,
    make_command,
    make_episode,
    make_group,
    make_outcome,
    make_reward,
    make_score,
    make_tick,
    make_trajectory,
    make_version,
)
from tests.examples import count_examples
from tests.stepper import Stepper
from tests.streams.stages.test_scoring import make_revision

RUN = RunConfig(
    grouping=GroupingConfig(group_size=3, window_ms=20_000, reward_wait_ms=10_000),
    curriculum=CurriculumConfig(mode="harness", groups_per_window=3, window_span_ms=30_000, expansion_interval=2),
    batching=BatchingConfig(groups_per_step=2, max_waiting_groups=3, max_off_policy_steps=1, flush_ms=25_000),
)


def alias_records() -> list[Any]:
    declared = [make_alias(alias, f"e{index}", index) for index, alias in enumerate("aab")]
    return declared + [make_alias_reward(alias, key=str(key)) for alias in "abc" for key in range(3)]


def scoring_records() -> list[Any]:
    names = [f"e{index}" for index in range(4)]
    revisions = [make_revision(name, number / 2, revision=number) for name in names[:2] for number in (1, 2)]
    return [make_trajectory(name, reward=None if name == "e1" else 1.0) for name in names] + revisions


def grouping_records() -> list[Any]:
    scores = [make_score(f"t{index}", index % 3, example_id=f"x{index % 2}") for index in range(8)]
    scores += [make_score(f"s{index}", None if index else 1.0, task="slow") for index in range(3)]
    scores += [make_score(f"n{index}", index, group_id="g", group_size=2) for index in range(3)]
    return scores + [replace(score, revision=1, outcome="scored", value=2.0) for score in scores[6:11]]


def curriculum_records() -> list[Any]:
    groups = [make_group(f"g{index}", (0.0, index / 4), version=index % 3) for index in range(8)]
    first = [make_version(0), make_version(1, 0), make_version(2, 1), make_version(2, 1, state="rolled_back")]
    return [
        *groups,
        *first,
        make_command("end_window"),
        make_command("pause", key="p"),
        make_command("resume", key="r"),
    ]


STAGES: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "alias": (lambda: AliasStage(AssemblyConfig(late_horizon_ms=3_600_000)), alias_records()),
    "scoring": (lambda: ScoringStage(ScoringConfig(), keep_ms=3_600_000), scoring_records()),
    "grouping": (lambda: GroupingStage(RUN), grouping_records()),
    "curriculum": (lambda: CurriculumStage(RUN), curriculum_records()),
}


@pytest.mark.parametrize("name", STAGES)
def test_redelivery_batch_bounds_and_restarts_change_nothing(name: str) -> None:
    make_stage, pool = STAGES[name]
    moves = st.lists(st.one_of(st.sampled_from(pool), st.integers(1, 15)), min_size=5, max_size=25)

    @settings(max_examples=count_examples(30), deadline=None)
    @given(moves, st.randoms(use_true_random=False))
    def check(records: list[Any], chance: Any) -> None:
        log, now_ms = [make_tick(0)], START_MS
        for number, record in enumerate(records, 1):
            if isinstance(record, int):
                now_ms += record * 1_000
                record = make_tick(number, stream_time_ms=now_ms)
            if original(record) is None or original(record) in log:
                log.append(record)
        plain, disturbed = Stepper(make_stage()), Stepper(make_stage())
        expected = plain.feed(*log)
        records_again, start = [], 0
        while start < len(log):
            end = start + chance.randint(1, 5)
            batch = log[start:end]
            repeated = [chance.choice(log[:end]) for _ in range(chance.randint(0, 2))]
            records_again += [out.record for out in disturbed.outputs([*batch, *repeated])]
            if chance.random() < 0.5:
                disturbed.restore()
            start = end
        assert [without_location(record) for record in records_again] == [
            without_location(record) for record in expected
        ]

    check()


def test_a_restored_state_keeps_the_same_of_closed_episodes() -> None:
    plain, restored = (Stepper(AssemblyStage(AssemblyConfig()), restoring=restoring) for restoring in (False, True))
    for stepper in (plain, restored):
        stepper.tick()
        stepper.feed(*(event for name in "abc" for event in make_episode(name, turns=2, reward=1.0)))
        stepper.feed(make_reward("a", 0.5))
    assert restored.changelog == plain.changelog


EVERY_STAGE = [*(make for make, _ in STAGES.values()), lambda: AssemblyStage(AssemblyConfig())]


@pytest.mark.parametrize("make_stage", EVERY_STAGE)
def test_a_record_that_does_not_belong_into_the_input_is_refused(make_stage: Callable[[], Any]) -> None:
    stepper = Stepper(make_stage())
    with pytest.raises(InvalidRecordError, match="Evaluation does not belong into"):
        stepper.feed(
            Evaluation(evaluation_id="e", model="m", policy_version=0, name="n", episodes=1, evaluated_at_ms=0)
        )
    assert stepper.changelog == {}


def original(record: Any) -> Any:
    """The record that must come before a revision; None for any other record."""
    if isinstance(record, RewardRevised):
        return next(
            original_record
            for original_record in scoring_records()
            if original_record.trajectory_id == record.trajectory_id
        )
    if isinstance(record, Score) and record.revision:
        return next(
            original_record
            for original_record in grouping_records()
            if original_record.trajectory_id == record.trajectory_id
        )
    return None


def without_location(record: Any) -> Any:
    places = [name for name in ("location", "revised_at") if hasattr(record, name)]
    return replace(record, **dict.fromkeys(places)) if places else record


def test_a_batch_hash_does_not_depend_on_where_payloads_stand() -> None:
    group = make_group("g")
    moved = replace(
        group,
        members=tuple(replace(member, location=replace(member.location, offset=9)) for member in group.members),
    )
    assert batch_hash("main", 0, [group]) == batch_hash("main", 0, [moved])


def test_an_outcome_delivered_again_after_a_restart_frees_nothing_twice() -> None:
    stepper = Stepper(CurriculumStage(RunConfig(batching=BatchingConfig(groups_per_step=1))))
    stepper.tick()
    first = stepper.feed(make_group("a"), make_group("b"), make_group("c"))[0]
    assert len(stepper.feed(make_outcome(first))) == 1
    stepper.restore()
    assert stepper.feed(make_outcome(first)) == []


def test_a_step_has_ended_before_its_first_output_is_written() -> None:
    stage = PureAsEffects(AssemblyStage(AssemblyConfig()))
    tick = Incoming(make_tick(0), "tick", Location(topic="t", partition=0, offset=0), b"")
    assert isinstance(stage.step(stage.new_state(), tick, None), list)
