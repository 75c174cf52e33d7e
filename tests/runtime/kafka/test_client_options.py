"""The options that callers may choose have the names that aiokafka gives them."""

import inspect

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from rollbus.runtime.kafka.clients import ConsumerOptions, ProducerOptions


@pytest.mark.parametrize(
    ("options", "client"), [(ConsumerOptions, AIOKafkaConsumer), (ProducerOptions, AIOKafkaProducer)]
)
def test_every_option_is_one_of_the_client(options: type, client: type) -> None:
    assert inspect.get_annotations(options).keys() <= inspect.signature(client).parameters.keys()
