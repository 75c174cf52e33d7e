"""Tens of thousands of records that no producer of ours sends: none ends a stage, each is taken or a dead letter."""

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

import pytest

from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.records.config import (
    AssemblyConfig,
    BatchingConfig,
    GroupingConfig,
    ResampleConfig,
    RewardConfig,
    RunConfig,
    ScoringConfig,
)
from rollbus.schemas.records.drops import DeadLetter
from rollbus.schemas.records.trajectories import Location, Trajectory
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.processing import StagePartition
from rollbus.streams.pipeline import AnyStage, namespace_stages, run_stages
from rollbus.streams.rewards.contract import RewardFunction
from rollbus.streams.state.payload import bind_payload
from tests.builders import make_trajectory
from tests.examples import count_examples
from tests.streams.exactly_once.poison import fuzzed_frames
from tests.streams.exactly_once.test_transaction_parts import Raw

COUNT = count_examples(5_000)
"""Of each of the seven stages."""
BATCH = 250
RUN = RunConfig(
    grouping=GroupingConfig(group_size=2, rewards=(RewardConfig(type="places", name="places"),)),
    batching=BatchingConfig(groups_per_step=1),
    resample=ResampleConfig(attempts_per_hour=1_000, tokens_per_hour=1_000_000, share=3.0),
)
PLACES = RewardFunction(lambda group, context: [float(place) for place in range(len(group))], per="group", quick=True)


class AnyPayload:
    """Something stands everywhere."""

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        return {location: make_trajectory() for location in locations}


STAGES = namespace_stages(AssemblyConfig(), ScoringConfig()) + run_stages(RUN, registry={"places": PLACES})
bind_payload(STAGES, AnyPayload())


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
async def test_no_record_ends_a_stage(stage: AnyStage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    place = Partition(f"n.{stage.input.name}", 0)
    work = StagePartition(stage, place, app_version="1")
    records = [Raw(offset, value, b"e1") for offset, value in enumerate(fuzzed_frames(stage.input, COUNT, seed=1))]
    letters: list[Any] = []
    rows: dict[bytes, bytes | None] = {}
    for start in range(0, COUNT, BATCH):
        processed = await work.process(records[start : start + BATCH])
        outputs = [decode(output.value) for output in processed.outputs if output.value[:2] == b"\xc3\x01"]
        letters += [record for record in outputs if isinstance(record, DeadLetter)]
        rows.update(processed.changelog)
    undecodable = {raw.offset for raw in records if not _decodes(raw.value)}
    assert undecodable <= {letter.offset for letter in letters}
    assert max(Counter(letter.offset for letter in letters).values()) >= 1
    for letter in letters:
        assert (letter.topic, letter.partition, letter.stage) == (*place, stage.name)
        assert letter.value == records[letter.offset].value
        assert letter.error_class.endswith("Error")
        assert letter.message
    restored = StagePartition(stage, place, app_version="1")
    for key, value in rows.items():
        restored.restore(key, value)
    await restored.process([Raw(COUNT, records[0].value, b"e1")])


def _decodes(value: bytes | None) -> bool:
    try:
        decode(value)
    except RecordError:
        return False
    return True
