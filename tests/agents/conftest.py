"""A recorder that is switched on by one line, and a server that fails by a seed."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

import pytest
from agents.tracing import set_trace_processors, set_tracing_disabled

from rollbus import instrument
from rollbus.producers import MemorySink, Recorder, init
from rollbus.schemas.records.events import TurnRecorded
from tests.agents.compare import compare_turns
from tests.agents.model_server import Faults, ModelServer

EPISODES = 3
SEED = int(os.environ.get("ROLLBUS_AGENTS_SEED", "11"))
"""Of the faults: any other must pass too."""
Play = Callable[[str], Awaitable[object]]
"""An agent: does its work on a question that names the episode."""


@pytest.fixture(params=[None, SEED], ids=["whole", f"faults-{SEED}"])
def server(request: pytest.FixtureRequest) -> Iterator[ModelServer]:
    """A server without faults, and with those of a seed."""
    server = ModelServer(Faults(request.param))
    yield server
    server.close()


class World:
    """Lets an agent play some episodes, and compares."""

    def __init__(self, server: ModelServer) -> None:
        self.server, self.sink = server, MemorySink()
        self.recorder: Recorder = init(sink=self.sink, namespace="t.", producer="test-agent")
        self.failure_count = 0

    async def play(self, agent: Play, *, episodes: int = EPISODES) -> None:
        """Play episodes one after the other; an agent that fails ends its episode."""
        for number in range(1, episodes + 1):
            with suppress(Exception):
                async with self.recorder.episode(task="stock", episode_id=f"e{number}"):
                    try:
                        await agent(f"How many bolts? <e{number}>")
                    except BaseException:
                        self.failure_count += 1
                        raise

    def compare(self, **options: bool) -> list[TurnRecorded]:
        """Hold the record against the server, and return the turns."""
        assert self.recorder.flush(120)
        counters = self.recorder.counters
        assert not [name for name in counters if name.startswith("hook_errors")], counters
        assert not counters.get("calls_outside_episode"), counters
        events = list(self.sink.records("episode-events"))
        assert self.failure_count == 0 or self.server.faults.seed is not None
        return compare_turns(self.server, events, **options)


@pytest.fixture
async def world(server: ModelServer) -> AsyncIterator[World]:
    """A process that is recorded by one line."""
    set_tracing_disabled(False)
    set_trace_processors([])
    world = World(server)
    patches = instrument(world.recorder)
    assert patches.failed == {}
    yield world
    patches.undo()
    world.recorder.close(120)
