"""OpenAI's files → parts and traces: chat JSONL, as for fine-tuning, and the input and output of a batch.

A chat line is an episode, a turn for each answer in it. A batch answers each request once: input and output meet by
their `custom_id`, which is unique only within its batch.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rollbus.producers.imports.formats.answers import read_answer, read_request
from rollbus.producers.imports.formats.trace import (
    Fields,
    ForeignDocumentError,
    ImportedCall,
    ImportedSpan,
    Trace,
    TracePart,
    hash_document,
    labels_of,
    ns_of,
    text_field,
)
from rollbus.producers.turns.answer import ServerAnswer, readable_text
from rollbus.producers.turns.sampled_message import choice_of

TIMES = ("created", "created_at", "timestamp")


def split_chat(document: Mapping[str, Any]) -> Iterator[TracePart]:
    """Yield the line; raises ForeignDocumentError."""
    if not isinstance(document.get("messages"), list) and not isinstance(document.get("request"), Mapping):
        raise ForeignDocumentError("it has no list `messages`, nor `request` and `response`")
    yield TracePart(_hash(document), "chat", "0", document, is_last=True)


def assemble_chat(trace_id: str, parts: Sequence[TracePart], unmapped: Counter[str]) -> Trace:
    """Return the conversation."""
    fields = Fields(parts[0].document)
    at = ns_of(fields.take(*TIMES, "read_at"))
    fields.take("read_at")
    labels = labels_of(fields.take("metadata"), unmapped, "openai-chat.metadata")
    request = fields.take("request")
    response = fields.take("response", "choices")
    if isinstance(request, Mapping) or response is not None:
        answer = read_answer({"choices": response} if isinstance(response, list) else response)
        chat_request = read_request(request if isinstance(request, Mapping) else {"messages": fields.take("messages")})
        calls = [ImportedCall(request=chat_request, answer=answer or ServerAnswer())]
    else:
        model, tools = fields.text("model"), fields.take("tools", "functions")
        fields.take("parallel_tool_calls")
        chat_request = read_request({"messages": fields.take("messages")}, tools=tools, model=model)
        calls = list(_turns(chat_request, model or ""))
    name = fields.text("task", "name") or "openai-chat"
    fields.count_unread(unmapped, "openai-chat")
    spans = [
        ImportedSpan(id=str(index), parent_id=None, name="", start_ns=at + index, end_ns=at + index, content=call)
        for index, call in enumerate(calls)
    ]
    return Trace(id=trace_id, name=name, spans=spans, labels=labels)


def _turns(request: Mapping[str, Any], model: str) -> Iterator[ImportedCall]:
    """Yield a call for each answer, with the messages before it; an assistant's first words are its prompt's."""
    messages = request["messages"]
    for index, message in enumerate(messages):
        if message["role"] == "assistant" and index:
            yield ImportedCall(
                request={**request, "messages": messages[:index]},
                answer=ServerAnswer(model=model, choices=(choice_of(message),)),
            )


def _hash(document: Mapping[str, Any]) -> str:
    """Return the hash of a line, whatever the time of its file."""
    return hash_document({name: value for name, value in document.items() if name != "read_at"})


def split_batch(document: Mapping[str, Any]) -> Iterator[TracePart]:
    """Yield a request or an answer; raises ForeignDocumentError."""
    custom_id = text_field(document, "custom_id")
    if isinstance(document.get("body"), Mapping):
        yield TracePart(custom_id, "input", _hash(document), document)
    elif "response" in document or "error" in document:
        yield TracePart(custom_id, "output", _hash(document), document)
    else:
        raise ForeignDocumentError("it is neither a request (body) nor an answer (response or error)")


def assemble_batch(custom_id: str, parts: Sequence[TracePart], unmapped: Counter[str]) -> Trace:
    """Return one request with its answer; raises ForeignDocumentError where several have this id."""
    inputs, outputs = ([part.document for part in parts if part.kind == kind] for kind in ("input", "output"))
    if len(inputs) > 1 or len(outputs) > 1:
        raise ForeignDocumentError(f"custom_id {custom_id!r} comes {max(len(inputs), len(outputs))} times, with "
                                   "different content: import each batch by itself")  # fmt: skip
    input_fields = Fields(inputs[0] if inputs else {})
    if not outputs:
        unmapped["openai-batch.request without an answer"] += 1
        return Trace(id=custom_id, name="openai-batch")
    output_fields = Fields(outputs[0])
    response = output_fields.take("response")
    body = response.get("body") if isinstance(response, Mapping) else None
    error = output_fields.take("error") or (body.get("error") if isinstance(body, Mapping) else None)
    body_asked = input_fields.take("body")
    request = read_request(body_asked or {"messages": []})
    answer = None if error else read_answer(body)
    at = ns_of((body.get("created") or body.get("created_at")) if answer and isinstance(body, Mapping) and
               (body.get("created") or body.get("created_at")) else output_fields.take("read_at"))  # fmt: skip
    for fields in (input_fields, output_fields):
        fields.take("id", "custom_id", "method", "url", "read_at")
        fields.count_unread(unmapped, "openai-batch")
    metadata = body_asked.get("metadata") if isinstance(body_asked, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    failed = readable_text(message or error or None)
    call = ImportedCall(request=request, answer=answer or ServerAnswer(model=str(request.get("model") or "")))
    return Trace(
        id=f"{custom_id}:{hash_document([body_asked, body])}",
        name="openai-batch",
        spans=[ImportedSpan(id="0", parent_id=None, name="", start_ns=at, end_ns=at, content=call, error=failed)],
        labels={**labels_of(metadata, unmapped, "openai-batch.metadata"), "custom_id": custom_id},
        error=failed,
    )
