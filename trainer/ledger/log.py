"""What the trainer needs from the log: its ledger, the next batch, a transaction, payload by location.

One seam, two sides: `log_kafka` with the broker, and a log in memory in the tests; one contract suite for both.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollbus.schemas.records.control import RunCommand
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.records.steps import Evaluation, PolicyVersion
from rollbus.schemas.records.trajectories import Location, RewardRevised, Score, Trajectory
from rollbus.schemas.topics import DELIVERY_LOG, EVALUATIONS, POLICY_VERSIONS, RUN_LOG, Topic
from rollbus.trainer.ledger.ledger import LedgerRecord


@dataclass(frozen=True, slots=True)
class Publication:
    """One record on its way to a topic."""

    topic: Topic
    key: str
    record: Any


LastRecords = Callable[[], Awaitable[Sequence[Publication]]]
"""Returns the last records of a transaction, which are not known yet when the others are sent."""


@dataclass(frozen=True, slots=True)
class ReceivedBatch:
    """A batch of this run and the offset that is committed with its outcome."""

    batch: TrainingBatch
    next_offset: int


class TrainerLog(Protocol):
    """The log as one trainer of one model sees it."""

    async def stand_by(self) -> None:
        """Wait until no other trainer of the model lives, and hold back those that come later until `leave`."""
        ...

    async def open(self) -> None:
        """Take over as the trainer of the model, fence the one before, and go to the committed batch.

        FencedError if this log was open before and another has taken over since: the other goes on undisturbed.
        """
        ...

    async def require_charge(self) -> None:
        """Raise FencedError if another trainer of the model has opened the log since."""
        ...

    async def read_ledger(self) -> Sequence[LedgerRecord]:
        """Every committed record of `policy-versions`, then of `training-steps`, in the order of the log."""
        ...

    async def next_batch(self, timeout_s: float, *, skip_unreadable: bool = True) -> ReceivedBatch | None:
        """The next batch of this run in the log's order; None if none came in time.

        Cancelling it loses nothing. A record that is not a batch becomes a dead letter, and its offset is committed;
        without `skip_unreadable` it stays where it is, and the answer is None.
        """
        ...

    async def at_end(self) -> bool:
        """Whether `next_batch` has passed everything that is committed now; call that first, it skips other runs.

        No batch in time proves nothing: a fetch may be slow, or a broker unreachable.
        """
        ...

    async def publish(
        self,
        publications: Sequence[Publication],
        *,
        last: LastRecords | None = None,
        next_offset: int | None = None,
    ) -> Sequence[Publication]:
        """Write all records, those of `last`, and the consumer offset, or nothing; return what was written.

        `last` is called while the others are on their way to the broker. It should be quick: readers of committed
        records wait for the end. What it raises is raised here, and nothing is written.

        FencedError when a newer trainer of the model has opened the log. After UnavailableError the
        records may have been written or not: open again and read the ledger.
        """
        ...

    async def fetch(self, locations: Collection[Location]) -> Mapping[Location, Trajectory]:
        """The trajectories at these locations; one that retention removed, or that cannot be read, is missing."""
        ...

    async def fetch_revisions(self, locations: Collection[Location]) -> Mapping[Location, RewardRevised]:
        """The revisions of rewards at these locations, likewise."""
        ...

    async def fetch_scores(self, locations: Collection[Location]) -> Mapping[Location, Score]:
        """The scores at these locations, likewise."""
        ...

    async def excluded_episodes(self) -> Collection[str]:
        """Episodes that must not be trained on, by the log as it is now."""
        ...

    async def paused(self) -> RunCommand | None:
        """The pause of this run that holds now: its newest `pause` that no `resume` followed."""
        ...

    async def stopped(self) -> RunCommand | None:
        """The stop of this run that held when `paused` was asked last."""
        ...

    async def evaluations(self) -> Sequence[Evaluation]:
        """Every evaluation of the model's versions, the first measurement first."""
        ...

    async def close(self) -> None: ...

    async def leave(self) -> None:
        """Close, and let one that stands by take over."""
        ...


def make_announcements(record: PolicyVersion, run_id: str) -> tuple[Publication, Publication, Publication]:
    """Publish a version to those who follow its model, to those who follow the run, and to the run's delivery."""
    to_model = Publication(POLICY_VERSIONS, record.model, record)
    return to_model, Publication(RUN_LOG, run_id, record), Publication(DELIVERY_LOG, run_id, record)


def evaluation_key(evaluation: Evaluation) -> str:
    """Return the record's Kafka key."""
    return evaluation.run_id or evaluation.model


def announced_evaluation(record: Evaluation) -> tuple[Publication, ...]:
    """Publish an evaluation to those who compare versions, and to the delivery of its run, if it names one."""
    to_all = Publication(EVALUATIONS, evaluation_key(record), record)
    return (to_all,) if record.run_id is None else (to_all, Publication(DELIVERY_LOG, record.run_id, record))


def names(publications: Iterable[Publication]) -> str:
    """What is published, for messages."""
    return ", ".join(type(publication.record).__name__ for publication in publications)
