"""Early records wait for the tick of their round, over restarts too; what producers write counts where it lies."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.records.config import AssemblyConfig, CurriculumConfig, GroupingConfig, ResampleConfig, RunConfig
from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.topics import CURRICULUM, EPISODE_EVENTS, RUN_LOG, TRAJECTORIES
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.processing import Processed, StagePartition
from rollbus.streams.exactly_once.rounds import EarlyRecords, header_of, round_of
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.curriculum.stage import CurriculumStage
from rollbus.streams.stages.grouping.stage import GroupingStage
from rollbus.streams.stages.resample import ResampleStage
from rollbus.streams.state.stage import PureAsEffects
from tests.builders import make_episode, make_group, make_score, make_tick, make_trajectory
from tests.streams.replay.memory import Raw
from tests.streams.simulation.naive import run_to_end

PAIRS = RunConfig(
    grouping=GroupingConfig(strategy="by_example", group_size=2, window_ms=1_500, reward_wait_ms=0, reward_grace_ms=0)
)


def raw(offset: int, record: Any, number: int | None = None) -> Raw:
    headers = () if number is None else (("round", str(number).encode()),)
    return Raw(offset, getattr(record, "group_hint", "").encode() or None, encode(record), headers=headers)


def grouping() -> StagePartition:
    return StagePartition(PureAsEffects(GroupingStage(PAIRS)), Partition("scores", 0), app_version="")


def take_records(work: StagePartition, *records: Raw) -> Processed:
    processed: Processed = run_to_end(work.process(records))
    return processed


def topics(processed: Processed) -> list[str]:
    return [output.topic for output in processed.outputs]


def test_a_record_of_a_later_round_counts_after_the_tick_of_that_round() -> None:
    """Taken where it lies it would fill the group; the window of the first one is over before its round begins."""
    work = grouping()
    processed = take_records(
        work,
        raw(0, make_tick(0)),
        raw(1, make_score("t1"), 0),
        raw(2, make_score("t2"), 2),
        raw(3, make_tick(1)),
        raw(4, make_tick(2)),
    )
    assert topics(processed) == ["drops"]
    assert [output.round for output in processed.outputs] == [2]


def test_an_early_record_outlives_its_worker() -> None:
    rows = dict(
        take_records(
            grouping(), raw(0, make_tick(0)), raw(1, make_score("t1"), 0), raw(2, make_score("t2"), 1)
        ).changelog
    )
    successor = grouping()
    for key, value in rows.items():
        successor.restore(key, value)
    processed = take_records(successor, raw(3, make_tick(1)))
    assert topics(processed) == [RUN_LOG.name]
    assert [value for key, value in processed.changelog if key.startswith(b"\x1fearly")] == [None]


def test_attempts_are_requested_at_the_time_of_the_trajectory_however_early_it_lies() -> None:
    """Its opening's group closes by that time too."""
    run = PAIRS.model_copy(update={"resample": ResampleConfig(attempts_per_hour=10)})
    trajectory = raw(1, make_trajectory(example_id=None), 1)
    requests = []
    for records in ([trajectory, raw(2, make_tick(1))], [raw(2, make_tick(1)), trajectory]):
        stage = PureAsEffects(ResampleStage(run, partitions=1))
        work = StagePartition(stage, Partition("trajectories", 0), app_version="")
        requests.append(take_records(work, raw(0, make_tick(0)), *records).outputs)
    assert requests[0] == requests[1]
    assert [decode(output.value).requested_at_ms for output in requests[0]] == [make_tick(1).stream_time_ms]


def test_a_window_ends_with_the_early_groups_that_lie_before_the_command() -> None:
    """However far the curriculum is behind: who ends a window has seen the groups in the log."""
    stage = CurriculumStage(RunConfig(run_id="main", curriculum=CurriculumConfig(mode="harness", groups_per_window=3)))
    work = StagePartition(PureAsEffects(stage), Partition("run-log", 0), app_version="")
    command = RunCommand(run_id="main", command="end_window", command_id="end of epoch 0")
    groups = [make_group("g1", [0.0, 1.0]), make_group("g2", [0.0, 1.0])]
    take_records(work, raw(0, make_tick(0)), raw(1, groups[0], 0), raw(2, groups[1], 2), raw(3, command))
    processed = take_records(work, raw(4, make_tick(1)), raw(5, make_tick(2)))
    (window,) = (decode(output.value) for output in processed.outputs if output.topic == CURRICULUM.name)
    assert window.seen_group_ids == ("g1", "g2")


def test_a_producer_that_names_a_round_holds_back_nothing() -> None:
    work = StagePartition(
        PureAsEffects(AssemblyStage(AssemblyConfig())), Partition("episode-events", 0), app_version=""
    )
    events = [raw(number, event, 10**9) for number, event in enumerate(make_episode("e1"), start=1)]
    processed = take_records(work, raw(0, make_tick(0)), *events)
    assert topics(processed) == [TRAJECTORIES.name]
    assert [output.round for output in processed.outputs] == [0], "later stages would keep it until that round"


def test_only_what_stages_write_for_stages_names_its_round() -> None:
    assert header_of(RUN_LOG, 7) == (("round", b"7"),)
    assert header_of(EPISODE_EVENTS, 7) == ()
    assert header_of(RUN_LOG, -1) == ()


@pytest.mark.parametrize("value", [None, b"", b"no number", b"-1", b"9" * 30, b"9" * 5_000])
def test_a_header_that_holds_no_number_names_no_round(value: bytes | None) -> None:
    assert round_of(Raw(0, None, b"", headers=(("round", value),))) is None


Early = tuple[int, bytes | None, bytes | None]
"""Round, key and value."""


@given(st.lists(st.tuples(st.integers(0, 5), st.none() | st.binary(max_size=4), st.none() | st.binary(max_size=9))))
def test_early_records_come_back_from_their_rows(records: Sequence[Early]) -> None:
    early, restored = EarlyRecords(), EarlyRecords()
    for offset, (number, key, value) in enumerate(records):
        early.keep(Raw(offset, key, value or b""), number)
    for row_key, row in early.drain():
        restored.restore(row_key, row)
    for number in range(6):
        released = restored.release(number)
        assert released == early.release(number)
        assert [record.round for record in released] == [number] * len(released)
        assert [record.offset for record in released] == sorted(record.offset for record in released)
    assert len(restored) == 0
