"""The checker of the faults bites: it accepts what an undisturbed worker wrote, and no log that was tampered with."""

import dataclasses
import random
from collections.abc import Callable

import pytest

from rollbus.schemas.topics import BATCHES, RUN_LOG, SCORES, TRAJECTORIES
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from tests.faults.episodes import Traffic, check_fates, pipeline
from tests.faults.log_contents import Entry, LogContents
from tests.faults.oracle import check_log
from tests.services.streams.fixtures import stream_settings
from tests.services.streams.process import running

pytestmark = pytest.mark.services

Tamper = Callable[[list[Entry], random.Random], None]


def lose(entries: list[Entry], chance: random.Random) -> None:
    del entries[chance.randrange(len(entries))]


def double(entries: list[Entry], chance: random.Random) -> None:
    entries.append(chance.choice(entries)._replace(offset=entries[-1].offset + 1))


def swap(entries: list[Entry], chance: random.Random) -> None:
    """Let the first and the last record change places."""
    first, last = entries[0], entries[-1]
    entries[0], entries[-1] = last._replace(offset=first.offset), first._replace(offset=last.offset)


def alter(entries: list[Entry], chance: random.Random) -> None:
    index = chance.randrange(len(entries))
    value = bytearray(entries[index].value or b"")
    value[-1] ^= 1
    entries[index] = entries[index]._replace(value=bytes(value))


def renumber(entries: list[Entry], chance: random.Random) -> None:
    """Let a record name another round."""
    index = chance.randrange(len(entries))
    entries[index] = entries[index]._replace(headers=(("round", b"1000000"),))


def tamper_contents(contents: LogContents, topic: str, tamper: Tamper) -> LogContents:
    """A copy in which one partition of a topic was changed; ticks stay as they are."""
    entries = {place: list(entries_of_place) for place, entries_of_place in contents.entries.items()}
    place = max((p for p in entries if p.topic.endswith(topic)), key=lambda p: len(entries[p]))
    ours = [entry for entry in entries[place] if entry.key is not None]
    tamper(ours, random.Random(topic))
    entries[place] = sorted([*ours, *(entry for entry in entries[place] if entry.key is None)], key=lambda e: e.offset)
    return dataclasses.replace(contents, entries=entries)


async def test_the_checker_accepts_an_undisturbed_log_and_no_other(kafka: str, namespace: str) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings, pipeline())
    traffic = Traffic(settings)
    async with running(settings, pipeline()):
        await traffic.send(range(8))
        await traffic.until_trained()
    contents = await traffic.check()
    for topic in (TRAJECTORIES, SCORES, RUN_LOG, BATCHES):
        for tamper in (lose, double, swap, alter, renumber):
            with pytest.raises(AssertionError):
                await check_log(tamper_contents(contents, topic.name, tamper), pipeline(), traffic.published)
    for stage in pipeline():
        place = (stage.name, 0)
        torn = {**contents.rows, place: {**contents.rows[place], b"more": b"rows"}}
        with pytest.raises(AssertionError, match="another state"):
            await check_log(dataclasses.replace(contents, rows=torn), pipeline(), traffic.published)
    ticks = {place: [entry for entry in entries if entry.offset] for place, entries in contents.entries.items()}
    with pytest.raises(AssertionError, match="ticks are missing"):
        await check_log(dataclasses.replace(contents, entries=ticks), pipeline(), traffic.published)
    with pytest.raises(AssertionError, match="hides records"):
        await check_log(
            dataclasses.replace(contents, held_back=dict.fromkeys(contents.entries, 1)), pipeline(), traffic.published
        )
    unknown = traffic.published[1:]
    with pytest.raises(AssertionError):
        await check_log(contents, pipeline(), unknown)
    with pytest.raises(AssertionError):
        check_fates(contents, traffic.events[:-20])
