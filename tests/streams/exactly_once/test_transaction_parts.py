"""What a transaction is made of, without a broker: batches, processing, partitions, positions."""

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbus.runtime.kafka.writing import partition_of
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import DataLossError, InvalidRecordError
from rollbus.schemas.limits import MAX_LETTER_BYTES, MAX_LETTER_KEY_BYTES
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.drops import DeadLetter, Drop
from rollbus.schemas.topics import DEAD_LETTERS, DROPS, EPISODE_EVENTS
from rollbus.streams.exactly_once.batch import Batch, Partition
from rollbus.streams.exactly_once.changelog import agreed_position
from rollbus.streams.exactly_once.claims import Committed
from rollbus.streams.exactly_once.processing import CACHED, Processed, StagePartition
from rollbus.streams.state.stage import Incoming, Outgoing, PureAsEffects
from rollbus.streams.state.table import PartitionState, RowCodec, Table
from tests.builders import make_group, make_score, make_started, make_tick, make_trajectory
from tests.trainer.scenario import make_batch

PLACE = Partition("t.episode-events", 3)
LONG = {"notes": "n" * 1_200_000}
TEXT: RowCodec[str] = RowCodec(1, str.encode, {1: bytes.decode})


@dataclass
class Raw:
    offset: int
    value: bytes | None
    key: bytes | None = b"k"
    timestamp: int = 7


class KeepState(PartitionState):
    def __init__(self) -> None:
        self.seen: Table[str] = Table("seen", TEXT)
        super().__init__(self.seen)


class KeepStage:
    """Remembers the last number of each key and emits a drop of as many bytes as asked."""

    name = "keep"
    input = EPISODE_EVENTS

    def __init__(self, detail_bytes: int = 1) -> None:
        self.detail_bytes = detail_bytes

    def new_state(self) -> KeepState:
        return KeepState()

    def step(self, state: KeepState, incoming: Incoming) -> Iterable[Outgoing]:
        if not isinstance(incoming.record, Tick):
            raise InvalidRecordError("this stage takes ticks alone")
        state.seen.put(incoming.key, str(incoming.record.number))
        yield Outgoing(DROPS, "out", drop_of("u", "d" * self.detail_bytes))


def drop_of(unit_id: str, detail: str = "") -> Drop:
    return Drop(unit="event", unit_id=unit_id, reason="x", stage="keep", detail=detail, dropped_at_ms=0)


async def process(raws: Sequence[Any], stage: KeepStage | None = None) -> Processed:
    return await StagePartition(PureAsEffects(stage or KeepStage()), PLACE, app_version="1").process(raws)


def letters(processed: Processed) -> list[DeadLetter]:
    return [decode(output.value) for output in processed.outputs if output.topic == DEAD_LETTERS.name]


async def test_outputs_and_touched_rows_of_a_batch_come_out_together() -> None:
    result = await process([Raw(0, encode(make_tick(1))), Raw(1, encode(make_tick(2)))])
    assert [output.key for output in result.outputs] == [b"out", b"out"]
    assert [key for key, _ in result.changelog] == [b"seen\x1fk"]


@pytest.mark.parametrize(
    ("value", "key", "error"),
    [
        (b"\xc3\x01short", b"k", "UndecodableError"),
        (None, b"k", "UndecodableError"),
        (b"not ours at all", b"k", "UndecodableError"),
        (encode(make_tick(1))[:-1], b"k", "UndecodableError"),
        (encode(make_tick(1)), b"\xff\xfe", "UndecodableError"),
    ],
)
async def test_unreadable_bytes_become_a_dead_letter_and_the_batch_goes_on(
    value: bytes | None, key: bytes, error: str
) -> None:
    result = await process([Raw(10, value, key), Raw(11, encode(make_tick(5)))])
    (letter,) = letters(result)
    assert (letter.topic, letter.partition, letter.offset, letter.stage) == (*PLACE, 10, "keep")
    assert (letter.value, letter.key, letter.error_class) == (value, key, error)
    assert result.dead_letters == 1
    assert result.outgoing == 1


async def test_a_dead_letter_of_a_record_with_a_huge_key_fits_into_its_topic() -> None:
    result = await process([Raw(10, b"not ours at all", bytes(1_200_000))])
    (output,) = result.outputs
    assert len(output.key or b"") + len(output.value) < 50_000
    (letter,) = letters(result)
    assert (letter.key, letter.value, letter.is_whole) == (bytes(MAX_LETTER_KEY_BYTES), b"not ours at all", False)


async def test_a_record_that_the_stage_refuses_is_a_dead_letter_too() -> None:
    result = await process([Raw(10, encode(make_started())), Raw(11, encode(make_tick(5)))])
    assert [letter.message for letter in letters(result)] == ["this stage takes ticks alone"]


