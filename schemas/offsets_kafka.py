"""What a consumer group has committed, asked of a broker that may be new and have no coordinator yet.

The question itself makes it set one up, and a coordinator that has just moved reads first what it has to know; until
then the broker says that it cannot tell, which does not mean that nothing is committed.
"""

import asyncio
from typing import Any

from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NotCoordinatorForGroupError,
)

TRIES, PAUSE_S = 20, 0.2
"""A new broker of ours could tell after half a second."""
_NOT_YET = (GroupCoordinatorNotAvailableError, GroupLoadInProgressError, NotCoordinatorForGroupError)


async def committed_offsets(admin: Any, group_id: str, *, pause_s: float = PAUSE_S) -> Any:
    """Return a group's offsets by partition, none of a group that never committed; raises KafkaError."""
    for _ in range(TRIES):
        try:
            return await admin.list_consumer_group_offsets(group_id)
        except _NOT_YET:
            await asyncio.sleep(pause_s)
    return await admin.list_consumer_group_offsets(group_id)
