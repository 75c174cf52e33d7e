"""What a partition keeps of unfinished large records is bounded: whatever passes the bound is counted, nothing else."""

import hashlib
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.chunks import MAX_CHUNKS, Chunk
from rollbus.schemas.codec import encode
from rollbus.schemas.config import AssemblyConfig
from rollbus.schemas.topics import MAX_MESSAGE_BYTES, MAX_RECORD_BYTES
from rollbus.schemas.trajectories import Location
from rollbus.streams.assembly import AssemblyStage
from rollbus.streams.chunking import MAX_WAITING_BYTES, MAX_WAITING_RECORDS, ChunkParts
from rollbus.streams.clock import Clock
from rollbus.streams.stage import Incoming
from tests.builders import make_episode, make_started
from tests.stepping import Stepper, compact, kinds, reasons

NOBODY_WAITED_LONG = -1
"""A time before anything came: only what was given up for its size is told of."""


class Log:
    """One partition's parts, given to a ChunkParts that may be restored from its changelog after each."""

    def __init__(self, *, max_bytes: int = 10**9, max_records: int = 10**9, restoring: bool = False) -> None:
        self.limits, self.restoring = {"max_bytes": max_bytes, "max_records": max_records}, restoring
        self.parts = ChunkParts(**self.limits)
        self.changelog: dict[str, bytes] = {}
        self.offset = 0
        self.joined: list[str] = []
        self.lost: list[str] = []

    def feed(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            whole = self.parts.collect(self.incoming(chunk), self.offset)
            if whole is not None:
                self.joined.append(chunk.digest.hex())
            self._log()

    def incoming(self, chunk: Chunk) -> Incoming:
        self.offset += 1
        return Incoming(chunk, "key", Location(topic="t", partition=0, offset=self.offset), chunk.part)

    def tick(self, before_ms: int = NOBODY_WAITED_LONG) -> None:
        self.lost += self.parts.expire(before_ms)
        self._log()

    def restore(self) -> None:
        self.parts = ChunkParts(**self.limits)
        for key in sorted(self.changelog, reverse=True):
            self.parts.table.restore(key, self.changelog[key])
        self.parts.rebuild()

    def _log(self) -> None:
        compact(self.changelog, self.parts.table.drain())
        if self.restoring:
            self.restore()


def chunks_of(number: int, count: int) -> list[Chunk]:
    """An episode's start, which differs by its number, in parts."""
    data = encode(make_started(f"e{number}"))
    size, digest = -(-len(data) // count), hashlib.sha256(data).digest()
    return [Chunk(digest, index, count, data[index * size : (index + 1) * size]) for index in range(count)]


def size_of(chunks: Iterable[Chunk]) -> int:
    return sum(len(chunk.part) for chunk in chunks)


def digests(records: Iterable[list[Chunk]]) -> list[str]:
    return [chunks[0].digest.hex() for chunks in records]


@st.composite
def interleaved(draw: st.DrawFn) -> tuple[list[list[Chunk]], list[Chunk]]:
    """Records in parts, and all their parts in any order."""
    counts = draw(st.lists(st.integers(2, 5), min_size=1, max_size=6))
    records = [chunks_of(number, count) for number, count in enumerate(counts)]
    return records, draw(st.permutations([chunk for chunks in records for chunk in chunks]))


@given(interleaved(), st.booleans())
def test_records_whose_parts_fit_all_join_however_they_interleave(
    written: tuple[list[list[Chunk]], list[Chunk]], restoring: bool
) -> None:
    records, order = written
    log = Log(max_bytes=size_of(order), max_records=len(records), restoring=restoring)
    log.feed(order)
    log.tick(log.offset)
    assert sorted(log.joined) == sorted(digests(records))
    assert log.lost == []


@given(interleaved(), st.data())
def test_beyond_the_bound_each_record_is_joined_or_counted_once_also_after_a_restore(
    written: tuple[list[list[Chunk]], list[Chunk]], data: st.DataObject
) -> None:
    records, order = written
    left_out = data.draw(st.sets(st.sampled_from(range(len(order)))))
    order = [chunk for number, chunk in enumerate(order) if number not in left_out]
    max_bytes, max_records = data.draw(st.integers(1, size_of(order) + 1)), data.draw(st.integers(1, len(records)))
    ticks = data.draw(st.sets(st.integers(0, len(order))))
    logs = [Log(max_bytes=max_bytes, max_records=max_records, restoring=restoring) for restoring in (False, True)]
    for log in logs:
        for number, chunk in enumerate(order):
            log.feed([chunk])
            waiting = [row.part for key, row in log.parts.table.rows.items() if not key.endswith("/-1")]
            assert sum(map(len, waiting)) <= max_bytes
            if number in ticks:
                log.tick()
        log.tick(log.offset)
        log.tick(log.offset)
        came = {chunk.digest.hex() for chunk in order}
        assert set(log.joined) | set(log.lost) == came
        assert len(log.lost) == len(set(log.lost))
        assert len(log.joined) == len(set(log.joined))
        assert log.changelog == {}
    assert (logs[0].joined, logs[0].lost) == (logs[1].joined, logs[1].lost)


def test_the_oldest_unfinished_record_is_given_up_and_told_of_with_the_next_tick() -> None:
    first, second, third = (chunks_of(number, 3) for number in range(3))
    log = Log(max_bytes=size_of([*first[:2], *second]))
    log.feed([*first[:2], *second[:2]])
    log.tick()
    assert log.lost == []
    log.feed(third[:2])
    log.restore()
    log.tick()
    log.tick()
    assert log.lost == digests([first])
    log.feed([second[2], third[2]])
    assert log.joined == digests([second, third])


def test_a_record_given_up_is_read_anew_when_all_of_it_comes_again_and_its_last_parts_are_not_told_of_twice() -> None:
    first, second = chunks_of(1, 3), chunks_of(2, 3)
    log = Log(max_records=1, restoring=True)
    log.feed([*first[:2], second[0]])
    log.tick()
    log.feed([first[2]])
    log.tick()
    assert log.lost == digests([first, second])
    log.feed(first)
    assert log.joined == digests([first])
    log.tick(log.offset)
    assert log.lost == digests([first, second])


@pytest.mark.parametrize("restoring", [False, True])
def test_what_all_comes_again_before_the_tick_is_not_lost(restoring: bool) -> None:
    first, second = chunks_of(1, 3), chunks_of(2, 3)
    log = Log(max_records=1, restoring=restoring)
    log.feed([first[0], second[0], *second[1:], *first])
    log.tick()
    assert (log.joined, log.lost) == (digests([second, first]), [])


@pytest.mark.parametrize("restoring", [False, True])
def test_a_record_given_up_that_is_not_to_be_read_at_all_is_not_told_of(restoring: bool) -> None:
    first, second = chunks_of(1, 3), chunks_of(2, 3)
    log = Log(max_records=1, restoring=restoring)
    log.feed([first[0], second[0]])
    log.parts.leave(first[1])
    log.tick(log.offset)
    assert log.lost == digests([second])
    assert log.changelog == {}


def test_a_record_that_is_larger_than_the_bound_is_given_up_itself() -> None:
    chunks = chunks_of(1, 3)
    log = Log(max_bytes=size_of(chunks[:1]))
    log.feed(chunks[:2])
    log.tick()
    assert log.lost == digests([chunks])


def test_what_is_foreseen_of_a_batch_is_what_happens_beyond_the_bound_too() -> None:
    first, second = chunks_of(1, 3), chunks_of(2, 3)
    log = Log(max_records=1)
    log.feed(first[:1])
    batch = [log.incoming(chunk) for chunk in (second[0], *first[1:], *second)]
    foreseen = log.parts.foreseen(batch, Clock(), grace_ms=1)
    happened = [log.parts.collect(each, log.offset) for each in batch]
    assert foreseen == happened
    assert [whole is not None for whole in happened] == [False] * 5 + [True]


def test_a_flood_of_first_parts_is_counted_by_its_stage_and_the_newest_still_join() -> None:
    stepper = Stepper(AssemblyStage(AssemblyConfig()))
    stepper.tick()
    *events, last = make_episode("e1")
    stepper.feed(*events)
    data = encode(last)
    halves = [Chunk(hashlib.sha256(data).digest(), index, 2, part) for index, part in enumerate((data[:9], data[9:]))]
    flood = [replace(halves[0], digest=number.to_bytes(32, "big")) for number in range(MAX_WAITING_RECORDS)]
    stepper.outputs([*flood, halves[0]])
    stepper.restore()
    (lost,) = stepper.tick(1)
    assert reasons([lost]) == ["missing_chunk"]
    assert lost.unit_id == flood[0].digest.hex()
    assert kinds(stepper.feed(halves[1])) == ["Trajectory"]


def test_the_bound_is_above_the_largest_records_that_can_come() -> None:
    assert MAX_WAITING_BYTES >= 3 * MAX_CHUNKS * MAX_RECORD_BYTES
    assert MAX_WAITING_BYTES >= MAX_CHUNKS * MAX_MESSAGE_BYTES