async def test_a_batch_gives_the_same_as_its_records_one_by_one() -> None:
    count = 2 * CACHED + 3
    broken = {1, CACHED - 1, CACHED, 2 * CACHED + 1}
    raws = [Raw(n, b"broken" if n in broken else encode(make_tick(n)), b"k%d" % n) for n in range(count)]
    whole = await process(raws)
    work = StagePartition(PureAsEffects(KeepStage()), PLACE, app_version="1")
    parts = [await work.process([raw]) for raw in raws]
    assert [letter.offset for letter in letters(whole)] == sorted(broken)
    for topic in (DROPS.name, DEAD_LETTERS.name):
        one_by_one = [output for part in parts for output in part.outputs if output.topic == topic]
        assert [output for output in whole.outputs if output.topic == topic] == one_by_one
    assert whole.changelog == [row for part in parts for row in part.changelog]
    assert (whole.outgoing, whole.dead_letters) == (count - len(broken), len(broken))


async def test_a_batch_with_one_record_besides_ticks_commits() -> None:
    event = Raw(1, encode(drop_of("u")))
    time_passes = ticks(*range(2 * CACHED))
    assert (await processed_quietly(time_passes)).quiet
    assert not (await processed_quietly([event, *time_passes])).quiet
    assert not (await processed_quietly([*time_passes, event])).quiet


async def test_an_input_above_the_limit_is_a_letter_that_always_fits() -> None:
    large = encode(make_started(labels={"notes": "n" * 1_200_000}))
    result = await small(KeepStage()).process([Raw(0, large), Raw(1, encode(make_tick(1)))])
    (letter,) = letters(result)
    assert (letter.error_class, letter.value_bytes) == ("RecordTooLargeError", len(large))
    assert letter.value_sha256 == hashlib.sha256(large).hexdigest()
    assert letter.value == large[: MAX_LETTER_BYTES // 2] + large[-MAX_LETTER_BYTES // 2 :]
    assert all(len(output.value) < LIMIT for output in result.outputs)


async def test_a_too_large_output_without_a_fate_leaves_a_dead_letter() -> None:
    result = await small(KeepStage(1_200_000)).process([Raw(0, encode(make_tick(1)))])
    (letter,) = letters(result)
    assert (letter.error_class, letter.offset, len(result.outputs)) == ("RecordTooLargeError", 0, 1)


@pytest.mark.parametrize("large", [make_trajectory("e1", text="x" * 1_200_000), make_score("t1", labels=LONG)])
async def test_a_trajectory_or_score_above_the_limit_is_dropped_by_name(large: Any) -> None:
    (drop,) = await drops_of(large)
    assert (drop.unit, drop.unit_id, drop.reason, drop.stage) == ("trajectory", large.trajectory_id, "too_large", "say")
    assert drop.trajectory_ids == (large.trajectory_id,)


async def test_a_too_large_group_or_batch_is_dropped_with_its_members() -> None:
    groups = [make_group(name, (0.0, 1.0), group_key="x" * 700_000) for name in ("a", "b")]
    (drop_of_group,) = await drops_of(replace(groups[0], group_key="x" * 1_200_000))
    batch = make_batch(0, groups)
    both = await drops_of(batch)
    assert [drop.unit_id for drop in both] == ["a", "b"]
    assert {(drop.unit, drop.reason, drop.run_id) for drop in (drop_of_group, *both)} == {
        ("group", "too_large", "main")
    }
    assert [drop.trajectory_ids for drop in both] == [
        tuple(member.trajectory_id for member in group.members) for group in groups
    ]


async def test_a_row_above_the_limit_is_counted_and_ends_no_stage() -> None:
    work = small(KeepStage())
    work.state.seen.put("large", "x" * 1_200_000)
    result = await work.process([Raw(0, encode(make_tick(1)))])
    assert [key for key, _ in result.changelog] == [b"seen\x1fk"]
    (*_, drop) = [decode(output.value) for output in result.outputs]
    assert (drop.reason, drop.unit_id, drop.detail) == (
        "too_large",
        "seen\x1flarge",
        "a row of the state has 1200011 bytes and does not outlive a restart of the worker",
    )


LIMIT = 1_000_000


def small(stage: Any) -> StagePartition:
    return StagePartition(PureAsEffects(stage), PLACE, app_version="1", max_record_bytes=LIMIT)


async def drops_of(record: Any) -> list[Drop]:
    """What comes of a stage that emits this record."""

    class Say(KeepStage):
        name = "say"

        def step(self, state: KeepState, incoming: Incoming) -> Iterable[Outgoing]:
            yield Outgoing(DROPS, "out", record)

    result = await small(Say()).process([Raw(0, encode(make_tick(1)))])
    return [decode(output.value) for output in result.outputs]


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 8))
def test_slices_tile_the_batch(gaps: list[int], limit: int) -> None:
    offsets: list[int] = []
    for gap in gaps:
        offsets.append((offsets[-1] + 1 if offsets else 100) + gap)
    end = (offsets[-1] if offsets else 100) + 3
    batch = Batch(PLACE, 100, end, [Raw(offset, b"") for offset in offsets])
    parts = batch.slices(limit)
    assert parts[0].start == 100
    assert parts[-1].end == end
    assert all(left.end == right.start for left, right in itertools.pairwise(parts))
    assert [record.offset for part in parts for record in part.records] == offsets
    assert all(len(part.records) <= limit for part in parts)


