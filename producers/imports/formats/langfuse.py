"""Langfuse's exports → parts and traces.

Reads what its API gives (camelCase; a trace may hold its observations and scores), what its UI writes, and the rows of
its blob storage export (snake_case; one file per table, or enriched observations that carry their trace's fields).
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollbus.producers.imports.formats.answers import read_answer, read_request
from rollbus.producers.imports.formats.langfuse_observation import AGENTS, FINISH_REASON, read_observation
from rollbus.producers.imports.formats.trace import (
    Fields,
    ForeignDocumentError,
    ImportedCall,
    ImportedScore,
    ImportedSpan,
    Trace,
    TracePart,
    labels_of,
    ns_of,
    score_number,
    text_field,
)
from rollbus.producers.turns.answer import text_of
from rollbus.producers.turns.foreign_messages import read_json
from rollbus.schemas.ids import parse_json

_CAPITAL = re.compile(r"(?<=[a-z0-9])([A-Z])")
TRACE_FIELDS = {"user_id": "user", "session_id": "session", "release": "release", "version": "version"}
"""Fields of a trace, or of an enriched observation, that become labels, and their names there."""
BOOKKEEPING = (
    *("project_id", "created_at", "updated_at", "public", "bookmarked", "html_path", "latency", "total_cost"),
    *("level", "time_to_first_token", "completion_start_time", "model_id", "internal_model_id"),
    *("is_root_observation", "config_id", "author_user_id", "queue_id", "dataset_run_id", "data_type", "unit"),
    *("event_ts", "is_deleted", "execution_trace_id"),
    *("prompt_tokens", "completion_tokens", "total_tokens", "input_usage", "output_usage", "total_usage"),
)
"""Fields that say nothing of the question, the answer or a verdict on it, or repeat it: they count as read, and are not
kept."""
PRICES = re.compile(r".*(cost|price|pricing).*")
SENDER_NAMES = re.compile(r"resourceAttributes\..+|scope\.(name|version|attributes\..+)")
SENDER_OBJECTS = ("scope", "resourceAttributes")
"""Metadata that the server adds: the SDK and the process that a span came from. Some exports have a field for each of
its parts, others have two objects."""


def split(document: Mapping[str, Any]) -> Iterator[TracePart]:
    """Yield the parts in a document: of a trace with its observations and scores, of one of these alone, or of all in a
    page or a session of the API; raises ForeignDocumentError.
    """
    row = _snake(document)
    if "id" not in row and "export_source" in row and isinstance(row.get("files"), list):
        return  # the blob storage export's list of its files, which is in their folder
    if "id" not in row and isinstance(row.get("data"), list):
        yield from _split_all(row["data"], "data")
        return
    row_id = text_field(row, "id")
    if "trace_id" not in row and "timestamp" in row and not _is_score(row):
        observations, scores = row.pop("observations", None), row.pop("scores", None)
        yield TracePart(row_id, "trace", row_id, row)
        for kind, entries in (("observation", observations), ("score", scores)):
            for entry in entries if isinstance(entries, list) else ():
                if isinstance(entry, Mapping):  # a list of traces has ids here
                    inner = _snake(entry)
                    yield _part(kind, {"trace_id": row_id, **inner, "id": text_field(inner, "id")})
    elif _is_score(row):
        row |= _subject(row.pop("subject", None))
        if row.get("trace_id"):
            yield _part("score", row)
        elif not (row.get("session_id") or row.get("dataset_run_id")):  # such a score is of no trace
            raise ForeignDocumentError(
                "this score does not name what it is of; ask the API for its subject: /api/public/v3/scores?fields="
                "core,details,subject,annotation"
            )
    elif "start_time" in row and "type" in row:
        yield _part("observation", row)
    elif isinstance(row.get("traces"), list):  # a session of the API
        yield from _split_all(row["traces"], "traces")
    else:
        raise ForeignDocumentError(
            "it is not a trace (timestamp), observation (type, start_time) or score (name, value)"
        )


def _split_all(entries: Sequence[Any], what: str) -> Iterator[TracePart]:
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise ForeignDocumentError(f"its {what} holds a {type(entry).__name__}")
        yield from split(entry)


def _is_score(row: Mapping[str, Any]) -> bool:
    return "name" in row and ("value" in row or "string_value" in row) and "start_time" not in row


def _subject(subject: Any) -> dict[str, Any]:
    """Return what a score is of, which the third version of the API says in a field of its own."""
    if not isinstance(subject, Mapping):
        return {}
    kind, fields = subject.get("kind"), _snake(subject)
    if kind == "observation":
        return {"observation_id": fields.get("id"), "trace_id": fields.get("trace_id")}
    return {"trace_id" if kind == "trace" else "session_id": fields.get("id")}


def _part(kind: str, row: Mapping[str, Any]) -> TracePart:
    if kind == "observation":
        ns_of(row.get("start_time"), "start_time")
    return TracePart(text_field(row, "trace_id"), kind, text_field(row, "id"), row, is_score=kind == "score")


def assemble(trace_id: str, parts: Sequence[TracePart], unmapped: Counter[str]) -> Trace:
    """Return the trace of these rows; an enriched observation says what its trace's row would."""
    rows = [part.document for part in parts if part.kind == "trace"]
    row = Fields(rows[0] if rows else {})
    labels: dict[str, str] = {}
    spans: list[ImportedSpan] = []
    names: list[str] = []
    environments = [str(row.take("environment") or "")]
    _add_labels(labels, row)
    observations = sorted((part for part in parts if part.kind == "observation"), key=lambda part: part.id)
    metadata = _read_metadata(row.take("metadata") if rows else _root_metadata(observations))
    labels |= labels_of(metadata, unmapped, "langfuse.trace.metadata")
    for part in observations:
        fields = Fields(part.document)
        spans.append(_span(part.id, fields, labels, unmapped))
        _add_labels(labels, fields)
        names += [name] if (name := fields.text("trace_name")) else []
        environments.append(str(fields.take("environment") or ""))
        fields.count_unread(unmapped, "langfuse.observation")
    inputs, outputs = row.take("input"), row.take("output")
    if not spans and (inputs is not None or outputs is not None):
        spans = _make_single_call(trace_id, row, inputs, outputs)
    _ignore_bookkeeping(row)
    name = row.text("name") or next(iter(names), None)
    row.take("id", "timestamp", "_deprecation")
    row.count_unread(unmapped, "langfuse.trace")
    root = next((span for span in spans if span.parent_id is None), None)
    return Trace(
        id=trace_id,
        name=name or (root.name if root else "") or "langfuse",
        spans=spans,
        scores=[score for part in parts if part.kind == "score" if (score := _score(part.document, unmapped))],
        labels=labels,
        environment=next(filter(None, environments), ""),
        agent=next((span.agent for span in spans if span.agent), ""),
        error=root.error if root else None,
    )


