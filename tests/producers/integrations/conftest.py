"""A scripted server, the same for every framework."""

import pytest

from tests.producers.integrations.agent_server import AgentServer


@pytest.fixture
def server() -> AgentServer:
    """A server that asks for the tool `stock` first, then answers."""
    return AgentServer(tool="stock", arguments={"item": "bolts"})
