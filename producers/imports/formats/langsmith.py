"""LangSmith's exports, one run or one piece of feedback per line → parts and traces."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollbus.producers.imports.formats.answers import read_answer, read_request
from rollbus.producers.imports.formats.trace import (
    Fields,
    ForeignDocumentError,
    ImportedCall,
    ImportedScore,
    ImportedSpan,
    ImportedTool,
    Trace,
    TracePart,
    labels_of,
    ns_of,
    score_number,
    text_field,
)
from rollbus.producers.turns.answer import ServerAnswer, text_of
from rollbus.producers.turns.foreign_messages import read_json, read_result

SESSIONS, USERS = ("session_id", "thread_id", "conversation_id"), ("user_id", "user")
"""Names in a run's metadata."""
BOOKKEEPING = (
    *("id", "trace_id", "dotted_order", "parent_run_id", "parent_run_ids", "child_run_ids", "direct_child_run_ids"),
    *("child_runs", "session_id", "session_name", "app_path", "manifest_id", "serialized", "events", "status"),
    *("tenant_id", "first_token_time", "last_queued_at", "execution_order", "in_dataset", "share_token"),
    *("trace_tier", "ttl_seconds", "total_tokens", "total_cost", "prompt_cost", "completion_cost"),
    *("prompt_cost_details", "completion_cost_details", "prompt_token_details", "completion_token_details"),
    *("price_model_id", "inputs_preview", "outputs_preview", "trace_first_received_at", "trace_min_start_time"),
    *("trace_max_start_time", "start_time", "end_time", "run_type"),
)
"""Fields of a run that say nothing of what was asked and answered, or that are read elsewhere."""
FROM_METADATA = (
    *("usage_metadata", "ls_provider", "ls_model_name", "ls_model_type", "ls_temperature", "ls_max_tokens"),
    "ls_stop",
)


def split(document: Mapping[str, Any]) -> Iterator[TracePart]:
    """Yield a run or a piece of feedback; raises ForeignDocumentError."""
    row_id = text_field(document, "id", "run_id" if "run_type" in document else "id")
    if "run_type" in document:
        ns_of(document.get("start_time"), "start_time")
        trace_id = (
            document.get("trace_id") or str(document.get("dotted_order") or "").partition("Z")[2].partition(".")[0]
        )
        if not trace_id and document.get("parent_run_id"):
            raise ForeignDocumentError("it has a parent, and neither trace_id nor dotted_order")
        yield TracePart(text_of(str(trace_id or row_id)) or "", "run", row_id, document)
    elif "key" in document and ("run_id" in document or "trace_id" in document):
        yield TracePart(text_field(document, "trace_id", "run_id"), "feedback", row_id, document, is_score=True)
    else:
        raise ForeignDocumentError("it is neither a run (run_type) nor feedback (key, run_id)")


def assemble(trace_id: str, parts: Sequence[TracePart], unmapped: Counter[str]) -> Trace:
    """Return the trace of these runs; the statistics of feedback count only where the feedback itself is not there."""
    scores = [score for part in parts if part.kind == "feedback" if (score := _score(part.document, unmapped))]
    labels: dict[str, str] = {}
    spans: list[ImportedSpan] = []
    root: Mapping[str, Any] = {}
    scored_names = {(score.name, score.span_id) for score in scores}
    runs = sorted((part for part in parts if part.kind == "run"), key=lambda part: part.id)
    for part in runs:
        fields = Fields(part.document)
        metadata = _metadata(fields)
        is_root = not part.document.get("parent_run_id")
        root = part.document if is_root else root
        for names, label in ((SESSIONS, "session"), (USERS, "user")):
            if value := next((metadata[name] for name in names if metadata.get(name)), None):
                labels.setdefault(label, str(value))
        other_metadata = {
            name: value for name, value in metadata.items() if name not in (*SESSIONS, *USERS, *FROM_METADATA)
        }
        if is_root:
            labels |= labels_of(other_metadata, unmapped, "langsmith.metadata")
            if isinstance(tags := fields.take("tags"), list) and tags:
                labels.setdefault("tags", ",".join(str(tag) for tag in tags if tag is not None))
        spans.append(_span(part.id, fields))
        for name, stats in _stats(fields):
            if (name, part.id) not in scored_names and (name, None) not in scored_names:
                scores.append(_of_stats(part, name, stats))
        fields.take(*BOOKKEEPING)
        fields.count_unread(unmapped, "langsmith")
    return Trace(
        id=trace_id,
        name=str(root.get("name") or "langsmith"),
        spans=spans,
        scores=scores,
        labels=labels,
        agent=next((span.agent for span in spans if span.agent), ""),
        example_id=str(root["reference_example_id"]) if root.get("reference_example_id") else None,
        error=str(root["error"]) if root.get("error") else None,
    )


