"""A recorder into memory, and a scripted server."""

from collections.abc import Iterator

import pytest

from rollbus.producers import MemorySink, Recorder, init
from tests.producers.openai_server import Server


@pytest.fixture
def sink() -> MemorySink:
    """Where the recorder's events end up."""
    return MemorySink()


@pytest.fixture
def recorder(sink: MemorySink) -> Iterator[Recorder]:
    """A recorder that is closed after the test."""
    recorder = init(sink=sink, namespace="t.", producer="test-agent", environment="test")
    yield recorder
    recorder.close(120)


@pytest.fixture
def server() -> Server:
    """A server that answers two tokens."""
    return Server()
