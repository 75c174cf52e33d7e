"""Read the dead letters of a namespace, and write records to their origin again.

A copy carries its origin in a header. `reinject` looks for these headers before it writes, so an interrupted
reinjection can be run again. A copy also carries its attempt, which the dead letter of a second failure repeats.
"""

from collections.abc import Iterable
from contextlib import aclosing

from aiokafka import TopicPartition

from rollbus.consumers.dead_letters import Copy, Original, copy_headers, letter_origin, make_copies, standing_letters
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.reading import read_from
from rollbus.runtime.kafka.writing import Row, send_each
from rollbus.schemas.codec import decode_if, encode
from rollbus.schemas.records.drops import DeadLetter, origin_of
from rollbus.schemas.topics import DEAD_LETTERS


async def read_dead_letters(kafka: KafkaConnection, namespace: str) -> list[DeadLetter]:
    """Return every dead letter that is kept and not set aside, oldest first; raises UnavailableError."""
    place = TopicPartition(DEAD_LETTERS.full_name(namespace), 0)
    async with aclosing(read_from(kafka, {place: 0})) as records:
        letters = [decode_if(record.value, DeadLetter) async for record in records]
    return standing_letters(letter for letter in letters if letter is not None)


async def dismiss(kafka: KafkaConnection, namespace: str, letters: Iterable[DeadLetter]) -> None:
    """Write the records that `set_aside` has made; raises UnavailableError."""
    topic = DEAD_LETTERS.full_name(namespace)
    await send_each(kafka, [Row(topic, 0, letter_origin(letter).encode(), encode(letter)) for letter in letters])


async def reinject(kafka: KafkaConnection, letters: Iterable[DeadLetter], *, dry_run: bool = False) -> list[Copy]:
    """Write the letters' records to their origins; return what was written, or would be. Raises UnavailableError."""
    letter_list = list(letters)
    copies = make_copies(letter_list, *await _read_written(kafka, letter_list))
    if copies and not dry_run:
        rows = (
            Row(copy.letter.topic, copy.letter.partition, copy.letter.key, copy.letter.value, copy_headers(copy))
            for copy in copies
        )
        await send_each(kafka, rows)
    return copies


async def _read_written(kafka: KafkaConnection, letters: Iterable[DeadLetter]) -> tuple[set[str], dict[str, Original]]:
    """Return the origins that already have a copy, and the original records of letters that are not whole."""
    starts: dict[TopicPartition, int] = {}
    cut = {letter_origin(letter) for letter in letters if not letter.is_whole}
    written_names, originals = set[str](), dict[str, Original]()
    for letter in letters:
        place = TopicPartition(letter.topic, letter.partition)
        starts[place] = min(starts.get(place, letter.offset), letter.offset)
    async with aclosing(read_from(kafka, starts)) as records:
        async for record in records:
            if (name := origin_of(record.headers)) is not None:
                written_names.add(name)
            if (origin_name := f"{record.topic}:{record.partition}:{record.offset}") in cut:
                originals[origin_name] = (record.key, record.value)
    return written_names, originals