def _metadata(fields: Fields) -> dict[str, Any]:
    extra = read_json(fields.take("extra"))
    metadata = extra.get("metadata") if isinstance(extra, Mapping) else None
    return dict(metadata) if isinstance(metadata, Mapping) else {}


def _span(run_id: str, fields: Fields) -> ImportedSpan:
    start, ended = ns_of(fields.take("start_time"), "start_time"), fields.take("end_time")
    error, name = fields.text("error"), fields.text("name") or ""
    kind = fields.take("run_type")
    fields.take("reference_example_id", "tags")
    metadata = _metadata(fields)
    return ImportedSpan(
        id=run_id,
        parent_id=fields.text("parent_run_id"),
        name=name,
        start_ns=start,
        end_ns=max(start, ns_of(ended, "end_time")) if ended else start,
        content=_content(str(kind), name, fields, metadata),
        agent=str(agent) if (agent := metadata.get("lc_agent_name")) else None,
        error=error,
    )


def _content(kind: str, name: str, fields: Fields, metadata: Mapping[str, Any]) -> ImportedCall | ImportedTool | None:
    inputs, outputs = read_json(fields.take("inputs")), read_json(fields.take("outputs"))
    usage: Any = {name: fields.take(name) for name in ("prompt_tokens", "completion_tokens")}
    if not any(usage.values()):  # as the SDK sends them, before its server has counted
        usage = metadata.get("usage_metadata")
    if kind == "llm":
        extra = read_json(fields.take("extra"))
        parameters = extra.get("invocation_params") if isinstance(extra, Mapping) else None
        parameters = dict(parameters) if isinstance(parameters, Mapping) else {}
        model = parameters.get("model") or parameters.get("model_name") or metadata.get("ls_model_name")
        request = read_request(_first_prompt(inputs), **{**parameters, "model": model})
        answer = read_answer(outputs, model=str(model or ""), usage=usage)
        return ImportedCall(request=request, answer=answer or ServerAnswer(model=str(model or "")))
    if kind == "tool":
        result, call_id = read_result(outputs)
        result = result["output"] if isinstance(result, Mapping) and set(result) == {"output"} else result
        arguments = inputs.get("input") if isinstance(inputs, Mapping) and set(inputs) == {"input"} else inputs
        return ImportedTool(name=name, arguments="" if arguments is None else arguments, result=result, call_id=call_id)
    return None


def _first_prompt(inputs: Any) -> Any:
    """Return the inputs with one list of messages: LangChain asks for several at a time, in one run each."""
    messages = inputs.get("messages") if isinstance(inputs, Mapping) else None
    if isinstance(messages, list) and messages and isinstance(messages[0], list):
        return {**inputs, "messages": messages[0]}
    if isinstance(inputs, Mapping) and isinstance(inputs.get("prompts"), list):
        return {"messages": inputs["prompts"][:1]}
    return inputs


def _score(row: Mapping[str, Any], unmapped: Counter[str]) -> ImportedScore | None:
    """Return a piece of feedback; one without a key or a number, such as a category or a correction, is counted."""
    fields = Fields(row)
    value = fields.take("score", "value")
    number = score_number(value)
    if number is None:
        unmapped["langsmith.feedback without a number"] += 1
        return None
    if (key := fields.text("key")) is None:
        unmapped["langsmith.feedback without a key"] += 1
        return None
    source = fields.take("feedback_source")
    kind = source.get("type") if isinstance(source, Mapping) else None
    run_id, trace_id = fields.text("run_id"), fields.text("trace_id")
    at = fields.take("created_at", "modified_at")
    score = ImportedScore(
        id=str(fields.take("id")),
        name=key,
        value=number,
        source=str(kind or "langsmith"),
        span_id=run_id if run_id != trace_id else None,
        comment=fields.text("comment"),
        at_ns=ns_of(at, "created_at") if at else 0,
    )
    fields.take("session_id", "start_time", "feedback_config", "feedback_group_id", "is_root", "value", "modified_at")
    fields.count_unread(unmapped, "langsmith.feedback")
    return score


def _stats(fields: Fields) -> Iterator[tuple[str, Mapping[str, Any]]]:
    stats = read_json(fields.take("feedback_stats"))
    for name, stat in stats.items() if isinstance(stats, Mapping) else ():
        if isinstance(stat, Mapping) and score_number(stat.get("avg")) is not None:
            yield str(name), stat


def _of_stats(part: TracePart, name: str, stats: Mapping[str, Any]) -> ImportedScore:
    is_root = not part.document.get("parent_run_id")
    end_time = part.document.get("end_time") or part.document.get("start_time")
    return ImportedScore(
        id=f"{part.id}:stats",
        name=name,
        value=float(stats["avg"]),
        source="langsmith",
        span_id=None if is_root else part.id,
        at_ns=ns_of(end_time, "end_time"),
    )
