"""State that a newer release has written is refused by name, and makes no dead letter of a tick."""

import asyncio
from typing import Any

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import AssemblyConfig, BatchingConfig, CurriculumConfig, RunConfig
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.processing import StagePartition
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.curriculum.stage import CurriculumStage
from rollbus.streams.stages.grouping.stage import GroupingStage
from tests.builders import make_group, make_reward, make_score, make_tick
from tests.stepper import Stepper
from tests.streams.exactly_once.test_transaction_parts import Raw

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
    ids=lambda parameter: getattr(parameter, "name", type(parameter).__name__),
)
def test_a_row_of_a_newer_release_turns_no_tick_into_a_dead_letter(stage: Any, record: Any) -> None:
    """What the tick would have closed was never reported again."""
    tick = Raw(9, encode(make_tick(9, stream_time_ms=make_tick(0).stream_time_ms + 10**9)))
    with pytest.raises(ValueError, match=r"unknown schema fingerprint.*run the newer release that wrote it"):
        asyncio.run(kept_by_a_newer_release(stage, record).process([tick]))
