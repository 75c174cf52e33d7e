"""`rollbus archive` on a real broker: what retention takes is replayed months later, byte for byte."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from aiokafka import TopicPartition
from moto.server import ThreadedMotoServer

from rollbus.archive.archive import open_archive
from rollbus.archive.kafka.restore import Restore
from rollbus.schemas.errors import ConfigurationError, DataLossError, FencedError
from rollbus.settings import Settings
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import delete_topics, topics_on_broker
from tests.services.archive.archive_log import (
    archive_run,
    archived_log,
    fill,
    make_settings,
    read_log,
)
from tests.services.commands import say, say_in_thread
from tests.services.replay.log import replay_of
from tests.services.streams.fixtures import delete_before

pytestmark = pytest.mark.services


@pytest.fixture
def archive_job(tmp_path: Path, kafka: str, namespace: str) -> tuple[Path, Settings]:
    return make_settings(tmp_path, kafka, namespace, archive={"url": str(tmp_path / "archive")})


def events(stream: StreamSettings, number: int) -> TopicPartition:
    return TopicPartition(f"{stream.namespace}episode-events", number)


async def digests(settings: Settings, namespace: str) -> dict[str, str]:
    """What a replay of a namespace decides, by stage."""
    replay = replay_of(settings.model_copy(update={"namespace": namespace}), "digest", allow_missing=True)
    manifest = await replay.run(dry_run=True)
    assert manifest.records["trajectories"] > 10
    return {digest.stage: digest.digest for digest in manifest.digests}


def test_deleted_records_are_replayed_from_the_archive_byte_for_byte(
    archive_job: tuple[Path, Settings],
) -> None:
    path, settings = archive_job
    stream = settings.stream_settings()
    asyncio.run(fill(settings, rounds=range(3)))
    asyncio.run(delete_before(stream.kafka, {events(stream, 0): 3}))
    assert "has 1 manifest\n" in say(path, "archive", "run")
    asyncio.run(fill(settings, rounds=range(3, 6)))
    assert "2 manifests" in say(path, "archive", "run")
    assert "0 records archived; " in say(path, "archive", "run")

    log, decided = asyncio.run(read_log(stream, stream.namespace)), asyncio.run(digests(settings, stream.namespace))
    ends = {
        TopicPartition(stream.namespace + topic, number): records[-1].offset + 1
        for (topic, number), records in log.items()
        if records
    }
    asyncio.run(delete_before(stream.kafka, ends))
    assert not any(asyncio.run(read_log(stream, stream.namespace)).values())

    assert "each is as it was written" in say(path, "archive", "verify")
    assert "episode-events" in say(path, "archive", "ls")
    restored = f"restored-march.{stream.namespace}"
    assert restored in say(path, "archive", "restore", "march")
    assert asyncio.run(read_log(stream, restored)) == log
    assert asyncio.run(digests(settings, restored)) == decided
    assert "topics already" in say(path, "archive", "restore", "march", expect=1)
    assert "deleted" in say(path, "archive", "discard", "march")
    assert not [name for name in asyncio.run(topics_on_broker(stream)) if name.startswith(restored)]


async def test_a_run_goes_on_after_one_that_was_cut_off_between_two_manifests(
    archive_job: tuple[Path, Settings],
) -> None:
    path, settings = archive_job
    stream, url = settings.stream_settings(), str(path.parent / "archive")
    await fill(settings)

    def die(done: int, of: int) -> None:
        if done > of / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await archive_run(settings, url, progress=die, file_bytes=2_000, portion_bytes=8_000)
    half = open_archive(url)
    assert (half.verify(), half.contents.number > 0) == ([], True)
    log = await read_log(stream, stream.namespace)
    assert archived_log(half) != log
    run = await archive_run(settings, url, file_bytes=2_000)
    assert archived_log(open_archive(url)) == log
    assert open_archive(url).find_unnamed() == []
    assert max(len(run.archive.contents.files_of(place)) for place in log) > 3


async def test_records_deleted_between_two_archive_runs_are_named_everywhere(
    archive_job: tuple[Path, Settings],
) -> None:
    path, settings = archive_job
    stream, url = settings.stream_settings(), str(path.parent / "archive")
    await fill(settings, rounds=range(3))
    await archive_run(settings, url)
    await fill(settings, rounds=range(3, 6))
    end = open_archive(url).contents.partitions["episode-events", 1].end
    await delete_before(stream.kafka, {events(stream, 1): end + 4})
    output = await say_in_thread(path, "archive", "run", "--at", url, expect=1)
    assert f"retention deleted episode-events[1] {end} … {end + 3} before this run" in " ".join(output.split())
    status = await say_in_thread(path, "status", expect=1)
    assert f"the last archive job: retention deleted episode-events[1] {end}" in " ".join(status.split())
    assert f"missing: episode-events[1] {end}" in await say_in_thread(path, "archive", "verify", "--at", url, expect=1)
    await say_in_thread(path, "archive", "run", "--at", url)
    assert "the last archive job" not in await say_in_thread(path, "status", expect=1)
    output = await say_in_thread(path, "archive", "restore", "holey", expect=1)
    assert f"episode-events[1] {end} … {end + 3}" in output
    assert "--allow-missing" in output
    await say_in_thread(path, "archive", "restore", "holey", "--allow-missing")
    assert await read_log(stream, f"restored-holey.{stream.namespace}") == archived_log(open_archive(url))


async def test_what_retention_took_is_named_once_after_a_run_that_was_cut_off(
    archive_job: tuple[Path, Settings],
) -> None:
    path, settings = archive_job
    stream, url = settings.stream_settings(), str(path.parent / "archive")
    await fill(settings, rounds=range(3))
    await archive_run(settings, url)
    await fill(settings, rounds=range(3, 6))
    end = open_archive(url).contents.partitions["episode-events", 1].end
    await delete_before(stream.kafka, {events(stream, 1): end + 4})

    def die(done: int, of: int) -> None:
        if open_archive(url).contents.number > 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await archive_run(settings, url, progress=die, file_bytes=1, portion_bytes=1)
    await archive_run(settings, url)
    archive = open_archive(url)
    assert list(map(str, archive.contents.missing)) == [f"episode-events[1] {end} … {end + 3}"]
    assert archive.verify() == []


async def test_a_topic_that_was_made_again_is_not_archived_over_the_old_one(archive_job: tuple[Path, Settings]) -> None:
    path, settings = archive_job
    stream, url = settings.stream_settings(), str(path.parent / "archive")
    await fill(settings, rounds=range(3))
    await archive_run(settings, url)
    await delete_topics(stream, [stream.namespace + "episode-events"])
    await fill(settings, rounds=range(1))
    with pytest.raises(
        DataLossError, match=r"episode-events\[\d\] is not the one that the archive .* holds: its id is"
    ):
        await archive_run(settings, url)
    assert (open_archive(url).verify(), open_archive(url).contents.number) == ([], 1)


async def test_an_altered_archive_is_refused_by_name_before_a_topic_is_made(archive_job: tuple[Path, Settings]) -> None:
    path, settings = archive_job
    stream, url = settings.stream_settings(), str(path.parent / "archive")
    await fill(settings, rounds=range(2))
    run = await archive_run(settings, url)
    file = run.archive.contents.files_of(("episode-events", 0))[0].path
    (path.parent / "archive" / file).write_bytes(b"other")
    output = await say_in_thread(path, "archive", "restore", "altered", expect=1)
    assert f"{file} of the archive {url} was altered" in output
    assert not [
        name for name in await topics_on_broker(stream) if name.startswith("restored-altered." + stream.namespace)
    ]
    other = settings.model_copy(update={"namespace": "another."})
    with pytest.raises(ConfigurationError, match="there is no topic of another"):
        await archive_run(other, url)


async def test_a_restore_that_was_cut_off_is_not_taken_for_a_log(archive_job: tuple[Path, Settings]) -> None:
    path, settings = archive_job
    stream, url = settings.stream_settings(), str(path.parent / "archive")
    await fill(settings)
    await archive_run(settings, url)

    def die(done: int, of: int) -> None:
        if done > of / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await Restore(stream, open_archive(url), "half", progress=die).run()
    half = path.with_name("half.yaml")
    half.write_text(path.read_text().replace(stream.namespace, f"restored-half.{stream.namespace}"))
    output = await say_in_thread(half, "replay", "--from", "earliest", "--dry-run", expect=1)
    assert f"there is no topic restored-half.{stream.namespace}exclusions" in output
    assert "the restore has not ended" in output
    output = await say_in_thread(path, "archive", "restore", "half", expect=1)
    assert "`rollbus archive discard half`" in output
    await say_in_thread(path, "archive", "discard", "half")
    await say_in_thread(path, "archive", "restore", "half")
    assert await read_log(stream, f"restored-half.{stream.namespace}") == archived_log(open_archive(url))


def test_a_forgotten_person_leaves_the_archive_and_does_not_come_back(archive_job: tuple[Path, Settings]) -> None:
    path, settings = archive_job
    url = str(path.parent / "archive")
    asyncio.run(fill(settings, rounds=range(3)))
    asyncio.run(archive_run(settings, url))
    mentioned = archived_bytes(url, b"e2")
    assert mentioned > 3
    assert "their records" in say(path, "forget", "--episode", "e2", "--no-clickhouse", "--dry-run")
    assert archived_bytes(url, b"e2") == mentioned
    output = say(path, "forget", "--episode", "e2", "--no-clickhouse")
    assert f"removed: {mentioned} records" in " ".join(output.split())
    asyncio.run(fill(settings, rounds=range(1)))  # the producer sends it again
    assert "of forgotten episodes" in say(path, "archive", "run")
    assert archived_bytes(url, b"e2") == 0
    assert "each is as it was written" in say(path, "archive", "verify")


def archived_bytes(url: str, needle: bytes) -> int:
    """How many records have a key of this name and are not an exclusion."""
    log = archived_log(open_archive(url))
    return sum(
        record.key == needle and b"forgotten on request" not in (record.value or b"")
        for records in log.values()
        for record in records
    )


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of S3's API on loopback, with a bucket; yields its address."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    for name, value in {"ENDPOINT_URL": address, "ACCESS_KEY_ID": "k", "SECRET_ACCESS_KEY": "s",
                        "DEFAULT_REGION": "us-east-1", "EC2_METADATA_DISABLED": "true"}.items():  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    httpx.put(f"{address}/logs", timeout=120).raise_for_status()  # the first request imports moto's S3
    try:
        yield address
    finally:
        believe(address, "inf")
        httpx.post(f"{address}/moto-api/reset").raise_for_status()
        server.stop()


def believe(address: str, requests: str) -> None:
    """Let the server believe any credentials for so many requests."""
    httpx.post(f"{address}/moto-api/reset-auth", content=requests).raise_for_status()


async def test_an_archive_in_a_bucket_is_written_by_one_verified_and_restored(
    archive_job: tuple[Path, Settings], bucket: str
) -> None:
    path, settings = archive_job
    stream, url = settings.stream_settings(), "s3://logs/rollbus"
    await fill(settings, rounds=range(3))
    opened = open_archive(url, may_be_new=True)
    await archive_run(settings, url)
    with pytest.raises(FencedError, match="another archiver has written manifests/00000001"):
        await archive_run(settings, url, opened)
    await fill(settings, rounds=range(3, 6))
    await archive_run(settings, url)
    log = await read_log(stream, stream.namespace)
    assert "each is as it was written" in await say_in_thread(path, "archive", "verify", "--at", url)
    await say_in_thread(path, "archive", "restore", "cloud", "--at", url)
    assert await read_log(stream, f"restored-cloud.{stream.namespace}") == log


async def test_an_unusable_bucket_is_named_and_publishes_nothing(
    archive_job: tuple[Path, Settings], bucket: str
) -> None:
    path, settings = archive_job
    url = "s3://logs/rollbus"
    await fill(settings, rounds=range(3))
    await archive_run(settings, url)
    await fill(settings, rounds=range(3, 6))
    believe(bucket, "7")
    output = await say_in_thread(path, "archive", "run", "--at", url, expect=1)
    assert "of the archive s3://logs/rollbus cannot be" in output
    assert "look at its credentials" in output
    believe(bucket, "inf")
    archive = open_archive(url)
    assert (archive.verify(), archive.contents.number) == ([], 1)
    await archive_run(settings, url)
    assert open_archive(url).verify() == []
    gone = await say_in_thread(path, "archive", "run", "--at", "s3://nothing/here", expect=1)
    assert "s3://nothing/here" in gone
