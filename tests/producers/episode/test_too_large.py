"""What is above the limit on records is not sent; its episode is known by name, and dropped for that reason."""

from collections.abc import Iterator

import pytest

from rollbus.producers import Recorder, init
from rollbus.producers.sending.sink import MemorySink
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.limits import LEAST_RECORD_BYTES
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.events import Excluded, TurnRecorded
from rollbus.schemas.records.trajectories import Trajectory
from rollbus.streams.stages.assembly.stage import AssemblyStage
from tests.producers.openai_server import Server
from tests.stepper import Stepper

LARGE = "x" * LEAST_RECORD_BYTES


@pytest.fixture
def recorder(sink: MemorySink) -> Iterator[Recorder]:
    """A recorder for a cluster of small records."""
    recorder = init(sink=sink, namespace="t.", security=KafkaConnection(max_record_bytes=LEAST_RECORD_BYTES))
    yield recorder
    recorder.close(120)


def test_the_turn_after_a_too_large_one_carries_the_whole_prompt(
    recorder: Recorder, sink: MemorySink, server: Server
) -> None:
    client = recorder.wrap(server.client())
    with recorder.episode(task="t"):
        client.chat.completions.create(model="agent", messages=[{"role": "user", "content": LARGE}])
        client.chat.completions.create(model="agent", messages=[{"role": "user", "content": "short"}])
    assert recorder.flush(120)
    large, small = [record for record in sink.records("episode-events") if isinstance(record, TurnRecorded)]
    assert (large.trainable, large.untrainable_reason, large.added_messages) == (False, "too_large", ())
    assert (small.trainable, small.prefix_count, len(small.added_messages)) == (True, 0, 1)
    assert recorder.counters["turns_untrainable.too_large"] == 1
    (trajectory,) = assemble_records(sink)
    assert isinstance(trajectory, Trajectory)
    assert len(trajectory.turns) == 2


def test_the_episode_of_another_event_that_is_too_large_is_dropped_by_name(
    recorder: Recorder, sink: MemorySink
) -> None:
    with recorder.episode(task="t") as episode:
        assert recorder.flush(120)
        episode.tool("look", result=LARGE)
        episode.tool("look", result="small")
    assert recorder.flush(120)
    assert [type(record) for record in sink.records("episode-events")][1:] == [Excluded]
    assert recorder.counters["episodes_dropped.too_large"] == recorder.counters["events_dropped.too_large"] == 1
    (drop,) = assemble_records(sink)
    assert isinstance(drop, Drop)
    assert (drop.unit, drop.unit_id, drop.reason) == ("episode", episode.id, "too_large")


def assemble_records(sink: MemorySink) -> list[object]:
    """What assembly makes of all that was sent."""
    return Stepper(AssemblyStage(AssemblyConfig())).feed(*sink.records("episode-events"))
