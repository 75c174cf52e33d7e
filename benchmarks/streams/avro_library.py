"""Records with the Avro library instead of our compiled codec: what somebody writes who has the schemas alone.

The library makes dictionaries. The assembly that all variants share takes records, so a dictionary becomes one here, by
the cheapest constructors there are, and a trajectory becomes a dictionary again; `conversion_us` tells what that costs.
"""

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from io import BytesIO
from operator import attrgetter
from typing import Any, NamedTuple

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import fingerprint, to_parsing_canonical_form

from benchmarks.streams.events import EVENTS, NOWHERE, episode
from rollbus.schemas.avro.types import AVRO_FOLDER
from rollbus.schemas.codec import HEADER_BYTES, MARKER
from rollbus.schemas.record_makers import maker
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.events import (
    EpisodeEnded,
    EpisodeStarted,
    Message,
    RewardReported,
    TurnRecorded,
    WriterClosed,
)
from rollbus.schemas.records.trajectories import History, Reward, Span, ToolResult, Trajectory, Turn
from rollbus.streams.stages.assembly.stage import AssemblyStage
from rollbus.streams.state.stage import Incoming

Plain = dict[str, Any]
MEASURED = 300
"""Episodes whose conversion is timed."""


class Codec(NamedTuple):
    """How a variant reads events and writes trajectories."""

    record_name: Callable[[bytes], str | None]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]


def schemas() -> dict[bytes, Plain]:
    """Return every version of every schema, by the header that its records begin with."""
    schema_by_marker = {}
    for path in sorted(AVRO_FOLDER.glob("*.avsc")):
        schema = json.loads(path.read_text())
        crc = bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))
        schema_by_marker[MARKER + crc] = schema
    return schema_by_marker


def newest(name: str) -> tuple[bytes, Plain]:
    """Return the header and the schema of a record's newest version: the last file of its name."""
    return [(header, schema) for header, schema in schemas().items() if schema["name"] == name][-1]


def library_reader() -> Callable[[bytes], Plain]:
    """Return what reads an event as a dictionary."""
    parsed = {header: parse_schema(schema) for header, schema in schemas().items()}

    def read(data: bytes) -> Plain:
        body = BytesIO(data)
        body.seek(HEADER_BYTES)
        return schemaless_reader(body, parsed[data[:HEADER_BYTES]], None)  # type: ignore[return-value]

    return read


def library_writer(name: str) -> Callable[[Plain], bytes]:
    """Return what writes a dictionary as the newest version of a record."""
    header, schema = newest(name)
    parsed = parse_schema(schema)

    def write(plain: Plain) -> bytes:
        body = BytesIO()
        body.write(header)
        schemaless_writer(body, parsed, plain)
        return body.getvalue()

    return write


def codec(read: Callable[[bytes], Plain], write: Callable[[Plain], bytes]) -> Codec:
    """Return the codec of somebody who reads and writes dictionaries."""
    names = {header: schema["name"] for header, schema in schemas().items()}

    def record_name(data: bytes) -> str | None:
        return names.get(data[:HEADER_BYTES])

    def decode(data: bytes) -> Any:
        return as_record(names[data[:HEADER_BYTES]], read(data))

    def encode(record: Any) -> bytes:
        return write(as_plain(record))

    return Codec(record_name, decode, encode)


# Dictionaries to records: a schema's fields stand in the order of its record's

_message = maker(Message)
_events = {
    record_type.__name__: maker(record_type)
    for record_type in (EpisodeStarted, RewardReported, EpisodeEnded, WriterClosed)
}
_turn = maker(TurnRecorded)


def as_record(name: str, plain: Plain) -> Any:
    """Return what the library read as the event that assembly takes."""
    if name == "TurnRecorded":
        plain["added_messages"] = tuple([_message(*message.values()) for message in plain["added_messages"]])
        plain["completion"] = _message(*plain["completion"].values())
        return _turn(*plain.values())
    if name == "EpisodeEnded":
        plain["writer_ids"] = tuple(plain["writer_ids"])
    return _events[name](*plain.values())


# A trajectory to dictionaries


def _plainer(record: type, **deep: Callable[[Any], Any]) -> Callable[[Any], Plain]:
    """Return what makes a dictionary of a record; `deep` is for its fields that hold others."""
    names = [field.name for field in fields(record)]
    values = attrgetter(*names)

    def plain(record: Any) -> Plain:
        plain_values = dict(zip(names, values(record), strict=True))
        for name, make in deep.items():
            plain_values[name] = make(plain_values[name])
        return plain_values

    return plain


def _map_list(make: Callable[[Any], Plain]) -> Callable[[Any], list[Plain]]:
    return lambda several: [make(record) for record in several]


_plain_message = _plainer(Message)
as_plain: Callable[[Any], Plain] = _plainer(
    Trajectory,
    turns=_map_list(_plainer(Turn, added_messages=_map_list(_plain_message), completion=_plain_message)),
    tools=_map_list(_plainer(ToolResult)),
    rewards=_map_list(_plainer(Reward)),
    histories=_map_list(_plainer(History, spans=_map_list(_plainer(Span)))),
)
"""Returns a trajectory as the dictionary that the library writes."""


def assembled(events: list[bytes], used: Codec) -> list[bytes]:
    """Return the trajectories of one episode's events."""
    stage = AssemblyStage(AssemblyConfig())
    state, outputs = stage.new_state(), list[Any]()
    for data in events:
        outputs += stage.step(state, Incoming(used.decode(data), "", NOWHERE, data))
    return [used.encode(outgoing.record) for outgoing in outputs if outgoing.topic.name == "trajectories"]


def conversion_us() -> float:
    """Return the CPU µs per event that turning dictionaries into records and back costs, medians of three."""
    read, chance = library_reader(), random.Random(0)
    names: Mapping[bytes, str] = {header: schema["name"] for header, schema in schemas().items()}
    stage, took = AssemblyStage(AssemblyConfig()), []
    for _ in range(3):
        used = 0.0
        for number in range(MEASURED):
            events = [(data, names[data[:HEADER_BYTES]], read(data)) for data in episode(number, chance)]
            began = time.process_time()
            records = [(as_record(name, plain), data) for data, name, plain in events]
            used += time.process_time() - began
            state, outputs = stage.new_state(), list[Any]()
            for record, data in records:
                outputs += stage.step(state, Incoming(record, "", NOWHERE, data))
            began = time.process_time()
            for outgoing in outputs:
                as_plain(outgoing.record)
            used += time.process_time() - began
        took.append(used / MEASURED / EVENTS * 1e6)
    return sorted(took)[1]
