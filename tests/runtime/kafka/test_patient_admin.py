"""An admin client waits for a broker where the cluster names none for a while, and no longer than its time."""

from types import SimpleNamespace
from typing import Any

import pytest

from rollbus.runtime.kafka import clients
from rollbus.runtime.kafka.clients import kafka_errors, new_admin
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.errors import UnavailableError

CONNECTION = KafkaConnection(bootstrap_servers="127.0.0.1:9092")


class Cluster:
    """What aiokafka knows of a cluster whose broker is named again after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks
        self.requests: list[tuple[Any, Any]] = []

    def get_random_node(self) -> int | None:
        return None if self.looks > 0 else 1

    async def force_metadata_update(self) -> bool:
        self.looks -= 1
        return False

    async def send(self, node_id: int, request: Any) -> Any:
        self.requests.append((node_id, request))
        return SimpleNamespace()


async def ask(cluster: Cluster, *, timeout_ms: int) -> None:
    admin: Any = new_admin(CONNECTION, request_timeout_ms=timeout_ms)
    admin._client = cluster
    with kafka_errors(CONNECTION, "looking for topics"):
        await admin._send_request("which topics")


async def test_a_broker_that_is_left_out_for_a_while_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "BROKER_PAUSE_S", 0.0)
    await ask(cluster := Cluster(looks=3), timeout_ms=20_000)
    assert cluster.requests == [(1, "which topics")]


async def test_a_cluster_that_never_names_a_broker_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "BROKER_PAUSE_S", 0.001)
    with pytest.raises(UnavailableError, match=r"^looking for topics: Kafka at 127\.0\.0\.1:9092 "):
        await ask(Cluster(looks=10**9), timeout_ms=50)
