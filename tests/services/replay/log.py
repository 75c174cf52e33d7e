"""A log without a worker for the replay tests, and replays of it."""

from typing import Any

from rollbus.hosted_stages import all_stages
from rollbus.runtime.kafka.clients import new_producer, running
from rollbus.schemas.codec import encode
from rollbus.schemas.topics import EPISODE_EVENTS, STAGE_INPUTS
from rollbus.settings import Settings
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from rollbus.streams.replay.kafka.run import Replay
from rollbus.streams.replay.plan.plan import ReplayPlan, chain_of
from rollbus.streams.replay.plan.range import Bound
from rollbus.streams.rewards.registry import BUILT_IN
from tests.builders import make_tick
from tests.services.replay.live import traffic
from tests.services.streams.fixtures import places_of, send_to_all

ROUNDS, PER_ROUND = 10, 6
INPUTS = tuple(dict.fromkeys(STAGE_INPUTS.values()))


async def new_topics(settings: Settings) -> Settings:
    """Make the topics of a log; return its settings."""
    await ensure_topics(settings.stream_settings(), all_stages(settings))
    return settings


async def fill(settings: Settings) -> None:
    """Write the events of six episodes between each two of ten ticks; no worker has seen them."""
    stream = settings.stream_settings()
    events = traffic(5, ROUNDS * PER_ROUND)
    size = -(-len(events) // ROUNDS)
    name, places = EPISODE_EVENTS.full_name(stream.namespace), places_of(stream, *INPUTS)
    async with running(stream.kafka, new_producer(stream.kafka)) as producer:
        for number in range(ROUNDS):
            for event in events[number * size : (number + 1) * size]:
                await producer.send(name, encode(event), key=event.root_episode_id.encode())
            for place in places:
                await producer.send(place.topic, encode(make_tick(number)), partition=place.partition)
        await producer.flush()


async def send_everywhere(stream: StreamSettings, data: bytes) -> None:
    """Send a record into every partition of the stages' inputs."""
    await send_to_all(stream, *INPUTS, data=data)


def replay_of(settings: Settings, name: str, **changes: Any) -> Replay:
    """Return a replay of everything, by the settings, with changes to its plan."""
    plan: dict[str, Any] = {
        "name": name,
        "start": Bound(),
        "end": Bound(),
        "stages": chain_of(()),
        "assembly": settings.assembly,
        "scoring": settings.scoring,
        "runs": settings.runs,
        "new_scoring": settings.scoring,
        "scores": "computed",
    }
    return Replay(settings.stream_settings(), ReplayPlan(**(plan | changes)), registry=BUILT_IN)


def name_of(settings: Settings, *more: str) -> str:
    """Return a name of a replay that no other test uses."""
    return "-".join((settings.namespace.strip("."), *more))
