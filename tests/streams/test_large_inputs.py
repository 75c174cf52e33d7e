"""Any record of any stage's input may come in chunks: what follows is what follows from the record itself."""

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus.schemas.chunks import Chunk, parse, split
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.config import AssemblyConfig, RewardConfig
from rollbus.schemas.drops import DeadLetter
from rollbus.schemas.errors import UndecodableError
from rollbus.schemas.topics import DEAD_LETTERS
from rollbus.streams.assembly import AssemblyStage
from rollbus.streams.batch import Partition
from rollbus.streams.group_scoring import GroupScoringStage
from rollbus.streams.processing import StagePartition
from rollbus.streams.resample import ResampleStage
from rollbus.streams.stage import PureAsEffects
from tests.builders import make_episode, make_group, make_tick
from tests.stepping import Stepper, reasons
from tests.streams.test_group_scoring import REGISTRY, TEXTS, Texts, closed, component, run_with
from tests.streams.test_redelivery import STAGES as REDELIVERED
from tests.streams.test_redelivery import without_location
from tests.streams.test_resample import run_of, traffic
from tests.streams.test_transaction_parts import Raw

JUDGING = component("ranks")
KEY = "main"
"""Of records in a run's log: the run."""


def judging(*rewards: RewardConfig) -> GroupScoringStage:
    return GroupScoringStage(run_with(*rewards), registry=REGISTRY, payload=Texts(*TEXTS))


STAGES: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    **REDELIVERED,
    "assembly": (lambda: AssemblyStage(AssemblyConfig()), [*make_episode("e1"), *make_episode("e2", reward=None)]),
    "group-scoring": (lambda: judging(JUDGING), [closed(f"g{number}") for number in range(4)]),
    "resample": (lambda: ResampleStage(run_of(), partitions=1), [traffic(f"e{number}") for number in range(4)]),
}


