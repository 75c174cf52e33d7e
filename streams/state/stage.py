"""What a stream stage is: a pure step from a record and the partition's state to outputs.

Faust's workers, the replay driver and the tests run the same stages. A step never reads a clock, a random generator or
the network; everything it needs is in its one input topic. An effects stage first asks the outside world; its step then
only writes down the answers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from rollbus.schemas.records.drops import Drop, DropReason, DropUnit
from rollbus.schemas.records.trajectories import Location
from rollbus.schemas.topics import DROPS, Topic
from rollbus.streams.state.table import PartitionState

S = TypeVar("S", bound=PartitionState)
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Incoming:
    """One decoded record of the stage's input."""

    record: Any
    key: str
    location: Location
    data: bytes
    """The record's own bytes, for a stage that keeps them."""
    signer: str | None = None
    """Whose valid signature it carries."""
    taken_ms: int | None = None
    """The broker's clock when it took the record; None if the topic keeps the producer's."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record that the stage emits."""

    topic: Topic
    key: str
    record: Any
    signer: str | None = None
    """In whose name it is signed."""


def make_drop(
    unit: DropUnit,
    unit_id: str,
    reason: DropReason,
    detail: str,
    *,
    stage: str,
    now_ms: int,
    run_id: str | None = None,
    trajectory_ids: tuple[str, ...] = (),
) -> Outgoing:
    """Return the record that names the reason why something goes no further."""
    drop = Drop(
        unit=unit,
        unit_id=unit_id,
        reason=reason.value,
        stage=stage,
        run_id=run_id,
        trajectory_ids=trajectory_ids,
        detail=detail,
        dropped_at_ms=now_ms,
    )
    return Outgoing(DROPS, unit_id, drop)


class Stage(Protocol[S]):
    """A pure stage; one instance serves all partitions, each with a state of its own.

    One that has `takes_early` takes records of later rounds at once: their order in time means nothing to it, and where
    it needs their time it reads it in them, since its own clock is behind.
    """

    name: str
    """As in consumer groups, transactional ids and drops: `assembly`; of a run: `grouping.<run>`."""
    input: Topic

    def new_state(self) -> S:
        """Return the empty state of a partition, tables ready to be restored into."""
        ...

    def step(self, state: S, incoming: Incoming) -> Iterable[Outgoing]:
        """Change the state by one record and return what follows from it; a known record changes nothing."""
        ...


class EffectsStage(Protocol[S, A]):
    """A stage whose step needs answers from outside: a judge, a user's function.

    If asking takes long, `answered` counts the calls that have ended so far: the watchdog sees progress by it.
    """

    name: str
    input: Topic

    def new_state(self) -> S:
        """Return the empty state of a partition."""
        ...

    async def answer(self, state: S, incoming: Sequence[Incoming]) -> Sequence[A]:
        """Return one answer per record, in order; changes nothing, may run again after a crash, never raises."""
        ...

    def step(self, state: S, incoming: Incoming, answer: A) -> Sequence[Outgoing]:
        """Change the state by one record and its answer, to the end, and only then return what follows; pure."""
        ...


class PureAsEffects(Generic[S]):
    """A pure stage in the form of an effects stage, so that a runner knows only one form."""

    def __init__(self, stage: Stage[S]) -> None:
        self.stage, self.name, self.input = stage, stage.name, stage.input
        self.takes_early = bool(getattr(stage, "takes_early", False))

    def new_state(self) -> S:
        """Return the stage's empty state."""
        return self.stage.new_state()

    async def answer(self, state: S, incoming: Sequence[Incoming]) -> Sequence[None]:
        """Return None for each record: a pure stage asks nothing."""
        return [None] * len(incoming)

    def step(self, state: S, incoming: Incoming, answer: None) -> Sequence[Outgoing]:
        """Run the pure step to its end, so that no output that cannot be written leaves the state half changed."""
        return list(self.stage.step(state, incoming))
