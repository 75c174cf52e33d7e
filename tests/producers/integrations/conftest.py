"""A scripted server, the same for every framework."""

from collections.abc import Iterator

import pytest

from tests.producers.integrations.agent_server import AgentServer


@pytest.fixture
def server() -> AgentServer:
    """A server that asks for the tool `stock` first, then answers."""
    return AgentServer(tool="stock", arguments={"item": "bolts"})


@pytest.fixture
def traced_agents() -> Iterator[None]:
    """The agents' own traces, which other tests switch off."""
    from agents import set_tracing_disabled

    set_tracing_disabled(False)
    yield
    set_tracing_disabled(True)
