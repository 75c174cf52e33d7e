"""OpenTelemetry's traces, and the log records that belong to them → parts and traces.

In: export requests as OTLP's JSON has them, with ids in hexadecimal: a line of the collector's file exporter, or what
`producers/imports` makes of protobuf. `spans` reads what a span says.
"""

import base64
import binascii
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollbus.producers.imports.formats import genai
from rollbus.producers.imports.formats.spans import read_agent, read_content
from rollbus.producers.imports.formats.trace import (
    Fields,
    ForeignDocumentError,
    ImportedScore,
    ImportedSpan,
    Trace,
    TracePart,
    hash_document,
    labels_of,
    ns_of,
    score_number,
    text_field,
)
from rollbus.producers.turns.foreign_messages import read_json

SESSIONS = (
    "session.id",
    "gen_ai.conversation.id",
    "traceloop.association.properties.session_id",
    "langfuse.session.id",
)
USERS = ("user.id", "enduser.id", "traceloop.association.properties.user_id", "langfuse.user.id")
ENVIRONMENTS = ("deployment.environment.name", "deployment.environment")
SIGNALS = (("resourceSpans", "scopeSpans", "spans"), ("resourceLogs", "scopeLogs", "logRecords"))
"""Fields of a request, from the outside in."""
ERROR = 2
"""The status code of a span that failed."""
MAX_DEPTH = 64
"""Of lists and maps in a value."""
_INTEGER = re.compile(r"-?[0-9]{1,19}")
"""As many digits as 64 bits hold; Python reads none of more than 4300."""


def split(document: Mapping[str, Any]) -> Iterator[TracePart]:
    """Yield the spans and log records of an export request; raises ForeignDocumentError."""
    has_signal = False
    for kind, (groups, scopes, rows) in zip(("span", "log"), SIGNALS, strict=True):
        for group in _objects(document.get(groups), groups):
            has_signal = True
            resource = _attributes(_object(group.get("resource")).get("attributes"))
            for scope in _objects(group.get(scopes) or group.get("instrumentationLibrarySpans"), scopes):
                for row in _objects(scope.get(rows), rows):
                    yield from _parts(kind, row, resource)
    if not has_signal and "resourceMetrics" not in document and document:
        raise ForeignDocumentError("it has neither resourceSpans nor resourceLogs")


def _parts(kind: str, row: Mapping[str, Any], resource: Mapping[str, Any]) -> Iterator[TracePart]:
    attributes = _attributes(row.get("attributes"))
    environment = next((str(resource[name]) for name in ENVIRONMENTS if name in resource), "")
    if kind == "log":
        if (part := _log(row, attributes)) is not None:
            yield part
        return
    trace_id, span_id = _id(row, "traceId", 32), _id(row, "spanId", 16)
    parent = _id(row, "parentSpanId", 16) if row.get("parentSpanId") else None
    start = ns_of(row.get("startTimeUnixNano"), "startTimeUnixNano")
    status = _object(row.get("status"))
    span = {
        "parent": parent,
        "name": str(row.get("name") or ""),
        "start": start,
        "end": max(start, ns_of(row.get("endTimeUnixNano") or start, "endTimeUnixNano")),
        "attributes": attributes,
        "events": [
            {"name": str(event.get("name") or ""), "fields": _attributes(event.get("attributes"))}
            for event in _objects(row.get("events"), "events")
        ],
        "error": str(status.get("message") or "the span failed") if _is_error(status) else None,
        "environment": environment,
    }
    yield TracePart(trace_id, "span", span_id, span, is_last=parent is None)


def _log(row: Mapping[str, Any], attributes: dict[str, Any]) -> TracePart | None:
    """Return a log record that is an event of a span; None for any other."""
    name = str(row.get("eventName") or attributes.get("event.name") or "")
    if not name.startswith("gen_ai.") or not row.get("traceId"):
        return None
    body = _value(row.get("body"))
    fields = {**attributes, **body} if isinstance(body, dict) else {**attributes, "content": body}
    at = ns_of(row.get("timeUnixNano") or 0, "timeUnixNano") or ns_of(row.get("observedTimeUnixNano") or 0)
    span_id = _id(row, "spanId", 16) if row.get("spanId") else ""
    document = {"span": span_id, "name": name, "at": at, "fields": fields}
    key = hash_document(document)  # sent twice, it is the same
    return TracePart(_id(row, "traceId", 32), "log", key, document, is_score=name == genai.EVALUATION)


def assemble(trace_id: str, parts: Sequence[TracePart], unmapped: Counter[str]) -> Trace:
    """Return the trace of these spans and records.

    A log record is read into the span that it names, and labels into the trace, only where the same principal brought
    both. A score counts as that of who brought it.
    """
    logs, scores = _read_logs(parts, unmapped)
    span_parts = sorted(
        (part for part in parts if part.kind == "span"), key=lambda part: (part.document["start"], part.id)
    )
    oldest = span_parts[0] if span_parts else None
    root_part = next((part for part in span_parts if part.document["parent"] is None), oldest)
    root, principal = ({}, "") if root_part is None else (root_part.document, root_part.principal)
    labels: dict[str, str] = {}
    spans: list[ImportedSpan] = []
    for part in span_parts:
        fields = Fields(part.document["attributes"])
        events = [*part.document["events"], *logs.pop((part.principal, part.id), ())]
        spans.append(_span(part, fields, [(event["name"], event["fields"]) for event in events]))
        span_labels = _read_labels(fields, unmapped)
        if part.principal == principal:
            labels = span_labels | labels
        fields.count_unread(unmapped, "otlp")
        scores += _scores_in(part, unmapped)
    span_ids = {part.id for part in span_parts}
    for (_, span_id), remaining_logs in logs.items():
        reason = "otlp.log of another principal's span" if span_id in span_ids else "otlp.log without its span"
        unmapped[reason] += len(remaining_logs)
    environments = (part.document["environment"] for part in span_parts if part.principal == principal)
    return Trace(
        id=trace_id,
        name=str(root.get("name") or "otlp"),
        spans=spans,
        scores=scores,
        labels=labels,
        environment=next(filter(None, environments), ""),
        agent=next((span.agent for span in spans if span.agent and span.principal == principal), ""),
        error=root.get("error"),
        principal=principal,
    )


