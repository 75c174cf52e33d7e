"""Topics are made with all that they should have; what a broker refuses is said."""

from types import SimpleNamespace
from typing import Any

import pytest

from rollbus.schemas.errors import RejectedError
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import topic_specs
from rollbus.streams.kafka.topics_on_broker import _create

SPECS = topic_specs(StreamSettings(namespace="n."))
INVALID_CONFIG, ALREADY_EXISTS, INVALID_PARTITIONS = 40, 36, 37


class Broker:
    """Answers like one that knows some settings; everything else about it is fine."""

    def __init__(self, *, unknown: str = "", code: int = 0) -> None:
        self._unknown, self._code = unknown, code
        self.configs_by_topic: dict[str, dict[str, str]] = {}

    async def create_topics(self, topics: Any) -> Any:
        errors = []
        for topic in topics:
            code = INVALID_CONFIG if self._unknown in topic.topic_configs else self._code
            errors.append((topic.name, code, "as the broker says"))
            if not code:
                self.configs_by_topic[topic.name] = topic.topic_configs
        return SimpleNamespace(topic_errors=errors)


async def test_every_topic_is_made_with_required_and_recommended_settings() -> None:
    broker: Any = Broker()
    await _create(broker, SPECS, 1)
    assert broker.configs_by_topic == {spec.name: dict(spec.config + spec.wished) for spec in SPECS}


async def test_a_topic_created_meanwhile_is_not_an_error() -> None:
    broker: Any = Broker(code=ALREADY_EXISTS)
    await _create(broker, SPECS, 1)


@pytest.mark.parametrize(("unknown", "code"), [("cleanup.policy", 0), ("", INVALID_PARTITIONS)])
async def test_a_brokers_refusal_is_reported(unknown: str, code: int) -> None:
    broker: Any = Broker(unknown=unknown, code=code)
    with pytest.raises(RejectedError, match=r"n\..* could not be created: .*as the broker says"):
        await _create(broker, SPECS, 1)
