"""Dead letters on a real broker: listed, shown, written again once, and recognised when they fail again."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollbus.cli.root import rollbus
from rollbus.consumers.dead_letters_kafka import read_dead_letters_async
from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.streams.topics_kafka import ensure_topics
from tests.services.stream_fixtures import CountStage, send, stream_settings
from tests.services.stream_process import running

pytestmark = pytest.mark.services


async def test_a_dead_letter_is_written_again_once_and_counts_its_attempts(
    kafka: str, namespace: str, tmp_path: Path
) -> None:
    settings = stream_settings(kafka, namespace)
    await ensure_topics(settings, [CountStage()])
    config = tmp_path / "rollbus.yaml"
    config.write_text(f"namespace: {namespace}\nkafka: {{bootstrap_servers: '{kafka}'}}\n")

    async def cli(*arguments: str) -> str:
        result = await asyncio.to_thread(
            CliRunner().invoke, rollbus, ["-c", str(config), "dead-letters", *arguments], env={"COLUMNS": "200"}
        )
        assert result.exit_code == 0, result.output
        return result.output

    async def letters(count: int) -> list[int]:
        async with asyncio.timeout(30):
            while len(found := await read_dead_letters_async(settings.kafka, namespace)) < count:  # noqa: ASYNC110 - looks at a topic
                await asyncio.sleep(0.2)
        return [letter.attempt for letter in found]

    large = b"\xc3\x01" + bytes(899_990)
    async with running(settings, [CountStage()]):
        await send(settings, EPISODE_EVENTS.name, [(b"k0", b"not ours"), (b"k0", large), (b"k0", None)])
        assert await letters(3) == [1, 1, 1]
        assert "UndecodableError" in await cli("list")
        shown = (await cli("list")).split("episode-events:")[1].split()[0]
        assert b"not ours".hex() in await cli("show", f"episode-events:{shown.partition(':')[0]}:0")
        assert (await cli("reinject", "--all", "--dry-run")).count("would reinject") == 2
        assert (await cli("reinject", "--all")).count(" as attempt 2") == 2
        assert await letters(5) == [1, 1, 1, 2, 2]
        again = await cli("reinject", "--all")
        assert again.count(" as attempt 3") == 2
        assert "3 left out" in again
