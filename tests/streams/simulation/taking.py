"""A batch to what a worker writes for it: outputs, and dead letters for what cannot be read or is refused."""

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from rollbus.schemas.errors import RecordError
from rollbus.schemas.topics import DEAD_LETTERS
from rollbus.streams.batch import Partition
from rollbus.streams.processing import dead_letter, read_record
from rollbus.streams.stage import Incoming, Outgoing
from rollbus.streams.stages import AnyStage


@dataclass(frozen=True, slots=True)
class Raw:
    """A record as it was fetched."""

    offset: int
    key: bytes
    value: bytes
    timestamp: int = 0


def take(stage: AnyStage, state: Any, batch: Sequence[Incoming]) -> list[Outgoing]:
    """Read, ask and step, record by record."""
    known: dict[int, Incoming | RecordError] = {}
    for number, incoming in enumerate(batch):
        if incoming.record is None:
            try:
                known[number] = read_record(_raw(incoming), _place(incoming))
            except RecordError as error:
                known[number] = error
        else:
            known[number] = incoming
    readable = [each for each in known.values() if isinstance(each, Incoming)]
    answers = iter(answered(stage.answer(state, readable)))
    outputs: list[Outgoing] = []
    for number, incoming in enumerate(batch):
        found = known[number]
        try:
            if isinstance(found, RecordError):
                raise found
            outputs += stage.step(state, found, next(answers))
        except RecordError as error:
            letter = dead_letter(_raw(incoming), _place(incoming), error, stage=stage.name, app_version="")
            outputs.append(Outgoing(DEAD_LETTERS, incoming.key, letter))
    return outputs


def answered(question: Coroutine[Any, Any, Sequence[Any]]) -> Sequence[Any]:
    """Run a coroutine that waits for nobody, without an event loop."""
    try:
        question.send(None)
    except StopIteration as ended:
        found: Sequence[Any] = ended.value
        return found
    raise AssertionError("a stage waits for the outside world; the simulation has none")


def _raw(incoming: Incoming) -> Raw:
    return Raw(incoming.location.offset, incoming.key.encode(), incoming.data)


def _place(incoming: Incoming) -> Partition:
    return Partition(incoming.location.topic, incoming.location.partition)
