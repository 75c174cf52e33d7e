"""kill -9 of who asks for attempts and of who makes them: none is asked for or made twice, and the budget holds."""

import asyncio
import json
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from rollbus.resample.requests import group_id
from rollbus.runtime.kafka.groups import committed_offsets
from rollbus.schemas.codec import encode
from rollbus.schemas.records.config import AssemblyConfig, GroupingConfig, ResampleConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.groups import ResampleRequested
from rollbus.schemas.topics import EPISODE_EVENTS, RESAMPLE_REQUESTS
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.pipeline import AnyStage, namespace_stages, run_stages
from rollbus.streams.stages.resample import HOUR_MS
from tests.builders import make_episode
from tests.faults.conftest import SESSION_S, NewWorker, open_worker
from tests.faults.log_contents import read_everything
from tests.faults.oracle import Pair, check_log
from tests.services.stack import resample_maker
from tests.services.streams.fixtures import read_topic, send, stream_settings
from tests.services.streams.process import WAIT_S
from tests.waiting import many, until_found

pytestmark = [pytest.mark.services, pytest.mark.faults]

OPENINGS, SIZE, SAMPLED_TOKENS = 8, 4, 2
ATTEMPTS = 12
TOKENS = ATTEMPTS * 2 * SAMPLED_TOKENS
RUN = RunConfig(
    grouping=GroupingConfig(strategy="by_prompt", group_size=SIZE),
    resample=ResampleConfig(attempts_per_hour=ATTEMPTS, tokens_per_hour=TOKENS),
)
MOST_REQUESTS = ATTEMPTS // len(resample_maker.POINTS)
"""That one maker takes before it is killed: each finds as many."""
DEADLY = ("half_sent", "before_commit", "during_commit", "after_commit")


def pipeline() -> list[AnyStage]:
    """The stages of a run that asks for more attempts."""
    return namespace_stages(AssemblyConfig(), ScoringConfig()) + run_stages(RUN)


@pytest.fixture
async def settings(kafka: str, namespace: str) -> StreamSettings:
    """A namespace whose one partition has the whole budget."""
    test_settings = stream_settings(kafka, namespace, session_timeout_s=SESSION_S, event_partitions=1)
    await ensure_topics(test_settings, pipeline())
    return test_settings


async def publish(settings: StreamSettings, enough: asyncio.Event) -> list[Pair]:
    """Send more openings than there is a budget for, until it is enough; return what was sent."""
    sent: list[Pair] = []
    for number in count():
        if enough.is_set() and number >= OPENINGS:
            break
        events = make_episode(f"e{number}", reward=1.0, start={"example_id": None, "task": f"task-{number}"})
        pairs = [(event.root_episode_id.encode(), encode(event)) for event in events]
        await send(settings, EPISODE_EVENTS.name, pairs)
        sent += pairs
        await asyncio.sleep(0.4)
    return sent


async def requests_of(settings: StreamSettings) -> list[ResampleRequested]:
    return await read_topic(settings, RESAMPLE_REQUESTS.name, 1)


NewMaker = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture
async def makers(settings: StreamSettings, tmp_path: Path) -> AsyncIterator[NewMaker]:
    """Starts processes that make attempts, which end with the test; takes where to die."""
    processes: list[asyncio.subprocess.Process] = []

    async def start(**changes: object) -> asyncio.subprocess.Process:
        given = json.dumps({"session_timeout_s": SESSION_S} | changes)
        arguments = (settings.kafka.bootstrap_servers, settings.namespace, str(tmp_path / "begun"), given)
        with (tmp_path / "makers.log").open("ab") as log:
            command = (sys.executable, resample_maker.__file__, *arguments)
            processes.append(await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log))
        return processes[-1]

    yield start
    for process in processes:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def until_all_taken(settings: StreamSettings) -> None:
    """Wait until the makers' group has marked the last request as taken; a transaction's marker stands behind it."""
    place = TopicPartition(RESAMPLE_REQUESTS.full_name(settings.namespace), 0)
    admin, consumer = (kind(**settings.kafka.client_options()) for kind in (AIOKafkaAdminClient, AIOKafkaConsumer))
    await admin.start()
    await consumer.start()
    try:
        end = (await consumer.end_offsets([place]))[place]
        look = partial(committed_offsets, admin, group_id(settings.namespace, RUN.run_id))
        await until_found(look, "not all are taken", is_enough=lambda at: place in at and at[place].offset >= end - 1)
    finally:
        await consumer.stop()
        await admin.close()


@pytest.mark.timeout(900)  # ten processes start one after another
@pytest.mark.parametrize("schedule", range(2))
async def test_no_attempt_is_asked_for_or_made_twice_and_the_budget_survives(
    settings: StreamSettings,
    workers: NewWorker,
    makers: NewMaker,
    tmp_path: Path,
    chance: random.Random,
    schedule: int,
) -> None:
    """Each point is met: a worker's ticks alone make transactions, and there are requests for all of the makers."""
    enough = asyncio.Event()
    publishing = asyncio.create_task(publish(settings, enough))
    stages = f"{__name__}:pipeline"
    for point in chance.sample(DEADLY, len(DEADLY)):
        worker = workers(settings, die=point, nth=chance.randint(3, 8), stages=stages)
        await worker.start()
        assert await worker.ended() == -signal.SIGKILL, worker.log()
    last = await open_worker(workers, settings, stages=stages)
    requests = await until_found(lambda: requests_of(settings), "too few requests come", is_enough=many(ATTEMPTS))
    enough.set()
    published = await publishing
    for point in chance.sample(resample_maker.POINTS, len(resample_maker.POINTS)):
        killed = await makers(die=point, nth=chance.randint(1, MOST_REQUESTS))
        assert await asyncio.wait_for(killed.wait(), WAIT_S) == -signal.SIGKILL
    survivor = await makers()
    await until_all_taken(settings)
    survivor.send_signal(signal.SIGTERM)
    assert await survivor.wait() == 0
    last.send(signal.SIGTERM)
    assert await last.ended() == 0, last.log()

    requests = await requests_of(settings)
    ids = [request.episode_id for request in requests]
    assert len(set(ids)) == len(ids)
    for hour in {request.requested_at_ms // HOUR_MS for request in requests}:
        of_hour = [request for request in requests if request.requested_at_ms // HOUR_MS == hour]
        assert len(of_hour) <= ATTEMPTS
        assert sum(request.max_tokens or 0 for request in of_hour) <= TOKENS
    begun = Counter((tmp_path / "begun").read_text().split())
    assert set(begun.values()) == {1}
    assert begun.keys() <= set(ids)
    lost = set(ids) - begun.keys()
    assert 1 <= len(lost) <= len(resample_maker.POINTS)  # marked as taken, by one that then died
    contents = await read_everything(settings, pipeline())
    await check_log(contents, pipeline(), [(EPISODE_EVENTS, pair) for pair in published], pending=True)
