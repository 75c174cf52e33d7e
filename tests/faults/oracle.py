"""What the log must hold, worked out from the log alone: each stage's output follows from its recorded input.

One naive pass of each stage over what its group has committed, record by record in one life in memory, gives the
outputs, the dead letters and the state. It takes a record of a later round after the tick of that round, as live must,
however far apart stages and partitions were. The log must hold exactly these, with what was published and the ticks:
so nothing is lost, nothing is there twice, and nothing came of state that a fault had torn.
"""

import hashlib
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rollbus.runtime.kafka.writing import partition_of
from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.limits import MAX_LETTER_BYTES
from rollbus.schemas.records.control import Tick
from rollbus.schemas.records.trajectories import Location
from rollbus.schemas.soundness import check_sound
from rollbus.schemas.topics import DEAD_LETTERS, STAGE_INPUTS, TOPICS, Topic
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.kafka.topics import partitions_of
from rollbus.streams.pipeline import AnyStage
from rollbus.streams.state.stage import Incoming
from tests.faults.log_contents import Entry, LogContents
from tests.flow.in_memory import Log, Reader
from tests.streams.simulation.naive import IN_ROUNDS, NO_ROUND, by_round

Pair = tuple[bytes | None, bytes | None]
"""Key and value."""
WrittenRow = tuple[bytes | None, bytes | None, int]
"""Key, value, and the round that the record names."""


@dataclass(slots=True)
class Life:
    """What one undisturbed reader makes of one input partition."""

    outputs: dict[Partition, list[WrittenRow]] = field(default_factory=lambda: defaultdict(list))
    refused: list[Entry] = field(default_factory=list)
    rows: dict[bytes, bytes] = field(default_factory=dict)


async def check_log(
    contents: LogContents, stages: Sequence[AnyStage], published: Iterable[tuple[Topic, Pair]], *, pending: bool = False
) -> None:
    """Raise AssertionError for whatever is lost, double, out of order, different or held back.

    Where something is `pending` in the end, a restore may have numbered it again: of the state only its keys are known.
    """
    assert not contents.held_back, f"an unfinished transaction hides records: {contents.held_back}"
    _check_ticks(contents)
    lives = {
        (stage.name, place.partition): await _live(contents, stage, place)
        for stage in stages
        for place in contents.places(stage.input)
    }
    expected: dict[Partition, Counter[WrittenRow]] = defaultdict(Counter)
    for topic, pair in published:
        expected[_place(contents, topic, pair[0])][*pair, NO_ROUND] += 1
    for (stage_name, number), life in lives.items():
        for place, outputs in life.outputs.items():
            expected[place].update(outputs)
            _check_order(f"{stage_name}[{number}]", place, outputs, contents.entries[place])
        rows = contents.rows[stage_name, number]
        same = life.rows.keys() == rows.keys() if pending else life.rows == rows
        assert same, f"the changelog of {stage_name}[{number}] is another state: {_rows_amiss(life.rows, rows)}"
    for topic in TOPICS:
        for place in contents.places(topic) if topic is not DEAD_LETTERS else ():
            there = Counter(_row_of_entry(entry) for entry in contents.entries[place] if entry.record is None)
            assert there == expected[place], f"{place}: {_amiss(there, expected[place])}"
    _check_dead_letters(contents, stages, lives)


def _rows_amiss(expected: Mapping[bytes, bytes], there: Mapping[bytes, bytes]) -> str:
    """Name the first rows that differ: what is expected, and what is there."""
    keys = [key for key in sorted(expected.keys() | there.keys()) if expected.get(key) != there.get(key)]
    return f"{len(keys)} rows, such as " + "; ".join(
        f"{key!r}: {expected.get(key)!r}, {there.get(key)!r}" for key in keys[:3]
    )


async def _live(contents: LogContents, stage: AnyStage, place: Partition) -> Life:
    """Take the committed part of an input partition in one go, record by record, in the order of the rounds."""
    life, end, now = Life(), contents.committed[stage.name, place.partition], NO_ROUND
    log = Log(1, contents.settings.namespace)
    reader = Reader(stage, 0, stage.new_state())
    records: list[list[Incoming]] = [[]]
    log.topics[stage.input.name] = records
    committed = (entry for entry in contents.entries[place] if entry.offset < end)
    for entry, number in by_round(committed, takes_early=getattr(stage, "takes_early", False)):
        if isinstance(entry.record, Tick):
            now = max(now, entry.record.number)
        try:
            records[0].append(_incoming(place, entry))
            await reader.run(log)
        except RecordError:
            life.refused.append(entry)
            reader.position = len(records[0])
        _move_outputs(contents, log, stage, life, max(now, number))
    life.rows = reader.changelog
    return life