@given(st.lists(st.integers(0, 50), unique=True).map(sorted), st.integers(0, 50))
def test_the_rest_of_a_batch_after_a_position_keeps_later_records(offsets: list[int], position: int) -> None:
    batch = Batch(PLACE, 0, 51, [Raw(offset, b"") for offset in offsets])
    rest = batch.after(position)
    assert (rest.start, rest.end) == (position, 51)
    assert [record.offset for record in rest.records] == [offset for offset in offsets if offset >= position]


def test_keys_go_where_every_kafka_client_sends_them() -> None:
    # From the Java client's own test of its default partitioner hash: murmur2("foobar") = -790332482.
    assert partition_of(b"foobar", 1_000) == (-790332482 & 0x7FFFFFFF) % 1_000


def test_a_changelog_that_differs_from_its_offset_is_refused_with_both() -> None:
    place = {"topic": "c", "partition": 0, "group": "g", "stage": "counter"}
    assert agreed_position(5, Committed(5, "me"), **place) == 5  # type: ignore[arg-type]
    with pytest.raises(DataLossError, match=r"position 4.*committed 5.*`rollbus worker accept-loss counter`"):
        agreed_position(4, Committed(5, "me"), **place)  # type: ignore[arg-type]


class TickStage:
    """Remembers the last tick, and emits a drop at every tenth."""

    name = "ticking"
    input = EPISODE_EVENTS

    def new_state(self) -> KeepState:
        return KeepState()

    def step(self, state: KeepState, incoming: Incoming) -> Iterable[Outgoing]:
        number = incoming.record.number
        state.seen.put("now", str(number))
        if number % 10 == 0:
            yield Outgoing(DROPS, "k", drop_of(str(number)))


def ticks(*numbers: int) -> list[Raw]:
    return [Raw(number, encode(make_tick(number))) for number in numbers]


async def test_quiet_ticks_wait_and_are_written_with_the_next_batch() -> None:
    work = StagePartition(PureAsEffects(TickStage()), PLACE, app_version="1")
    quiet = await work.process(ticks(1, 2), hold_quiet=True)
    assert (quiet.quiet, quiet.changelog, quiet.outputs) == (True, [], [])
    outcome = await work.process(ticks(3, 10), hold_quiet=True)
    assert not outcome.quiet
    assert (outcome.changelog, len(outcome.outputs)) == ([(b"seen\x1fnow", b"\x0110")], 1)


async def test_quiet_ticks_are_written_where_they_may_not_wait() -> None:
    work = StagePartition(PureAsEffects(TickStage()), PLACE, app_version="1")
    await work.process(ticks(1), hold_quiet=True)
    processed = await work.process(ticks(2))
    assert (processed.quiet, processed.changelog) == (True, [(b"seen\x1fnow", b"\x012")])


async def processed_quietly(raws: Sequence[Raw]) -> Processed:
    class Silent(TickStage):
        def step(self, state: KeepState, incoming: Incoming) -> Iterable[Outgoing]:
            return ()

    return await StagePartition(PureAsEffects(Silent()), PLACE, app_version="1").process(raws, hold_quiet=True)


async def test_restored_rows_and_incoming_answers_are_activity() -> None:
    class Asking:
        name, input, answered = "asking", EPISODE_EVENTS, 5

        def new_state(self) -> KeepState:
            return KeepState()

        async def answer(self, state: KeepState, incoming: Sequence[Incoming]) -> Sequence[None]:
            for _ in incoming:
                self.answered += 1
                seen.append(work.activity)
            return [None] * len(incoming)

        def step(self, state: KeepState, incoming: Incoming, answer: None) -> Sequence[Outgoing]:
            return ()

    seen: list[int] = []
    work = StagePartition(Asking(), PLACE, app_version="1")
    work.restore(b"seen\x1fk", b"\x01one")
    assert work.activity == 1
    await work.process(ticks(1, 2))
    assert seen == [7, 8]
    assert work.activity == 1
