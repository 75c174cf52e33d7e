"""Records that no producer of ours sends: valid bytes mutated by a seed, and valid records with absurd values."""

import dataclasses
import math
import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from rollbus.schemas.codec import encode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.records.groups import ClosedGroup
from rollbus.schemas.topics import ALIASES, CLOSED_GROUPS, EPISODE_EVENTS, RUN_LOG, SCORES, TRAJECTORIES, Topic
from tests.builders import (
    make_alias,
    make_alias_reward,
    make_command,
    make_episode,
    make_excluded,
    make_group,
    make_outcome,
    make_reward,
    make_score,
    make_tick,
    make_tool,
    make_trajectory,
    make_turn,
    make_version,
)
from tests.trainer.scenario import make_batch

NUMBERS: tuple[Any, ...] = (-1, 0, 1, 2**31 - 1, -(2**31), 2**62, 2**63 - 1, -(2**63))
FLOATS: tuple[Any, ...] = (math.nan, math.inf, -math.inf, -0.0, 1e308, 5e-324)
TEXTS: tuple[Any, ...] = ("", "\x00", "\x1f", "e1", "\U0001f4a3" * 50, "a" * 5_000)
BYTES: tuple[Any, ...] = (b"", b"\x00", b"\xff" * 3, b"\xff" * 4_000, struct.pack("<3f", math.nan, math.inf, 0.0))


def seeds(topic: Topic) -> list[Any]:
    """Return good records of a topic, of every kind that it holds, ticks apart."""
    alias = [make_alias("a"), make_alias_reward("a", 1.0)]
    events = [
        *make_episode("e1", turns=2),
        make_tool("e2"),
        make_reward("e3", 0.5),
        make_excluded("e4"),
        make_turn("e5"),
    ]
    trajectories = [make_trajectory("e1"), make_trajectory("e2", reward=None)]
    scores = [make_score("t1"), make_score("t2", 0.0), make_score("t3", None)]
    closed = [ClosedGroup(group=make_group(f"g{number}")) for number in range(3)]
    run_log = [make_group("g1"), make_command("resume"), make_version(1), make_outcome(make_batch(0, []))]
    return {
        ALIASES.name: alias,
        EPISODE_EVENTS.name: events,
        TRAJECTORIES.name: trajectories,
        SCORES.name: scores,
        CLOSED_GROUPS.name: closed,
        RUN_LOG.name: run_log,
    }[topic.name]


def fuzzed_frames(topic: Topic, count: int, seed: int) -> Iterator[bytes]:
    """Yield so many records: half with mutated bytes, half with absurd values, a good one and a tick now and then."""
    chance = random.Random(f"{topic.name}-{seed}")
    good = seeds(topic)
    frames = [encode(record) for record in good]
    for number in range(count):
        if number % 50 == 0:
            yield encode(make_tick(number // 50))
        elif chance.random() < 0.5:
            yield mutate_frame(frames, chance)
        else:
            yield absurd(chance.choice(good), chance) or chance.choice(frames)


def mutate_frame(frames: Sequence[bytes], chance: random.Random) -> bytes:
    """Flip, cut, insert, repeat or splice bytes, mostly behind the header."""
    data = bytearray(chance.choice(frames))
    for _ in range(chance.choice((1, 1, 2, 5))):
        place = chance.randrange(10, len(data)) if chance.random() < 0.95 and len(data) > 10 else 0
        match chance.randrange(6):
            case 0:
                data[place : place + 1] = bytes([chance.randrange(256)])
            case 1:
                del data[place:]
            case 2:
                data[place:place] = chance.randbytes(chance.randrange(1, 9))
            case 3:
                data[place:place] = data[place : place + chance.randrange(1, 40)]
            case 4:
                data[place : place + 8] = struct.pack("<d", chance.choice(FLOATS))
            case _:
                data[place:] = chance.choice(frames)[place:]
        data = data or bytearray(b"\x00")
    return bytes(data)


def absurd(record: Any, chance: random.Random) -> bytes | None:
    """Give some fields values of the right type that make no sense; None where the record cannot be written."""
    changes = {}
    for field in chance.sample(
        dataclasses.fields(record), k=min(len(dataclasses.fields(record)), chance.randint(1, 3))
    ):
        changes[field.name] = _other_value(getattr(record, field.name), chance)
    try:
        return encode(dataclasses.replace(record, **changes))
    except RecordError:
        return None


def _other_value(value: Any, chance: random.Random) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return chance.choice(NUMBERS)
        case float():
            return chance.choice(FLOATS)
        case str():
            return chance.choice(TEXTS)
        case bytes():
            return chance.choice(BYTES)
        case tuple():
            return value * chance.choice((0, 2, 3))
        case dict():
            return {}
        case None:
            return chance.choice((*NUMBERS[:4], *FLOATS[:2], *TEXTS[:3], b""))
    return value