def _make_single_call(trace_id: str, row: Fields, inputs: Any, outputs: Any) -> list[ImportedSpan]:
    """Return a trace without observations as one call: its input and output are all there is."""
    at = ns_of(row.take("timestamp"), "timestamp")
    if (answer := read_answer(outputs)) is None:
        return []
    call = ImportedCall(request=read_request(inputs), answer=answer)
    return [ImportedSpan(id=trace_id, parent_id=None, name="", start_ns=at, end_ns=at, content=call)]


def _add_labels(labels: dict[str, str], fields: Fields) -> None:
    for name, label in TRACE_FIELDS.items():
        if value := fields.text(name):
            labels.setdefault(label, value)
    tags = read_json(fields.take("tags"))
    if isinstance(tags, list) and tags:
        labels.setdefault("tags", ",".join(map(str, tags)))


def _read_metadata(value: Any) -> dict[str, Any]:
    """Return the metadata that the application gave a trace or an observation, without what the server adds."""
    document = read_json(value)
    entries = document.items() if isinstance(document, Mapping) else ()
    metadata = {str(name): _read_entry(content) for name, content in entries if not SENDER_NAMES.fullmatch(str(name))}
    return {name: content for name, content in metadata.items() if not _is_sender_object(name, content)}


def _is_sender_object(name: str, content: Any) -> bool:
    return name in SENDER_OBJECTS and isinstance(content, Mapping)


def _read_entry(content: Any) -> Any:
    """Return a value of metadata, which exports may hold as JSON text, texts with their quotes too."""
    if not isinstance(content, str) or content[:1] != '"':
        return read_json(content)
    try:
        return parse_json(content)
    except ValueError:
        return content


def _root_metadata(observations: Sequence[TracePart]) -> Any:
    """Return the metadata of the enriched root, which a trace's row has too; None where no observation is enriched."""
    for part in observations:
        if "trace_name" in part.document and not part.document.get("parent_observation_id"):
            return part.document.get("metadata")
    return None


def _span(span_id: str, fields: Fields, labels: Mapping[str, str], unmapped: Counter[str]) -> ImportedSpan:
    start = ns_of(fields.take("start_time"), "start_time")
    end = fields.take("end_time", "completion_start_time")
    kind, name = str(fields.take("type") or "SPAN").upper(), fields.text("name") or ""
    metadata = _read_metadata(fields.take("metadata"))
    for field, value in metadata.items():
        if field != FINISH_REASON and field not in labels and value not in (None, "", [], {}):
            unmapped[f"langfuse.observation.metadata.{field}"] += 1
    has_failed = str(fields.take("level") or "") == "ERROR"
    message = fields.text("status_message")
    _ignore_bookkeeping(fields)
    fields.take("id", "trace_id", "environment")  # read elsewhere
    return ImportedSpan(
        id=span_id,
        parent_id=fields.text("parent_observation_id"),
        name=name,
        start_ns=start,
        end_ns=max(start, ns_of(end, "end_time")) if end else start,
        content=read_observation(kind, name, fields, text_of(metadata.get(FINISH_REASON))),
        agent=name if kind in AGENTS or metadata.get("lc_agent_name") == name else None,
        error=(message or "the observation failed") if has_failed else None,
    )


def _score(row: Mapping[str, Any], unmapped: Counter[str]) -> ImportedScore | None:
    """Return a score; None for one without a number, such as a category or a text, which is counted."""
    fields = Fields(row)
    name, value = fields.text("name") or "reward", fields.take("value")
    is_number = str(fields.take("data_type") or "NUMERIC") in ("NUMERIC", "BOOLEAN")
    number = score_number(_as_number(value))
    if number is None or not is_number:
        unmapped["langfuse.score without a number"] += 1
        return None
    at = fields.take("timestamp", "created_at")
    score = ImportedScore(
        id=str(fields.take("id")),
        name=name,
        value=number,
        source=(fields.text("source") or "langfuse").lower(),
        span_id=fields.text("observation_id"),
        comment=fields.text("comment"),
        at_ns=ns_of(at, "timestamp") if at else 0,
    )
    _ignore_bookkeeping(fields)
    fields.take("trace_id", "session_id", "environment", "string_value", "trace")
    fields.count_unread(unmapped, "langfuse.score")
    return score


def _as_number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return None


def _ignore_bookkeeping(fields: Fields) -> None:
    fields.take(*BOOKKEEPING)
    fields.ignore(PRICES)


def _snake(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with its names in snake_case, as the blob storage export has them."""
    return {_CAPITAL.sub(r"_\1", str(name)).lower(): value for name, value in document.items()}