def _read_logs(
    parts: Sequence[TracePart], unmapped: Counter[str]
) -> tuple[dict[tuple[str, str], list[Mapping[str, Any]]], list[ImportedScore]]:
    """Return the log records by principal and span id, in order of time, and the scores that are log records."""
    logs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    scores: list[ImportedScore] = []
    log_parts = (part for part in parts if part.kind == "log")
    for part in sorted(log_parts, key=lambda part: (part.document["at"], part.id)):
        if not part.is_score:
            logs.setdefault((part.principal, part.document["span"]), []).append(part.document)
        elif score := _score(part.document, unmapped, part.id, part.principal):
            scores.append(score)
    return logs, scores


def _read_labels(fields: Fields, unmapped: Counter[str]) -> dict[str, str]:
    """Return a span's labels: its metadata, and its session and user, which replace metadata of the same name."""
    identities = {"session": fields.text(*SESSIONS), "user": fields.text(*USERS)}
    metadata = labels_of(read_json(fields.take("metadata")), unmapped, "otlp.metadata")
    return metadata | {name: value for name, value in identities.items() if value is not None}


def _scores_in(part: TracePart, unmapped: Counter[str]) -> Iterator[ImportedScore]:
    """Yield the scores that are events of a span."""
    span = part.document
    for place, event in enumerate(span["events"]):
        record = {"span": part.id, "name": event["name"], "at": span["start"], "fields": event["fields"]}
        if score := _score(record, unmapped, f"{part.id}.{place}", part.principal):
            yield score


def _span(part: TracePart, fields: Fields, events: Sequence[genai.Event]) -> ImportedSpan:
    span = part.document
    return ImportedSpan(
        id=part.id,
        parent_id=span["parent"],
        name=span["name"],
        start_ns=span["start"],
        end_ns=span["end"],
        content=read_content(span["name"], fields, events),
        agent=read_agent(span["name"], fields),
        error=span["error"],
        principal=part.principal,
    )


def _score(record: Mapping[str, Any], unmapped: Counter[str], key: str, principal: str) -> ImportedScore | None:
    """Return the score of an evaluation event; one without a number is counted."""
    if record["name"] != genai.EVALUATION:
        return None
    fields = Fields(record["fields"])
    name, value = fields.text("gen_ai.evaluation.name"), score_number(fields.take("gen_ai.evaluation.score.value"))
    if name is None or value is None:
        unmapped["otlp.gen_ai.evaluation.result without a number"] += 1
        return None
    return ImportedScore(
        id=key,
        name=name,
        value=value,
        source="evaluation",
        span_id=record["span"] or None,
        comment=fields.text("gen_ai.evaluation.explanation", "gen_ai.evaluation.score.label"),
        at_ns=record["at"],
        principal=principal,
    )


def _is_error(status: Mapping[str, Any]) -> bool:
    return status.get("code") in (ERROR, "STATUS_CODE_ERROR")


def _id(row: Mapping[str, Any], name: str, digits: int) -> str:
    """Return an id in small hexadecimal digits; raises ForeignDocumentError."""
    value = text_field(row, name).lower()
    try:
        is_hex = len(value) == digits and len(binascii.unhexlify(value)) * 2 == digits
    except (ValueError, binascii.Error):
        is_hex = False
    if not is_hex or not value.strip("0"):
        raise ForeignDocumentError(f"its {name} is {value[:40]!r}, not {digits} hexadecimal digits")
    return value


def _attributes(pairs: Any) -> dict[str, Any]:
    return {str(attribute.get("key")): _value(attribute.get("value")) for attribute in _objects(pairs, "attributes")}


def _value(value: Any, depth: int = 0) -> Any:
    """Return what an OTLP value holds; raises ForeignDocumentError where it is nested too deep."""
    if depth > MAX_DEPTH:
        raise ForeignDocumentError(f"a value is nested deeper than {MAX_DEPTH} levels")
    fields = _object(value)
    for name, content in fields.items():
        if name in ("stringValue", "boolValue", "doubleValue"):
            return content
        if name == "intValue":
            return int(content) if isinstance(content, str | int) and _INTEGER.fullmatch(str(content)) else None
        if name == "arrayValue":
            return [_value(element, depth + 1) for element in _objects(_object(content).get("values"), "values")]
        if name == "kvlistValue":
            pairs = _objects(_object(content).get("values"), "values")
            return {str(pair.get("key")): _value(pair.get("value"), depth + 1) for pair in pairs}
        if name == "bytesValue":
            return _text_of_bytes(content)
    return None


def _text_of_bytes(encoded: Any) -> str:
    try:
        return base64.b64decode(str(encoded)).decode(errors="replace")
    except (ValueError, binascii.Error):
        return str(encoded)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _objects(value: Any, name: str) -> list[Mapping[str, Any]]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise ForeignDocumentError(f"its {name} is not a list of objects")
    return value
