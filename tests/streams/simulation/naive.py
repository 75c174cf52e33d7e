"""A stage's recorded input to what must follow from it: one life, record by record, nothing of the host's code.

The cluster runs what live runs. This is what it is held against, so it decodes, steps, encodes and writes dead letters
in its own few lines.
"""

import hashlib
from collections.abc import Coroutine, Iterable, Iterator
from typing import Any

from rollbus.schemas.codec import decode, encode
from rollbus.schemas.errors import RecordError
from rollbus.schemas.records.drops import DeadLetter
from rollbus.schemas.soundness import check_sound
from rollbus.schemas.topics import DEAD_LETTERS, Topic
from rollbus.streams.pipeline import AnyStage
from rollbus.streams.state.stage import Incoming

Written = tuple[Topic, bytes, bytes]
"""Topic, key and value of an output."""


def undisturbed(stage: AnyStage, incoming: Iterable[Incoming]) -> tuple[Any, list[Written]]:
    """Return the state and the outputs of a stage that takes its input in one life."""
    state = stage.new_state()
    outputs: list[Written] = []
    for each in incoming:
        try:
            outputs += list(_outputs(stage, state, each))
        except RecordError as error:
            outputs.append((DEAD_LETTERS, each.key.encode(), encode(_letter(stage, each, error))))
    return state, outputs


def _outputs(stage: AnyStage, state: Any, incoming: Incoming) -> Iterator[Written]:
    if incoming.record is None:
        decode(incoming.data)  # says why it cannot be read
    check_sound(incoming.record)
    (answer,) = ended(stage.answer(state, [incoming]))
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


def ended(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that waits for nobody to its end; where it lets others go first, it goes on at once."""
    try:
        while True:
            assert work.send(None) is None, "a stage waits for the outside world; the simulation has none"
    except StopIteration as end:
        return end.value
