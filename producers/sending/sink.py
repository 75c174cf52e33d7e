"""Where encoded records go: the seam between the recorder and Kafka, with its in-memory twin.

A sink is used by one task of one loop. `send` returns only when every record is safe or refused for good, so the
order of calls is the order on the topic. A sink may also have `keep` and `reachable` (see `SpoolSink`), and
`after_fork`, which is called in a child process to let go of what only the parent may use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollbus.schemas import codec
from rollbus.schemas.errors import UnavailableError

DELIVERY_THREAD = "rollbus-delivery"


@dataclass(frozen=True, slots=True)
class Outbound:
    """One record on its way to a topic."""

    topic: str
    """Full name, with namespace."""
    key: bytes
    value: bytes
    timestamp_ms: int
    principal: str = ""
    """In whose name the owner's process signs it; empty for the sink's own. A spool does not keep it."""


class EventSink(Protocol):
    """What delivery needs of the other side."""

    async def start(self) -> None:
        """Connect; raises UnavailableError where trying again later may help."""

    async def send(self, records: Sequence[Outbound]) -> frozenset[int]:
        """Deliver in order and return the positions that were refused for good; raises UnavailableError to be called
        again.
        """

    async def close(self) -> None:
        """Let go of connections; never waits for long."""


class MemorySink:
    """Keeps what it is given; for tests of programs that record."""

    def __init__(self) -> None:
        """Start empty and available."""
        self.sent: list[Outbound] = []
        self.available = True
        """False makes every call raise UnavailableError, as an unreachable broker does."""
        self.largest_bytes: int | None = None
        """Refuse larger values, as a broker does."""

    async def start(self) -> None:
        """Nothing to connect."""
        self._check()

    async def send(self, records: Sequence[Outbound]) -> frozenset[int]:
        """Keep the records."""
        self._check()
        refused_places = frozenset(
            position
            for position, record in enumerate(records)
            if self.largest_bytes is not None and len(record.value) > self.largest_bytes
        )
        self.sent.extend(record for position, record in enumerate(records) if position not in refused_places)
        return refused_places

    async def close(self) -> None:
        """Nothing to let go of."""

    def records(self, topic: str | None = None) -> list[Any]:
        """Return the decoded records, of one topic (its name's end) or of all, in the order they came."""
        return [codec.decode(record.value) for record in self.sent if topic is None or record.topic.endswith(topic)]

    def _check(self) -> None:
        if not self.available:
            raise UnavailableError("the memory sink was made unavailable")
