"""Positions of a group that has committed nothing."""

from collections.abc import Collection

from aiokafka import TopicPartition

from rollbus.runtime.kafka.positions import Position
from rollbus.runtime.log_mark import LogMark


async def new_positions(places: Collection[TopicPartition]) -> dict[TopicPartition, Position]:
    """Return the beginning of each partition."""
    return {place: Position(None, LogMark("cluster", "topic")) for place in places}
