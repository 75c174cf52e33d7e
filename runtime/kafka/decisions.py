"""Decisions on who serves a model: those that were made, and every newer one as it comes."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from aiokafka import TopicPartition

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.reading import open_reader, read_from
from rollbus.schemas.codec import decode_if
from rollbus.schemas.records.delivery import PolicyDecision
from rollbus.schemas.topics import POLICY_DECISIONS

logger = logging.getLogger(__name__)

POLL_MS = 500
RETRY_S = 2.0
Use = Callable[[PolicyDecision], object]


async def read_decisions(connection: KafkaConnection, namespace: str, model: str) -> list[PolicyDecision]:
    """Return every decision on a model, in order."""
    place = TopicPartition(POLICY_DECISIONS.full_name(namespace), 0)
    async with aclosing(read_from(connection, {place: 0})) as records:
        decisions = [decode_if(record.value, PolicyDecision) async for record in records]
    return [decision for decision in decisions if decision is not None and decision.model == model]


async def follow_decisions(connection: KafkaConnection, namespace: str, use: Use) -> None:
    """Use the newest decision on each model, now and whenever there is a newer one, until cancelled.

    A broker that is away changes nothing; after a new connection the newest decisions come again. An error is logged
    once until decisions can be used again.
    """
    place = TopicPartition(POLICY_DECISIONS.full_name(namespace), 0)
    logged_error = ""

    def forget_error() -> None:
        nonlocal logged_error
        logged_error = ""

    while True:
        try:
            await _follow(connection, place, use, forget_error)
        except Exception as error:  # whatever it is: a decision that takes traffic back must still be heard
            if repr(error) != logged_error:
                logger.warning("decisions on who serves cannot be read, trying every %.0f s: %r", RETRY_S, error)
            logged_error = repr(error)
        await asyncio.sleep(RETRY_S)


async def _follow(
    connection: KafkaConnection, place: TopicPartition, use: Use, on_caught_up: Callable[[], None]
) -> None:
    async with open_reader(connection, f"reading {place.topic}") as consumer:
        consumer.assign([place])
        await consumer.seek_to_beginning(place)
        end, newest = (await consumer.end_offsets([place]))[place], dict[str, PolicyDecision]()
        while True:
            newest |= _newest(await consumer.getmany(timeout_ms=POLL_MS))
            if await consumer.position(place) >= end:  # not yet the decisions of long ago
                for decision in newest.values():
                    use(decision)
                newest.clear()
                on_caught_up()


def _newest(fetched: dict[TopicPartition, list[Any]]) -> dict[str, PolicyDecision]:
    """Return the last decision on each model."""
    decisions = (decode_if(record.value, PolicyDecision) for records in fetched.values() for record in records)
    return {decision.model: decision for decision in decisions if decision is not None}
