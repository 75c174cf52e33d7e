"""The log as a finetuning run sees it: the seam between the harness and Kafka (`kafka`)."""

from collections.abc import Sequence
from typing import Any, Protocol

from rollbus.producers import EventSink
from rollbus.trainer.ledger.log import Publication


class Bus(Protocol):
    """Where a run's records go, and where what became of them is read."""

    @property
    def sink(self) -> EventSink:
        """Where the recorder sends an epoch's episodes."""
        ...

    async def open(self) -> None:
        """Connect; what is read begins with the oldest record."""
        ...

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Write records and return when they are safe; raises UnavailableError."""
        ...

    async def poll(self) -> list[Any]:
        """Return the records that came since the last call, in each partition's order; waits a moment for some."""
        ...

    async def catch_up(self) -> list[Any]:
        """Return every record that is there at the call and was not read yet: what a resumed run must know."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
