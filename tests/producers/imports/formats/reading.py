"""Documents to events, as the importer makes them, without a store."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from rollbus.producers.imports.formats.episode_events import EpisodeWriter
from rollbus.producers.imports.formats.formats import FORMATS
from rollbus.producers.imports.formats.trace import TracePart
from rollbus.schemas.records.events import (
    EpisodeEnded,
    EpisodeStarted,
    Event,
    RewardReported,
    ToolCalled,
    TurnRecorded,
)

START_NS = 1_700_000_000_000_000_000
SECOND_NS = 10**9


class Read:
    """What some documents became."""

    def __init__(self, format_name: str, documents: Iterable[Mapping[str, Any]], **options: Any) -> None:
        self.unmapped: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        format_ = FORMATS[format_name]
        traces: dict[str, dict[tuple[str, str], TracePart]] = {}
        for document in documents:
            for part in format_.split(document):
                traces.setdefault(part.trace_id, {}).setdefault((part.kind, part.id), part)
        self.events: list[Event] = []
        for trace_id, parts in traces.items():
            trace = format_.assemble(trace_id, [parts[key] for key in sorted(parts)], self.unmapped)
            writer = EpisodeWriter(trace, format_name, counts=self.counts, **options)
            self.events += [imported.event for imported in writer.write()]

    @property
    def started(self) -> EpisodeStarted:
        (event,) = (event for event in self.events if isinstance(event, EpisodeStarted))
        return event

    @property
    def ended(self) -> EpisodeEnded:
        (event,) = (event for event in self.events if isinstance(event, EpisodeEnded))
        return event

    @property
    def turns(self) -> list[TurnRecorded]:
        return [event for event in self.events if isinstance(event, TurnRecorded)]

    @property
    def tools(self) -> list[ToolCalled]:
        return [event for event in self.events if isinstance(event, ToolCalled)]

    @property
    def rewards(self) -> list[RewardReported]:
        return [event for event in self.events if isinstance(event, RewardReported)]

    def texts(self) -> list[tuple[list[str], str | None]]:
        """Roles of each turn's new messages, and its answer."""
        return [
            ([added_message.role for added_message in turn.added_messages], turn.completion.content)
            for turn in self.turns
        ]


def otlp_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [otlp_value(item) for item in value]}}
    if isinstance(value, dict):
        return {"kvlistValue": {"values": otlp_attributes(value)}}
    return {"stringValue": str(value)}


def otlp_attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": otlp_value(value)} for name, value in attributes.items()]


def make_span(
    number: int,
    *,
    parent: int | None = None,
    name: str = "span",
    trace: str = "ab" * 16,
    at_s: float = 0.0,
    seconds: float = 1.0,
    events: Iterable[tuple[str, Mapping[str, Any]]] = (),
    error: str | None = None,
    **attributes: Any,
) -> dict[str, Any]:
    start = START_NS + int(at_s * SECOND_NS)
    span = {
        "traceId": trace,
        "spanId": f"{number:016x}",
        "name": name,
        "kind": 1,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + int(seconds * SECOND_NS)),
        "attributes": otlp_attributes({key.replace("__", "."): value for key, value in attributes.items()}),
        "events": [
            {"timeUnixNano": str(start), "name": event, "attributes": otlp_attributes(fields)}
            for event, fields in events
        ],
        "status": {"code": 2, "message": error} if error else {},
    }
    return span if parent is None else {**span, "parentSpanId": f"{parent:016x}"}


def request_of(spans: Iterable[Mapping[str, Any]], **resource: Any) -> dict[str, Any]:
    """An export request as OTLP's JSON has it."""
    named = {key.replace("__", "."): value for key, value in resource.items()}
    return {
        "resourceSpans": [
            {"resource": {"attributes": otlp_attributes(named)}, "scopeSpans": [{"scope": {}, "spans": list(spans)}]}
        ]
    }
