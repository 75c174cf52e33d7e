"""A stage's recorded input to what must follow from it: one life, record by record, nothing of the host's code.

The cluster runs what live runs. This is what it is held against, so it decodes, steps, encodes and writes dead letters
in its own few lines.
"""

import hashlib
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.records.control import RunCommand, Tick
from rollbus.schemas.records.drops import DeadLetter
from rollbus.schemas.soundness import check_sound
from rollbus.schemas.topics import DEAD_LETTERS, Topic
from rollbus.streams.pipeline import AnyStage
from rollbus.streams.state.stage import Incoming
from tests.streams.simulation.log import Entry, Headers, Place

WrittenRow = tuple[Topic, bytes, bytes, Headers]
"""Topic, key, value and headers of an output."""


class InRounds(Protocol):
    """A record in a partition."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...
    @property
    def record(self) -> Any: ...


E = TypeVar("E", bound=InRounds)
NO_ROUND = -1
IN_ROUNDS = ("trajectories", "scores", "closed-groups", "run-log", "delivery-log")


def undisturbed_life(stage: AnyStage, entries: Iterable[Entry], place: Place) -> tuple[Any, list[WrittenRow]]:
    """Return the state and the outputs of a stage that takes its input in one life."""
    state, outputs, now = stage.new_state(), list[WrittenRow](), NO_ROUND
    for entry, number in by_round(entries, takes_early=getattr(stage, "takes_early", False)):
        incoming = entry.incoming(place)
        if isinstance(incoming.record, Tick):
            now = max(now, incoming.record.number)
        try:
            outputs_of_record = list(_outputs(stage, state, incoming))
        except RecordError as error:
            outputs_of_record = [(DEAD_LETTERS, incoming.key.encode(), encode(_letter(stage, incoming, error)))]
        of_round = (("round", str(max(now, number)).encode()),) if max(now, number) > NO_ROUND else ()
        outputs += [(*out, of_round if out[0].name in IN_ROUNDS else ()) for out in outputs_of_record]
    return state, outputs


def by_round(entries: Iterable[E], *, takes_early: bool) -> Iterator[tuple[E, int]]:
    """Yield records with their rounds in the order in which they count: one of a later round after its tick."""
    now, later = NO_ROUND, list[tuple[E, int]]()
    for entry in entries:
        number = int(dict(entry.headers).get("round", b"-1"))
        if later and number == NO_ROUND and isinstance(entry.record, RunCommand):
            number = max(number_of_other for _, number_of_other in later)
        if number > now and not takes_early:
            later.append((entry, number))
            continue
        yield entry, number
        if isinstance(entry.record, Tick) and entry.record.number > now:
            now = entry.record.number
            yield from [pair for pair in later if pair[1] <= now]
            later = [pair for pair in later if pair[1] > now]


def _outputs(stage: AnyStage, state: Any, incoming: Incoming) -> Iterator[tuple[Topic, bytes, bytes]]:
    if incoming.record is None:
        decode(incoming.data)  # says why it cannot be read
    check_sound(incoming.record)
    (answer,) = run_to_end(stage.answer(state, [incoming]))
    for out in stage.step(state, incoming, answer):
        yield out.topic, out.key.encode(), encode(out.record)


def _letter(stage: AnyStage, incoming: Incoming, error: RecordError) -> DeadLetter:
    at = incoming.location
    return DeadLetter(
        topic=at.topic,
        partition=at.partition,
        offset=at.offset,
        timestamp_ms=0,
        key=incoming.key.encode(),
        value=incoming.data,
        value_bytes=len(incoming.data),
        value_sha256=hashlib.sha256(incoming.data).hexdigest(),
        stage=stage.name,
        error_class=type(error).__name__,
        message=str(error),
        attempt=1,
        app_version="",
    )


def run_to_end(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nobody to its end; where it lets others go first, it goes on at once."""
    try:
        while True:
            assert work.send(None) is None, "a stage waits for the outside world; the simulation has none"
    except StopIteration as end:
        return end.value
