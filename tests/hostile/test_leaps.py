"""No reader lets time, versions or counts leap because a record says so, also where nothing is signed."""

from dataclasses import replace

import pytest

from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.signing import Signing
from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.exactly_once.processing import APPEND_TIME, LEAP_MS, StagePartition
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.stages.curriculum.batching import MOST_UNANNOUNCED, VersionPath
from rollbus.streams.state.stage import PureAsEffects
from tests.builders import SECOND_MS, START_MS, make_closed, make_started, make_tick
from tests.hostile.attacker import Door
from tests.streams.replay.memory import Raw

FOREVER = 2**53


def fetched_record(offset: int, record: object, at_ms: int) -> Raw:
    return Raw(offset, b"e1", encode(record), at_ms, timestamp_type=APPEND_TIME)


@pytest.mark.parametrize("number", [1, 2**31, FOREVER])
async def test_a_tick_far_ahead_of_the_brokers_clock_stops_no_later_tick(number: int) -> None:
    """Taken as it is, it would close an open episode and stop stream time, since later ticks have lower numbers."""
    work = StagePartition(
        PureAsEffects(AssemblyStage(AssemblyConfig())), Partition(EPISODE_EVENTS.full_name(), 0), app_version="1"
    )
    records = [make_tick(0), make_started(), make_tick(number, stream_time_ms=FOREVER)]
    processed = await work.process(
        [fetched_record(offset, leap_record, START_MS) for offset, leap_record in enumerate(records)]
    )
    assert (processed.outputs, processed.leaps) == ([], 1)
    assert work.state.clock.now_ms == START_MS + LEAP_MS
    for seconds in range(1, 65):
        await work.process([fetched_record(2 + seconds, make_tick(seconds), START_MS + seconds * SECOND_MS)])
    assert work.state.clock.now_ms == START_MS + 64 * SECOND_MS


async def test_without_the_brokers_clock_in_the_log_ticks_count_as_they_are() -> None:
    """Recorded ranges of an older release give the same again."""
    door = Door(AssemblyStage(AssemblyConfig()), signing=Signing())
    await door.write(make_tick(0), timestamp=1)
    await door.write(make_tick(1, stream_time_ms=START_MS + 10 * LEAP_MS), timestamp=1)
    assert door.work.state.clock.now_ms == START_MS + 10 * LEAP_MS


def test_a_version_far_above_all_known_ones_has_no_lag() -> None:
    lineage = VersionPath({1: 0, 4: 1}, 4)
    assert lineage.lag(5) == lineage.lag(4 + MOST_UNANNOUNCED) == 0
    assert lineage.lag(5 + MOST_UNANNOUNCED) is None
    assert lineage.lag(FOREVER) is None


async def test_a_huge_claimed_event_count_costs_no_more_than_its_record() -> None:
    door = Door(AssemblyStage(AssemblyConfig()))
    await door.write(make_started())
    assert await door.write(replace(make_closed("e1", 2**31 - 1), sequence=2**31 - 1)) == []
    assert door.work.state.open["e1"].holes() == {"w1": 2**31 - 2}
