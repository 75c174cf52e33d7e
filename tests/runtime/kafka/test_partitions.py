"""To ask which topics there are makes none, on a broker that makes topics on demand too."""

from types import SimpleNamespace
from typing import Any

from aiokafka.protocol.metadata import MetadataRequest, MetadataRequest_v5

from rollbus.runtime.kafka.partitions import count_partitions


class Broker:
    """An admin client of a broker that has one topic of two partitions."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    async def _send_request(self, request: MetadataRequest) -> Any:
        self.requests.append(request.build(MetadataRequest_v5))
        topics = [{"topic": "there", "partitions": [0, 1]}, {"topic": "missing", "partitions": []}]
        return SimpleNamespace(to_object=lambda: {"topics": topics})


async def test_a_topic_that_is_missing_is_left_out_and_not_made() -> None:
    broker: Any = Broker()
    assert await count_partitions(broker, ["there", "missing"]) == {"there": 2}
    ((topics, makes_missing),) = [
        (metadata_request.topics, metadata_request.allow_auto_topic_creation) for metadata_request in broker.requests
    ]
    assert topics == ["missing", "there"]
    assert makes_missing is False


async def test_a_question_about_no_topic_is_not_one_about_all() -> None:
    broker: Any = Broker()
    assert await count_partitions(broker, []) == {}
    assert broker.requests == []
