"""The wait of a fetch changes while the consumer runs; it is set where aiokafka reads it."""

import inspect
from types import SimpleNamespace

from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.fetcher import Fetcher

from rollbus.runtime.kafka.fetch_wait import set_fetch_wait


def test_the_next_fetch_waits_as_long_as_was_set() -> None:
    fetcher = SimpleNamespace(_fetch_max_wait_ms=500)
    set_fetch_wait(SimpleNamespace(_fetcher=fetcher), 2_000)
    assert fetcher._fetch_max_wait_ms == 2_000


def test_a_consumer_that_is_not_started_keeps_its_wait() -> None:
    consumer = SimpleNamespace(_fetcher=None)
    set_fetch_wait(consumer, 2_000)
    set_fetch_wait(None, 2_000)
    assert vars(consumer) == {"_fetcher": None}


def test_aiokafka_reads_the_wait_for_each_fetch_where_it_is_set() -> None:
    assert "self._fetcher = Fetcher(" in inspect.getsource(AIOKafkaConsumer.start)
    reading_methods = [
        name
        for name, method in inspect.getmembers(Fetcher, inspect.isfunction)
        if name != "__init__" and "self._fetch_max_wait_ms" in inspect.getsource(method)
    ]
    assert reading_methods
