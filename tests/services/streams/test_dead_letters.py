"""Dead letters on a real broker: listed, shown, written again once, and recognised when they fail again."""

import hashlib
import random
from functools import partial
from pathlib import Path

import pytest

from rollbus.consumers.dead_letters import letter_origin
from rollbus.consumers.dead_letters_kafka import read_dead_letters
from rollbus.schemas.codec import encode
from rollbus.schemas.limits import MAX_LETTER_BYTES
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.drops import DeadLetter
from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import describe_topics, ensure_topics
from rollbus.streams.stages.assembly.stage import AssemblyStage
from tests.builders import make_tick
from tests.hostile.attacker import keys
from tests.services.commands import say_in_thread, write_config
from tests.services.streams.fixtures import CountStage, send, stream_settings
from tests.services.streams.process import running
from tests.waiting import many, until_found

pytestmark = pytest.mark.services


class Operator:
    """Looks at the dead letters of a namespace, by command and by reading."""

    def __init__(self, settings: StreamSettings, folder: Path) -> None:
        self.settings = settings
        self._config = write_config(folder, settings.kafka.bootstrap_servers, settings.namespace)

    async def cli(self, *arguments: str, noun: str = "dead-letters") -> str:
        """Return what the command says."""
        return await say_in_thread(self._config, noun, *arguments)

    async def letters(self, count: int) -> list[DeadLetter]:
        """Return all letters, once there are so many."""
        look = partial(read_dead_letters, self.settings.kafka, self.settings.namespace)
        return await until_found(look, f"{count} letters do not come", is_enough=many(count))

    async def attempts(self, count: int) -> list[int]:
        """Return the attempts of all letters, once there are so many."""
        return [letter.attempt for letter in await self.letters(count)]


async def test_a_dead_letter_is_written_again_once_and_counts_its_attempts(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings, [CountStage()])
    operator = Operator(settings, tmp_path)
    cli, letters = operator.cli, operator.attempts
    large = b"\xc3\x01" + bytes(899_990)
    async with running(settings, [CountStage()]):
        await send(settings, EPISODE_EVENTS.name, [(b"k0", b"not ours"), (b"k0", large), (b"k0", None)])
        assert await letters(3) == [1, 1, 1]
        assert "UndecodableError" in await cli("list")
        first_place = (await cli("list")).split("episode-events:")[1].split()[0]
        assert b"not ours".hex() in await cli("show", f"episode-events:{first_place.partition(':')[0]}:0")
        assert (await cli("reinject", "--all", "--dry-run")).count("would reinject") == 2
        assert (await cli("reinject", "--all")).count(" as attempt 2") == 2
        assert await letters(5) == [1, 1, 1, 2, 2]
        again = await cli("reinject", "--all")
        assert again.count(" as attempt 3") == 2
        assert "3 left out" in again


async def test_a_large_record_leaves_a_small_letter_and_is_written_again_whole(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    settings = stream_settings(kafka, namespace)
    stages = [AssemblyStage(AssemblyConfig())]
    await ensure_topics(settings, stages)
    operator = Operator(settings, tmp_path)
    large = b"\xc3\x01" + b"eight by" + random.Random(1).randbytes(2_000_000)
    async with running(settings, stages):
        await send(settings, EPISODE_EVENTS.name, [(b"k0", large)])
        (letter,) = await operator.letters(1)
        assert (letter.is_whole, letter.value_bytes) == (False, len(large))
        assert letter.value == large[: MAX_LETTER_BYTES // 2] + large[-MAX_LETTER_BYTES // 2 :]
        assert (await operator.cli("reinject", "--all")).count(" as attempt 2") == 1
        again = await operator.letters(2)
        assert [(next_letter.attempt, next_letter.value_sha256) for next_letter in again] == [
            (attempt, hashlib.sha256(large).hexdigest()) for attempt in (1, 2)
        ]
        assert "1 left out" in await operator.cli("reinject", letter_origin(letter))


async def test_a_forged_tick_is_refused_by_name_and_not_written_again(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    settings = stream_settings(kafka, namespace).model_copy(update={"signing": keys("the-owners-own-key")})
    stages = [AssemblyStage(AssemblyConfig())]
    await ensure_topics(settings, stages)
    operator = Operator(settings, tmp_path)
    async with running(settings, stages):
        await send(settings, EPISODE_EVENTS.name, [(b"k0", encode(make_tick(2**40)))])
        (letter,) = await operator.letters(1)
    output = await operator.cli("reinject", "--all")
    origin = letter_origin(letter)
    assert f"refused {origin}: it is Tick, which only the owner signs; a running worker writes the next one" in output
    assert "left out" not in output
    assert "reinjected" not in output
    (topic,) = [topic for topic in await describe_topics(settings) if topic.name == letter.topic]
    assert topic.oldest_tick is not None
    assert topic.oldest_tick < 2**40, "it shows ticks whose signature was checked"
    assert "signatures of ticks were not checked" in await operator.cli("list", noun="topics")
