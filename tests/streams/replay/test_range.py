"""The ends of a range as a user writes them, and chains of stages."""

from collections.abc import Sequence

import pytest
from aiokafka import TopicPartition

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.reading import AssignedOnce, open_reader
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.records.replays import ReplayRange
from rollbus.streams.replay.kafka.range_run import Covered
from rollbus.streams.replay.plan.plan import CHAIN, chain_of, check_name
from rollbus.streams.replay.plan.range import Bound, parse_bound


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("earliest", Bound()),
        ("latest", Bound(at_end=True)),
        ("tick:12", Bound(tick=12)),
        ("700", Bound(offset=700)),
        ("0:5,2:7", Bound(offsets=((0, 5), (2, 7)))),
        ("2h ago", Bound(time_ms=10_000_000 - 7_200_000)),
        ("1970-01-01T00:00:01", Bound(time_ms=1_000)),
        ("1970-01-01T01:00:01+01:00", Bound(time_ms=1_000)),
    ],
)
def test_a_bound_is_an_offset_a_time_or_a_tick(text: str, bound: Bound) -> None:
    assert parse_bound(text, now_ms=10_000_000) == bound


def test_an_unknown_form_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match="tick:4711"):
        parse_bound("yesterday", now_ms=0)


LONG = "9" * 5_000


@pytest.mark.parametrize(
    "text", ["²", "tick:²", "99999999999d ago", "0:1,0:2", "٣", "1:", LONG, f"tick:{LONG}", f"0:{LONG}", f"{LONG}d ago"]
)
def test_an_almost_valid_bound_is_refused_in_words(text: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_bound(text, now_ms=0)


def test_stages_must_follow_one_another() -> None:
    assert chain_of(()) == CHAIN
    assert chain_of(("curriculum", "grouping")) == ("grouping", "group-scoring", "curriculum")
    assert chain_of(("alias",)) == ("alias",)
    with pytest.raises(ConfigurationError, match="do not follow"):
        chain_of(("assembly", "grouping"))
    with pytest.raises(ConfigurationError, match="no stage trainer"):
        chain_of(("trainer",))


@pytest.mark.parametrize("name", ["", "Big", "with.dot", "x" * 60])
def test_a_name_becomes_part_of_topics(name: str) -> None:
    with pytest.raises(ConfigurationError):
        check_name(name)


async def test_a_reader_is_assigned_only_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def start(consumer: AssignedOnce) -> None:
        """No broker answers here, and none is asked."""

    monkeypatch.setattr(AssignedOnce, "start", start)
    async with open_reader(KafkaConnection()) as consumer:
        consumer.assign([TopicPartition("a", 0)])
        with pytest.raises(RuntimeError, match="take another reader"):
            consumer.assign([TopicPartition("a", 0), TopicPartition("a", 1)])
        assert consumer.assignment() == {TopicPartition("a", 0)}


def at(partition: int, start: int, end: int = 2_000) -> ReplayRange:
    return ReplayRange(topic="episode-events", partition=partition, from_offset=start, to_offset=end)


def covered_by_ticks(ranges: Sequence[ReplayRange], *partitions: Sequence[int]) -> Covered:
    """What is read whole of ranges whose ticks, one a second, stand in such partitions."""
    covered_time = Covered.of(ranges)
    for number, those in enumerate(partitions):
        covered_time.tick(1_000 * number, those)
    return covered_time


def test_a_range_is_whole_once_each_cut_partition_has_begun() -> None:
    cut = (at(0, 1_200), at(1, 1_200))
    assert covered_by_ticks(cut, (0, 1), (0, 1)).from_ms == 0
    assert covered_by_ticks(cut, (1,), (1,), (0, 1), (0, 1)).from_ms == 2_000
    assert covered_by_ticks((at(0, 1_200), at(1, 0)), (1,), (1,), (0, 1)).from_ms == 2_000
    assert covered_by_ticks((at(0, 1_200), at(1, 0)), (1,), (0, 1)).from_ms == 1_000


def test_a_range_that_begins_with_the_log_is_whole_from_the_beginning() -> None:
    assert covered_by_ticks((at(0, 0), at(1, 0)), (0, 1)).from_ms == 0
    assert covered_by_ticks((at(0, 0), at(1, 0))).from_ms == 0


def test_a_partition_that_was_cut_behind_its_last_tick_never_begins() -> None:
    assert covered_by_ticks((at(0, 900, 900), at(1, 1_200)), (1,), (1,)).from_ms is None
    assert covered_by_ticks((at(0, 1_200),)).from_ms is None


def test_a_range_is_whole_up_to_the_earliest_last_tick() -> None:
    ranges = (at(0, 0), at(1, 0))
    assert covered_by_ticks(ranges, (0, 1), (0, 1)).to_ms == 1_000
    assert covered_by_ticks(ranges, (0, 1), (0, 1), (1,), (1,)).to_ms == 1_000
    assert covered_by_ticks(ranges, (0,), (0,), (0, 1), (0,)).to_ms == 2_000


def test_a_partition_that_ends_before_its_first_tick_reaches_nothing() -> None:
    assert covered_by_ticks((at(0, 0, 0), at(1, 0)), (1,), (1,)).to_ms is None
    assert covered_by_ticks((at(0, 0),)).to_ms is None
