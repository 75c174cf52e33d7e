"""Every name inside Faust, mode and aiokafka that the transport leans on still exists, with the same signature."""

import inspect
from importlib.metadata import version
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.partitioner import murmur2
from faust import App, Monitor, Schema
from faust.app.base import BootStrategy
from faust.tables.recovery import Recovery
from faust.transport import conductor, consumer
from faust.transport.drivers import aiokafka as driver
from faust.types.tuples import ConsumerMessage
from mode.threads import ServiceThread

SIGNATURES: list[tuple[Any, str, list[str]]] = [
    (driver.AIOKafkaConsumerThread, "__post_init__", ["self"]),
    (driver.AIOKafkaConsumerThread, "_create_worker_consumer", ["self", "transport"]),
    (
        driver.AIOKafkaConsumerThread,
        "_fetch_records",
        ["self", "consumer", "active_partitions", "timeout", "max_records"],
    ),
    (driver.AIOKafkaConsumerThread, "_ensure_consumer", ["self"]),
    (driver.AIOKafkaConsumerThread, "on_thread_stop", ["self"]),
    (ServiceThread, "on_thread_stop", ["self"]),
    (driver.AIOKafkaConsumerThread, "on_partitions_assigned", ["self", "assigned", "generation_id"]),
    (driver.Consumer, "_new_consumer_thread", ["self"]),
    (driver.Consumer, "verify_event_path", ["self", "now", "tp"]),
    (consumer.Consumer, "perform_seek", ["self"]),
    (consumer.Consumer, "resume_partitions", ["self", "tps"]),
    (consumer.Consumer, "pause_partitions", ["self", "tps"]),
    (consumer.Consumer, "_wait_next_records", ["self", "timeout"]),
    (consumer.Consumer, "_get_active_partitions", ["self"]),
    (consumer.Consumer, "_getmany", ["self", "active_partitions", "timeout"]),
    (consumer.Consumer, "commit", ["self", "topics", "start_new_transaction"]),
    (consumer.Consumer, "_drain_messages", ["self", "fetcher"]),
    (App, "_new_transport", ["self"]),
    (App, "_create_directories", ["self"]),
    (App, "_on_partitions_revoked", ["self", "revoked"]),
    (App, "_on_partitions_assigned", ["self", "assigned", "generation_id"]),
    (App, "create_event", ["self", "key", "value", "headers", "message"]),
    (Recovery, "_resume_streams", ["self", "generation_id"]),
    (ServiceThread, "crash", ["self", "exc"]),
    (AIOKafkaProducer, "create_batch", ["self"]),
    (AIOKafkaProducer, "send_batch", ["self", "batch", "topic", "partition"]),
    (AIOKafkaProducer, "send_offsets_to_transaction", ["self", "offsets", "group_id"]),
    (AIOKafkaConsumer, "last_stable_offset", ["self", "partition"]),
    (GroupCoordinator, "ensure_coordinator_known", ["self"]),
    (GroupCoordinator, "fetch_committed_offsets", ["self", "partitions"]),
    (GroupCoordinator, "_do_commit_offsets", ["self", "assignment", "offsets"]),
    (GroupCoordinator, "_do_heartbeat", ["self"]),
]


@pytest.mark.parametrize(
    ("owner", "name", "parameters"), SIGNATURES, ids=lambda value: getattr(value, "__name__", None)
)
def test_the_method_takes_what_we_pass(owner: Any, name: str, parameters: list[str]) -> None:
    assert list(inspect.signature(getattr(owner, name)).parameters) == parameters


def test_the_version_is_the_one_that_was_read() -> None:
    assert version("faust-streaming") == "0.15.3"


@pytest.mark.parametrize("attribute", ["flow_active", "consumer_stopped_errors", "_active_partitions"])
def test_the_consumer_has_the_attributes_that_we_read(attribute: str) -> None:
    attribute_names = {*dir(consumer.Consumer), *consumer.Consumer.__annotations__}
    assert attribute in attribute_names


@pytest.mark.parametrize(
    ("owner", "name"),
    [(ServiceThread, "_keepalive2"), (ServiceThread, "_thread_keepalive"), (Monitor, "_sampler")],
)
def test_the_timers_that_we_replace_are_there(owner: Any, name: str) -> None:
    assert hasattr(owner, name)


def test_the_consumer_is_made_by_the_transport_from_its_class() -> None:
    assert driver.Transport.Consumer is driver.Consumer
    assert "suspend_flow" in inspect.getsource(consumer.Consumer.resume_flow)
    assert "self.callback" in inspect.getsource(consumer.Consumer._drain_messages)


def test_fausts_thread_uses_our_consumer_method_and_an_assignor() -> None:
    assert "_create_worker_consumer" in inspect.getsource(driver.AIOKafkaConsumerThread._create_consumer)
    assert "self._assignor" in inspect.getsource(driver.AIOKafkaConsumerThread)
    assert RangePartitionAssignor.name == "range"


def test_a_rebalance_pauses_partitions_before_it_sends_its_signal() -> None:
    revoked = inspect.getsource(App._on_partitions_revoked)
    assigned = inspect.getsource(App._on_partitions_assigned)
    assert revoked.index("pause_partitions") < revoked.index("on_partitions_revoked.send")
    assert assigned.index("pause_partitions") < assigned.index("on_partitions_assigned.send")


def test_each_fetch_reads_its_wait_again() -> None:
    assert "self._fetch_max_wait_ms," in inspect.getsource(Fetcher._get_actions_per_node)
    assert "self._fetcher = Fetcher" in inspect.getsource(AIOKafkaConsumer.start)


def test_streams_are_resumed_then_sought_then_the_flow_begins() -> None:
    source = inspect.getsource(Recovery._resume_streams)
    order = [source.index(word) for word in ("resume_partitions", "perform_seek", "resume_flow")]
    assert order == sorted(order)


def test_faust_messages_have_a_generation_and_decode_by_schema() -> None:
    assert "generation_id" in inspect.signature(ConsumerMessage.__init__).parameters
    assert "compile" in vars(Schema)
    assert "chan.decode" in inspect.getsource(conductor)


def test_a_booting_app_can_do_without_producer_and_web() -> None:
    parameters = inspect.signature(BootStrategy.__init__).parameters
    assert {"enable_web", "enable_kafka_producer"} <= set(parameters)


def test_partitions_are_those_of_every_kafka_client() -> None:
    assert murmur2(b"kafka") & 0x7FFFFFFF == 0xD067CF64 & 0x7FFFFFFF
