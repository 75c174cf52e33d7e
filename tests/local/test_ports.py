"""A port that is taken is named with the process that has it and the setting that moves it."""

import os
import socket
from collections.abc import Iterator

import pytest

from rollbus.local.process.ports import find_free_port, listener_of, require_free
from rollbus.schemas.errors import ConfigurationError
from rollbus.stack_settings import HOST


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as server:
        yield server.getsockname()[1]


def test_a_taken_port_is_refused_with_its_owner_and_remedy(taken_port: int) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        require_free(taken_port, service="kafka", setting="kafka_port")
    message = str(refusal.value)
    assert f"port {taken_port} for kafka is already in use" in message
    assert f"process {os.getpid()} (" in message
    assert listener_of(taken_port) == os.getpid()
    assert "`stack: kafka_port:`" in message


def test_a_free_port_is_given_once_outside_the_range_of_outgoing_connections() -> None:
    ports = [find_free_port() for _ in range(50)]
    assert len(set(ports)) == 50
    with socket.create_server((HOST, 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert max(ports) < client.getsockname()[1]
