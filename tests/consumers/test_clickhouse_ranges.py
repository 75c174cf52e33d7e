"""Offset ranges: whatever is cut where, the same rows come out once, and nothing unread is committed."""

import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.consumers.clickhouse.chunk_joiner import MAX_BEHIND_BYTES, PATIENCE_MS, ChunkJoiner, KafkaRecord
from rollbus.consumers.clickhouse.ranges import OffsetRange, PartitionBuffer
from rollbus.schemas.chunks import split
from rollbus.schemas.codec import encode
from rollbus.schemas.errors import UndecodableError
from tests.builders import START_MS, make_started, make_tick, make_trajectory

TICK, EVENT, JUNK = encode(make_tick(1)), encode(make_started()), b"not a record"
LARGE = encode(make_trajectory(text="x" * 2_000))
CHUNKS = split(LARGE, limit=1_000)
LARGE_EVENT = encode(make_started(labels={"note": "x" * (MAX_BEHIND_BYTES // 50)}))
LATE_TICK = encode(make_tick(2, stream_time_ms=START_MS + PATIENCE_MS + 5_000))
DAY_MS = 24 * 60 * 60 * 1000


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
    made, cuts, reading = [], set(cut_after), buffer(start, planned_last)
    for index, record in enumerate(values):
        reading.add(record)
        if index in cuts:
            made.append(reading.cut())
    made += [reading.cut(), reading.cut()]
    return [found for found in made if found is not None]


def rows(ranges: Iterable[OffsetRange]) -> list[tuple[str, Any]]:
    return [
        (table, row["kafka_offset"])
        for found in ranges
        for table, columns in sorted(found.tables.items())
        for row in columns
    ]


@given(
    values=st.lists(st.sampled_from([[TICK], [EVENT], [JUNK], CHUNKS, CHUNKS[::-1]]), max_size=8),
    cuts=st.sets(st.integers(0, 40)),
    step=st.integers(1, 3),
)
def test_where_ranges_are_cut_changes_nothing_that_is_written(
    values: list[list[bytes]], cuts: set[int], step: int
) -> None:
    log = records([value for part in values for value in part], step=step)
    whole, parts = read(log), read(log, cut_after=cuts)
    assert sorted(rows(whole)) == sorted(rows(parts))
    with_rows = [found for found in parts if found.rows]
    assert all(before.next_offset <= after.from_offset for before, after in itertools.pairwise(with_rows))
    if log:
        assert parts[-1].next_offset == log[-1].offset + 1


def test_what_is_committed_never_passes_a_record_that_is_not_whole() -> None:
    log = records([EVENT, *CHUNKS[:2], EVENT])
    (made,) = read(log)
    assert (made.last_offset, made.next_offset, made.records) == (0, 1, 1)


def test_a_record_in_chunks_has_the_place_of_its_first_chunk() -> None:
    (made,) = read(records([EVENT, *CHUNKS], start=10), start=10)
    assert [row["kafka_offset"] for row in made.tables["trajectories"]] == [11]
    assert (made.next_offset, made.dead_letters) == (11 + len(CHUNKS), 0)


def test_a_chunk_that_never_comes_is_a_dead_letter_and_holds_up_nothing_for_ever() -> None:
    (made,) = read(records([CHUNKS[0], TICK, EVENT, LATE_TICK]))
    assert [(row["error_class"], row["offset"]) for row in made.tables["dead_letters"]] == [("MissingChunkError", 0)]
    assert (made.next_offset, len(made.tables["events"])) == (4, 1)


@pytest.mark.parametrize("ahead_ms", [-DAY_MS, DAY_MS])
def test_a_producer_with_a_wrong_clock_loses_no_record_of_others(ahead_ms: int) -> None:
    log = records([TICK, CHUNKS[0], EVENT, *CHUNKS[1:]])
    log[2] = replace(log[2], timestamp_ms=START_MS + ahead_ms)
    (made,) = read(log)
    assert (made.dead_letters, len(made.tables["trajectories"]), made.next_offset) == (0, 1, len(log))


@pytest.mark.parametrize("ahead_ms", [-DAY_MS, DAY_MS])
def test_a_producer_with_a_wrong_clock_that_dies_holds_up_nothing_for_ever(ahead_ms: int) -> None:
    log = records([CHUNKS[0], TICK, EVENT, LATE_TICK])
    log[0] = replace(log[0], timestamp_ms=START_MS + ahead_ms)
    (made,) = read(log)
    assert (made.dead_letters, made.next_offset) == (1, 4)


def test_where_no_ticks_come_a_reader_holds_no_more_than_so_much() -> None:
    events = MAX_BEHIND_BYTES // len(LARGE_EVENT) + 2
    (made,) = read(records([CHUNKS[0], *[LARGE_EVENT] * events]))
    assert (made.dead_letters, made.records) == (1, events + 1)


def test_a_topic_without_ticks_is_timed_by_its_records() -> None:
    reading = PartitionBuffer(namespace="t.", topic="producer-reports", partition=0, start=0)
    log = [replace(record, topic="producer-reports") for record in records([CHUNKS[0], JUNK, JUNK])]
    log[2] = replace(log[2], timestamp_ms=START_MS + PATIENCE_MS + 1)
    for record in log:
        reading.add(record)
    made = reading.cut()
    assert made is not None
    assert [row["error_class"] for row in made.tables["dead_letters"]].count("MissingChunkError") == 1


def test_what_is_whole_and_cannot_be_read_is_one_letter_with_all_its_bytes() -> None:
    broken = b"\xc3\x01" + b"no schema of ours" * 200
    (made,) = read(records(split(broken, limit=1_000), start=7), start=7)
    (letter,) = made.tables["dead_letters"]
    assert (letter["offset"], letter["value"], letter["kafka_offset"]) == (7, broken, 7)


def test_what_cannot_be_read_becomes_a_dead_letter_with_its_bytes() -> None:
    (made,) = read(records([JUNK, EVENT]))
    (letter,) = made.tables["dead_letters"]
    assert (letter["topic"], letter["offset"], letter["value"], letter["stage"]) == (
        "t.episode-events",
        0,
        JUNK,
        "sink",
    )
    assert (made.dead_letters, len(made.tables["events"])) == (1, 1)


def test_a_record_without_value_is_a_dead_letter() -> None:
    record = replace(records([EVENT])[0], value=None)
    (made,) = read([record])
    assert made.dead_letters == 1


def test_a_range_that_was_planned_is_rebuilt_whatever_came_since() -> None:
    before = read(records([EVENT, TICK, EVENT]))
    after = read(records([EVENT, TICK, EVENT, EVENT, EVENT]), cut_after=[1], planned_last=2)
    assert after[0].token("events") == before[0].token("events")
    assert [found.records for found in after] == [3, 2]


def test_a_log_that_was_made_anew_has_other_tokens() -> None:
    (old,), (new,) = read(records([EVENT])), read(records([encode(make_started("e2"))]))
    assert (old.from_offset, old.last_offset) == (new.from_offset, new.last_offset)
    assert old.token("events") != new.token("events")


def test_ticks_extend_one_range_instead_of_adding_many() -> None:
    reading = buffer()
    made = []
    for record in records([TICK, TICK, EVENT, TICK]):
        reading.add(record)
        made.append(reading.cut())
    spans = [(found.from_offset, found.next_offset, found.records) for found in made if found is not None]
    assert spans == [(0, 1, 1), (0, 2, 2), (2, 3, 1), (3, 4, 1)]


def test_transaction_markers_move_the_offset_without_records() -> None:
    reading = buffer()
    reading.add(records([EVENT])[0])
    reading.advance(2)
    made = reading.cut()
    assert made is not None
    assert (made.last_offset, made.next_offset) == (0, 2)
    assert reading.cut() is None


def test_chunks_that_contradict_each_other_are_refused() -> None:
    joiner = ChunkJoiner()
    first, second = records(CHUNKS[:2])
    joiner.add(first)
    broken = bytearray(second.value or b"")
    broken[37] += 1
    with pytest.raises(UndecodableError, match="parts, the first one said"):
        joiner.add(replace(second, value=bytes(broken)))
    assert joiner.oldest_offset == 0
