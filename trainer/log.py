"""What the trainer asks of the log: its ledger, the next batch, a transaction, payload by location.

One seam, two sides: `log_kafka` with the broker, `log_memory` for tests and trials; one contract suite for both.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollbus.schemas.control import RunCommand
from rollbus.schemas.groups import TrainingBatch
from rollbus.schemas.steps import Evaluation
from rollbus.schemas.topics import Topic
from rollbus.schemas.trajectories import Location, Trajectory
from rollbus.trainer.ledger import LedgerRecord


@dataclass(frozen=True, slots=True)
class Publication:
    """One record on its way to a topic."""

    topic: Topic
    key: str
    record: Any


LastRecords = Callable[[], Awaitable[Sequence[Publication]]]
"""Comes to the records of a transaction that are not known yet when the others are."""


@dataclass(frozen=True, slots=True)
class NextBatch:
    """A batch of this run and the offset that is committed with its outcome."""

    batch: TrainingBatch
    next_offset: int


class TrainerLog(Protocol):
    """The log as one trainer of one model sees it."""

    async def open(self) -> None:
        """Take over as the trainer of the model: whoever held it before is fenced. Go to the committed batch."""
        ...

    async def read_ledger(self) -> Sequence[LedgerRecord]:
        """Every committed record of `policy-versions`, then of `training-steps`, in the order of the log."""
        ...

    async def next_batch(self, timeout_s: float, *, settle_broken: bool = True) -> NextBatch | None:
        """The next batch of this run in the log's order; None if none came in time.

        May be cancelled: nothing is lost then. What is no batch becomes a dead letter, and its offset is committed;
        without `settle_broken` it is left where it stands, and the answer is None.
        """
        ...

    async def at_end(self) -> bool:
        """Whether `next_batch` has passed everything that is committed now; ask it first, it goes over other runs'.

        That it found none in time says nothing: a fetch may be slow, and a broker away.
        """
        ...

    async def publish(
        self,
        publications: Sequence[Publication],
        *,
        last: LastRecords | None = None,
        next_offset: int | None = None,
    ) -> Sequence[Publication]:
        """Write all of them, what `last` comes to, and the consumer offset, or nothing; return what was written.

        `last` is asked while the others are on their way to the broker; it should not take long, since until the end
        nobody reads beyond them. What it raises is raised here, and nothing is written.

        FencedError when a newer trainer of the model has opened the log. After UnavailableError it is not known whether
        the records were written: open again and read the ledger.
        """
        ...

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """The trajectories at these locations; one that retention removed, or that cannot be read, is missing."""
        ...

    async def excluded_episodes(self) -> Collection[str]:
        """Episodes that must not be trained on, as far as the log says now."""
        ...

    async def paused(self) -> RunCommand | None:
        """The pause of this run that holds now: its newest `pause` that no `resume` followed."""
        ...

    async def evaluations(self) -> Sequence[Evaluation]:
        """Every evaluation of the model's versions, in the order of the log."""
        ...

    async def close(self) -> None: ...


def names(publications: Iterable[Publication]) -> str:
    """What is published, for messages."""
    return ", ".join(type(publication.record).__name__ for publication in publications)