def parts_of(record: Any, count: int) -> list[Chunk]:
    data = encode(record)
    size, digest = -(-len(data) // count), hashlib.sha256(data).digest()
    return [Chunk(digest, index, count, data[index * size : (index + 1) * size]) for index in range(count)]


@pytest.mark.parametrize("name", STAGES)
def test_records_in_chunks_give_what_the_records_give_over_restarts_and_repetitions(name: str) -> None:
    make_stage, pool = STAGES[name]

    @settings(max_examples=25)
    @given(st.lists(st.sampled_from(pool), min_size=1, max_size=6, unique_by=encode), st.data())
    def check(records: list[Any], data: st.DataObject) -> None:
        pieces = [parts_of(record, data.draw(st.integers(2, 4))) for record in records]
        whose = data.draw(st.permutations([number for number, parts in enumerate(pieces) for _ in parts]))
        in_order = sorted(
            range(len(records)), key=lambda number: max(at for at, one in enumerate(whose) if one == number)
        )
        plain, parted = Stepper(make_stage()), Stepper(make_stage(), restoring=True)
        plain.tick()
        parted.tick()
        expected = [plain.feed(records[number], key=KEY) for number in in_order]
        waiting, given_before = [iter(parts) for parts in pieces], list[Chunk]()
        found = []
        for number in whose:
            given_before.append(next(waiting[number]))
            found += parted.feed(given_before[-1], key=KEY)
            again = data.draw(st.sampled_from([None, *given_before]))
            assert again is None or parted.feed(again, key=KEY) == []
        assert list(map(without_location, found)) == [without_location(one) for each in expected for one in each]

    check()


@pytest.mark.parametrize("name", STAGES)
def test_parts_that_never_become_a_record_are_counted_once_and_forgotten(name: str) -> None:
    make_stage, pool = STAGES[name]
    stepper = Stepper(make_stage())
    stepper.tick()
    stepper.feed(*parts_of(pool[0], 3)[:-1], key=KEY)
    stepper.restore()
    dropped = reasons(stepper.tick(3_600))
    assert dropped == ([] if name == "resample" else ["missing_chunk"])  # scoring counts it of the same topic
    assert not any(key.startswith(b"chunk") for key in stepper.changelog)
    assert stepper.tick(3_600) == []


def test_a_run_does_not_keep_the_chunks_of_another_runs_groups() -> None:
    stepper = Stepper(STAGES["curriculum"][0]())
    stepper.tick()
    group = replace(make_group("g"), run_id="other")
    before = dict(stepper.changelog)
    assert stepper.feed(*parts_of(group, 2), key="other") == []
    assert stepper.changelog == before


def test_a_batch_that_brings_all_parts_of_a_closed_group_asks_about_it_once() -> None:
    stepper = Stepper(judging(JUDGING))
    stepper.tick()
    parts = parts_of(closed(), 3)
    found = [out.record for out in stepper.outputs([*parts, *parts, make_tick(1)])]
    plain = Stepper(judging(JUDGING))
    plain.tick()
    assert found == plain.feed(closed())


@pytest.mark.parametrize("name", ["scoring", "group-scoring"])
def test_parts_that_expire_within_a_batch_are_asked_about_where_they_become_whole(name: str) -> None:
    make_stage, pool = STAGES[name]
    first, last = parts_of(pool[0], 2)
    tick = make_tick(1, stream_time_ms=make_tick(0).stream_time_ms + 3_600_000)
    batch, apart = Stepper(make_stage()), Stepper(make_stage())
    for stepper in (batch, apart):
        stepper.feed(make_tick(0), first)
    found = [out.record for out in batch.outputs([tick, last, first])]
    assert found == apart.feed(tick, last, first)
    assert reasons(found) == ["missing_chunk"]
    assert len(found) == 2


UNKNOWN = b"\xc3\x01" + b"eight by" + bytes(900)
"""In the frame of a schema that this release does not have."""
EVENTS = Partition("t.episode-events", 0)


def frames_of(data: bytes, first: int = 0) -> list[Raw]:
    return [Raw(first + number, frame) for number, frame in enumerate(split(data, limit=400))]


def assembling() -> StagePartition:
    return StagePartition(PureAsEffects(AssemblyStage(AssemblyConfig())), EVENTS, app_version="1")


async def letters_of(work: StagePartition, raws: list[Raw]) -> list[DeadLetter]:
    outputs = (await work.process(raws)).outputs
    return [decode(output.value) for output in outputs if output.topic == DEAD_LETTERS.name]


async def test_the_dead_letter_of_a_record_in_chunks_holds_all_of_it_and_says_where_it_stands() -> None:
    work = assembling()
    frames = frames_of(UNKNOWN, first=7)
    assert await letters_of(work, [Raw(0, encode(make_tick(0))), *frames[:-1]]) == []
    (letter,) = await letters_of(work, [frames[-1], Raw(99, encode(make_tick(1)))])
    assert letter.value == UNKNOWN
    assert (letter.offset, letter.error_class) == (7, "UndecodableError")
    assert letter.message.endswith("it came in chunks, the last at offset 9")


async def test_a_record_in_chunks_that_the_stage_refuses_is_kept_whole_too() -> None:
    misplaced = encode(make_group("g", tuple(range(8))))
    (letter,) = await letters_of(assembling(), frames_of(misplaced))
    assert (letter.value, letter.error_class) == (misplaced, "InvalidRecordError")


async def test_chunks_that_do_not_add_up_leave_a_letter_that_says_where_the_others_stand() -> None:
    *right, last = frames_of(UNKNOWN, first=3)
    wrong = Raw(last.offset, (last.value or b"")[:-1] + b"?")
    (letter,) = await letters_of(assembling(), [*right, wrong])
    assert letter.value == wrong.value
    assert letter.message.endswith("the parts before this one stand at offsets 3, 4")


@pytest.mark.parametrize("restarted", [False, True])
async def test_what_came_to_nothing_is_read_anew_when_all_of_it_comes_again(restarted: bool) -> None:
    work, changelog = assembling(), dict[bytes, bytes | None]()
    for first in (0, 10):
        result = await work.process(frames_of(UNKNOWN, first))
        assert result.dead_letters == 1
        changelog.update(result.changelog)
        if restarted:
            work = assembling()
            for key, value in changelog.items():
                work.restore(key, value)


def test_parts_that_come_again_of_what_nobody_took_are_not_told_of_twice() -> None:
    stepper = Stepper(AssemblyStage(AssemblyConfig()))
    stepper.tick()
    *parts, last = [parse(raw.value or b"") for raw in frames_of(UNKNOWN)]
    stepper.feed(*parts)
    with pytest.raises(UndecodableError):
        stepper.feed(last)
    stepper.state.refuse(last)
    stepper.tick(1_000)
    stepper.feed(last)
    stepper.restore()
    assert stepper.tick(1_000) == []
    assert stepper.tick(1_000) == []
    assert not any(key.startswith(b"chunk") for key in stepper.changelog)
