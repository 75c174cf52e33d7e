"""Rows of any size come back from the changelog as they were written, however much of it compaction has removed."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.schemas import chunks
from rollbus.schemas.chunks import MAX_CHUNKS
from rollbus.schemas.codec import encode
from rollbus.schemas.config import AssemblyConfig
from rollbus.schemas.topics import MAX_RECORD_BYTES
from rollbus.streams import large_rows
from rollbus.streams.assembly import AssemblyStage
from rollbus.streams.batch import Partition
from rollbus.streams.large_rows import MOST_BYTES, LargeRows
from rollbus.streams.output_kafka import BATCH_BYTES
from rollbus.streams.processing import OWN_ROWS, StagePartition
from rollbus.streams.stage import PureAsEffects
from tests.builders import make_turn
from tests.streams.test_transaction_parts import Raw

Rows = list[tuple[bytes, bytes | None]]
PLACE = Partition("t.episode-events", 0)
SIZES = st.none() | st.integers(0, 500)
"""Bytes of a row's value; None deletes it."""


def compacted(log: Rows, up_to: int) -> Rows:
    """Return what compaction leaves: of each key of the old part the newest row."""
    newest = {key: number for number, (key, _) in enumerate(log[:up_to])}
    return [row for number, row in enumerate(log) if number >= up_to or newest[row[0]] == number]


def restored(log: Rows) -> tuple[dict[bytes, bytes], LargeRows]:
    rows, large = dict[bytes, bytes](), LargeRows()
    for key, value in log:
        if (found := large.restored(key, value)) is None:
            continue
        if found[1] is None:
            rows.pop(found[0], None)
        else:
            rows[found[0]] = found[1]
    return rows, large


@given(st.lists(st.tuples(st.sampled_from([b"t\x1fa", b"t\x1fb"]), SIZES), max_size=8), st.data())
def test_rows_come_back_from_any_compacted_changelog(changes: list[tuple[bytes, int | None]], data: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_rows, "MOST_BYTES", 100)
        rows, log, large = dict[bytes, bytes](), Rows(), LargeRows()
        for number, (key, size) in enumerate(changes):
            if size is None:
                rows.pop(key, None)
            else:
                rows[key] = b"\x01" + random.Random(number).randbytes(size)
            log += large.split_all([(key, rows.get(key))])
            if data.draw(st.booleans(), label="restart"):
                log = compacted(log, data.draw(st.integers(0, len(log)), label="compacted up to"))
                found, large = restored(log)
                assert found == rows
                assert large.unfinished() == []
        for key in list(rows):
            log += large.split(key, None)
    assert {key: value for key, value in compacted(log, len(log)) if value is not None} == {}


def test_a_part_is_the_runtimes_own_and_fits_into_a_batch_and_the_largest_record_into_the_parts() -> None:
    assert MOST_BYTES + 10_000 < BATCH_BYTES
    assert large_rows.PREFIX.startswith(OWN_ROWS)
    assert MAX_CHUNKS * (MOST_BYTES - 100) > MAX_CHUNKS * MAX_RECORD_BYTES


def test_a_row_of_which_parts_are_gone_is_named() -> None:
    first, *_ = LargeRows().split(b"t\x1fa", bytes(3 * MOST_BYTES))
    rows, large = restored([first])
    assert (rows, large.unfinished()) == ({}, [b"t\x1fa"])


async def test_an_event_larger_than_its_topic_takes_is_kept_in_rows_that_fit() -> None:
    """Else its stage could write it never, and end at it each time."""
    numbers = random.Random(1)
    count = 400_000
    turn = make_turn(
        completion=tuple(numbers.randrange(150_000) for _ in range(count)),
        logprobs=tuple(-numbers.random() for _ in range(count)),
    )
    raws = [Raw(offset, frame) for offset, frame in enumerate(chunks.split(encode(turn)))]
    live = StagePartition(PureAsEffects(AssemblyStage(AssemblyConfig())), PLACE, app_version="1")
    log = (await live.process(raws)).changelog
    assert max(len(value or b"") for _, value in log) <= MOST_BYTES
    again = StagePartition(PureAsEffects(AssemblyStage(AssemblyConfig())), PLACE, app_version="1")
    for row in log:
        again.restore(*row)
    assert again.unfinished() == []
    assert {key: row.data for key, row in again.state.events.rows.items()} == {
        key: row.data for key, row in live.state.events.rows.items()
    }
