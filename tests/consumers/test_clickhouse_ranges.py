"""Offset ranges: whatever is cut where, the same rows come out once, and nothing unread is committed."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rollbus.consumers.clickhouse.sink.ranges import OffsetRange, PartitionBuffer
from rollbus.consumers.clickhouse.store.origin import KafkaRecord
from rollbus.schemas.codec import encode
from tests.builders import START_MS, make_started, make_tick, make_trajectory

TICK, EVENT, JUNK = encode(make_tick(1)), encode(make_started()), b"not a record"
LARGE_TRAJECTORY = encode(make_trajectory(text="x" * 2_000))


def records(values: Iterable[bytes], *, start: int = 0, step: int = 1) -> list[KafkaRecord]:
    """Such values at offsets start, start + step, …"""
    return [
        KafkaRecord("episode-events", 0, start + step * index, START_MS, b"k", value)
        for index, value in enumerate(values)
    ]


def buffer(start: int = 0, planned_last: int | None = None) -> PartitionBuffer:
    return PartitionBuffer(namespace="t.", topic="episode-events", partition=0, start=start, planned_last=planned_last)


def read(
    values: list[KafkaRecord], *, cut_after: Iterable[int] = (), start: int = 0, planned_last: int | None = None
) -> list[OffsetRange]:
    """Every range that comes of cutting after these records, and at the end."""
    cuts_made, cuts, reading = [], set(cut_after), buffer(start, planned_last)
    for index, record in enumerate(values):
        reading.add(record)
        if index in cuts:
            cuts_made.append(reading.cut())
    cuts_made += [reading.cut(), reading.cut()]
    return [range_rows for range_rows in cuts_made if range_rows is not None]


def rows(ranges: Iterable[OffsetRange]) -> list[tuple[str, Any]]:
    return [
        (table, row["kafka_offset"])
        for range_rows in ranges
        for table, columns in sorted(range_rows.tables.items())
        for row in columns
    ]


@given(
    values=st.lists(st.sampled_from([TICK, EVENT, JUNK, LARGE_TRAJECTORY]), max_size=8),
    cuts=st.sets(st.integers(0, 40)),
    step=st.integers(1, 3),
)
def test_the_cuts_between_ranges_do_not_change_the_written_rows(values: list[bytes], cuts: set[int], step: int) -> None:
    log = records(values, step=step)
    whole, parts = read(log), read(log, cut_after=cuts)
    assert sorted(rows(whole)) == sorted(rows(parts))
    with_rows = [part for part in parts if part.rows]
    assert all(before.next_offset <= after.from_offset for before, after in itertools.pairwise(with_rows))
    if log:
        assert parts[-1].next_offset == log[-1].offset + 1


def test_an_unreadable_record_becomes_a_dead_letter_with_its_bytes() -> None:
    (cut_range,) = read(records([JUNK, EVENT]))
    (letter,) = cut_range.tables["dead_letters"]
    assert (letter["topic"], letter["offset"], letter["value"], letter["stage"]) == (
        "t.episode-events",
        0,
        JUNK,
        "sink",
    )
    assert (cut_range.dead_letters, len(cut_range.tables["events"])) == (1, 1)


def test_a_record_without_value_is_a_dead_letter() -> None:
    record = replace(records([EVENT])[0], value=None)
    (cut_range,) = read([record])
    assert cut_range.dead_letters == 1


def test_a_planned_range_is_rebuilt_after_later_records() -> None:
    before = read(records([EVENT, TICK, EVENT]))
    after = read(records([EVENT, TICK, EVENT, EVENT, EVENT]), cut_after=[1], planned_last=2)
    assert after[0].token("events") == before[0].token("events")
    assert [cut_range.records for cut_range in after] == [3, 2]


def test_a_log_that_was_created_again_has_other_tokens() -> None:
    (old,), (new,) = read(records([EVENT])), read(records([encode(make_started("e2"))]))
    assert (old.from_offset, old.last_offset) == (new.from_offset, new.last_offset)
    assert old.token("events") != new.token("events")


def test_ticks_extend_one_range_instead_of_adding_many() -> None:
    reading = buffer()
    cut_ranges = []
    for record in records([TICK, TICK, EVENT, TICK]):
        reading.add(record)
        cut_ranges.append(reading.cut())
    spans = [
        (cut_range.from_offset, cut_range.next_offset, cut_range.records)
        for cut_range in cut_ranges
        if cut_range is not None
    ]
    assert spans == [(0, 1, 1), (0, 2, 2), (2, 3, 1), (3, 4, 1)]


def test_transaction_markers_move_the_offset_without_records() -> None:
    reading = buffer()
    reading.add(records([EVENT])[0])
    reading.advance(2)
    cut_range = reading.cut()
    assert cut_range is not None
    assert (cut_range.last_offset, cut_range.next_offset) == (0, 2)
    assert reading.cut() is None
