"""The examples of the framework hooks, run as they stand from the wheel, put trainable turns on a real broker.

`test_examples_on_a_real_model.py` runs them from the development install.
"""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer

from rollbus.schemas import codec
from rollbus.schemas.records.events import EpisodeEnded, Event, RewardReported, ToolCalled, TurnRecorded
from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.streams.kafka.topics_on_broker import ensure_topics
from tests.installs import own_environment
from tests.producers.integrations.agent_server import AgentServer, assert_sampled
from tests.services.streams.fixtures import stream_settings
from tests.web import QuietHandler, serve

pytestmark = pytest.mark.services
EXAMPLES = Path(__file__).parents[3] / "examples"
FRAMEWORKS = ("langgraph", "llama_index", "adk", "openai_agents", "litellm")


@pytest.fixture
def server() -> Iterator[tuple[AgentServer, str]]:
    """The scripted model server on a port of its own, and its base URL."""
    scripted = AgentServer(tool="stock", arguments={"item": "bolts"})

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            answer = scripted.answer_body(self.read_json())
            content = answer.read()
            self.send_response(answer.status_code)
            self.send_header("content-type", answer.headers["content-type"])
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with serve(Handler) as address:
        yield scripted, f"{address}/v1"


@pytest.fixture
async def topics(kafka: str, namespace: str) -> str:
    """The namespace, with its topics."""
    await ensure_topics(stream_settings(kafka, namespace))
    return namespace


async def events_of(kafka: str, namespace: str) -> list[Event]:
    """All events of the one episode, in order."""
    consumer = AIOKafkaConsumer(
        EPISODE_EVENTS.full_name(namespace), bootstrap_servers=kafka, auto_offset_reset="earliest"
    )
    await consumer.start()
    events: list[Event] = []
    try:
        async with asyncio.timeout(120):
            while not any(isinstance(event, EpisodeEnded) for event in events):
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    events += [codec.decode(message.value) for message in messages]
    finally:
        await consumer.stop()
    return events


@pytest.mark.parametrize("install", ["wheel"], indirect=True)
@pytest.mark.parametrize("framework", FRAMEWORKS)
async def test_an_example_records_trainable_turns_tools_and_a_reward(
    framework: str, install: Path, kafka: str, topics: str, server: tuple[AgentServer, str], tmp_path: Path
) -> None:
    scripted, base_url = server
    environment = own_environment() | {
        "OPENAI_BASE_URL": base_url,
        "KAFKA_BOOTSTRAP_SERVERS": kafka,
        "ROLLBUS_NAMESPACE": topics,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    command = [str(install / "python"), str(EXAMPLES / framework / "agent.py")]
    completed = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=400
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith(scripted.final)
    events = await events_of(kafka, topics)
    assert_sampled(scripted, [event for event in events if isinstance(event, TurnRecorded)])
    assert [event.name for event in events if isinstance(event, ToolCalled)] == ["stock"]
    assert [event.value for event in events if isinstance(event, RewardReported)] == [1.0]