def _move_outputs(contents: LogContents, log: Log, stage: AnyStage, life: Life, number: int) -> None:
    """Take what a stage made of one record out of the log in memory."""
    for topic in TOPICS:
        if topic is stage.input:
            continue
        outputs = log.of(topic)[0]
        for incoming in outputs:
            key, of_round = incoming.key.encode(), number if topic.name in IN_ROUNDS else NO_ROUND
            life.outputs[_place(contents, topic, key)].append((key, encode(incoming.record), of_round))
        outputs.clear()


def _incoming(place: Partition, entry: Entry) -> Incoming:
    """Read a record; raises RecordError as the stages' host must."""
    if entry.value is None:
        raise RecordError("no value")
    record: Any = decode(entry.value)
    try:
        key = (entry.key or b"").decode()
    except UnicodeDecodeError as error:
        raise RecordError("key") from error
    check_sound(record)
    location = Location(topic=place.topic, partition=place.partition, offset=entry.offset)
    return Incoming(record, key, location, entry.value, taken_ms=entry.taken_ms)


def _place(contents: LogContents, topic: Topic, key: bytes | None) -> Partition:
    count = partitions_of(topic, contents.settings)
    return Partition(topic.full_name(contents.settings.namespace), partition_of(key, count) if key else 0)


def _row_of_entry(entry: Entry) -> WrittenRow:
    return entry.key, entry.value, int(dict(entry.headers).get("round", NO_ROUND))


def _check_ticks(contents: LogContents) -> None:
    """Each input partition has every tick once, in order, and stream time never jumps or turns back."""
    for topic in dict.fromkeys(STAGE_INPUTS.values()):
        for place in contents.places(topic):
            ticks = [entry.record for entry in contents.entries[place] if isinstance(entry.record, Tick)]
            assert [tick.number for tick in ticks] == list(range(len(ticks))), f"{place}: ticks are missing or double"
            for before, tick in pairwise(ticks):
                advance = tick.stream_time_ms - before.stream_time_ms
                assert 0 < advance <= 2 * tick.interval_ms, f"{place}: tick {tick.number} advances by {advance} ms"


def _check_order(writer: str, place: Partition, outputs: Iterable[WrittenRow], entries: Iterable[Entry]) -> None:
    """What one reader wrote to a partition stands there in the order in which it was written."""
    offsets: dict[WrittenRow, list[int]] = defaultdict(list)
    for entry in entries:
        offsets[_row_of_entry(entry)].append(entry.offset)
    last = -1
    for output in outputs:
        there = offsets[output]
        after = bisect_right(there, last)
        assert after < len(there), f"{writer} → {place}: a record of key {output[0]!r} is missing or out of order"
        last = there[after]


def _check_dead_letters(contents: LogContents, stages: Sequence[AnyStage], lives: dict[tuple[str, int], Life]) -> None:
    """Every refused record is one dead letter with its origin, its bytes and their hash, and there is no other."""
    expected = Counter(
        (stage.name, *place, entry.offset, entry.key, *_fingerprint(entry.value))
        for stage in stages
        for place in contents.places(stage.input)
        for entry in lives[stage.name, place.partition].refused
    )
    letters = contents.dead_letters
    there = Counter(
        (
            letter.stage,
            letter.topic,
            letter.partition,
            letter.offset,
            letter.key,
            letter.value,
            letter.value_bytes,
            letter.value_sha256,
        )
        for letter in letters
    )
    assert there == expected, f"dead letters: {_amiss(there, expected)}"
    assert all(letter.error_class and letter.message for letter in letters), "a dead letter without a reason"


def _fingerprint(value: bytes | None) -> tuple[bytes | None, int, str]:
    """Return what a dead letter holds of a value: all bytes, or both ends of many; their number; their hash."""
    if value is None:
        return None, 0, ""
    half = MAX_LETTER_BYTES // 2
    ends = value if len(value) <= MAX_LETTER_BYTES else value[:half] + value[-half:]
    return ends, len(value), hashlib.sha256(value).hexdigest()


def _amiss(counted: Counter[Any], expected: Counter[Any]) -> str:
    return f"too often {list((counted - expected).items())[:3]}, missing {list((expected - counted).items())[:3]}"
