"""Chunks to whole records, and what becomes of repeated, missing, broken and contradicting parts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas.chunks import Chunk, parse, split
from rollbus.schemas.errors import UndecodableError
from rollbus.schemas.joining import Joiner, Whole
from rollbus.schemas.lineage import lags_from


def parts_of(data: bytes) -> list[Chunk]:
    return [parse(frame) for frame in split(data, limit=60)]


@given(st.lists(st.binary(min_size=61, max_size=200), min_size=1, max_size=4, unique=True), st.data())
def test_each_record_comes_once_in_whatever_order_its_parts_come(records: list[bytes], data: st.DataObject) -> None:
    chunks = data.draw(st.permutations([part for record in records for part in parts_of(record)]))
    joiner, found = Joiner[int](), []
    for number, chunk in enumerate(chunks):
        whole = joiner.add(chunk, number)
        if whole is not None:
            found.append(whole.data)
            assert whole.place == min(at for at, other in enumerate(chunks) if other.digest == chunk.digest)
    assert sorted(found) == sorted(records)
    assert len(joiner) == joiner.open_bytes == 0


def test_a_repeated_part_does_not_count_twice() -> None:
    first, second, *_ = parts_of(b"x" * 61)
    joiner = Joiner[str]()
    assert [joiner.add(first, "a"), joiner.add(first, "b")] == [None, None]
    assert joiner.open_bytes == len(first.part)
    assert joiner.has(first)
    assert not joiner.has(second)


def test_bytes_that_are_no_chunk_are_a_whole_record_and_the_last_chunk_gives_its_own() -> None:
    joiner = Joiner[None]()
    assert joiner.whole(b"plain", None) == b"plain"
    assert [joiner.whole(frame, None) for frame in split(b"x" * 61, limit=60)] == [None, None, b"x" * 61]


def test_a_part_that_contradicts_the_first_is_refused_and_the_record_still_comes() -> None:
    chunks = parts_of(b"x" * 61)
    joiner = Joiner[str]()
    joiner.add(chunks[0], "a")
    with pytest.raises(UndecodableError, match="the first one said"):
        joiner.add(replace(chunks[1], count=200), "b")
    rest = [joiner.add(chunk, "c") for chunk in chunks[1:]]
    assert rest[-1] == Whole(b"x" * 61, "a")


def test_parts_that_do_not_add_up_are_forgotten_so_that_the_right_ones_can_come() -> None:
    chunks = parts_of(b"x" * 61)
    joiner = Joiner[None]()
    for chunk in chunks[:-1]:
        joiner.add(chunk, None)
    with pytest.raises(UndecodableError, match="do not add up"):
        joiner.add(replace(chunks[-1], part=b"?"), None)
    assert len(joiner) == joiner.open_bytes == 0
    found = [joiner.add(chunk, None) for chunk in chunks]
    assert found[-1] == Whole(b"x" * 61, None)


def test_lags_count_steps_along_parents_and_leave_out_what_was_rolled_back() -> None:
    parents = {0: None, 1: 0, 2: 1, 3: 1, 7: 3}
    assert lags_from(7, parents) == {7: 0, 3: 1, 1: 2, 0: 3}
    assert lags_from(None, parents) == {}
    assert lags_from(1, {1: 2, 2: 1}) == {1: 0, 2: 1}
