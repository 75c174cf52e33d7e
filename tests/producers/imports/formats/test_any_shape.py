"""Documents in which anything was replaced by anything: each is read or refused, and what is read can be written."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus.producers.imports.formats.trace import ForeignDocumentError
from rollbus.schemas.codec import decode, encode
from tests.examples import count_examples
from tests.producers.imports.formats.reading import Read, make_span, request_of
from tests.producers.imports.formats.test_langfuse import API, BLOBS, score
from tests.producers.imports.formats.test_langsmith import FEEDBACK, RUNS
from tests.producers.imports.formats.test_openai_files import CHAT, answer, request
from tests.producers.imports.formats.test_otlp import AGENT, OPENINFERENCE

DOCUMENTS: dict[str, list[tuple[str, list[Any]]]] = {
    "langfuse": [("langfuse", API), ("langfuse", BLOBS)],
    "langsmith": [("langsmith", [*RUNS, FEEDBACK])],
    "otlp": [("otlp", [request_of(AGENT)]), ("otlp", [request_of([make_span(1, **OPENINFERENCE)])])],
    "openai": [("openai-chat", [CHAT]), ("openai-batch", [request("1", "2+2?"), answer("1", "four")])],
}
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\ud800", "{}", "[1]", "0"])
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in children for place in places(child, (*path, key)))]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    value[path[0]] = replaced(value[path[0]], path[1:], new)
    return value


@pytest.mark.parametrize("tool", DOCUMENTS)
@settings(max_examples=count_examples(150), deadline=None)
@given(data=st.data())
def test_a_document_with_anything_in_it_is_read_or_refused(tool: str, data: st.DataObject) -> None:
    format_name, documents = data.draw(st.sampled_from(DOCUMENTS[tool]))
    documents = copy.deepcopy(documents)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from([place for place in places(documents) if len(place) > 1]))
        documents = replaced(documents, path, data.draw(JSON))
    assert_read_or_refused(format_name, documents)


@pytest.mark.parametrize(("format_name", "documents"), [case for tool in DOCUMENTS.values() for case in tool])
def test_half_a_character_in_any_place_is_read_or_refused(format_name: str, documents: list[Any]) -> None:
    for path in places(documents):
        if len(path) > 1:
            assert_read_or_refused(format_name, replaced(copy.deepcopy(documents), path, "\ud800"))


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 10**400])
def test_a_score_that_is_not_finite_is_counted_but_not_a_reward(value: Any) -> None:
    stats = {**RUNS[0], "feedback_stats": {"correct": {"n": 1, "avg": value}}}
    assert [reward.name for reward in Read("langsmith", [stats, *RUNS[1:]]).rewards] == []
    for format_name, kind, documents in (
        ("langsmith", "feedback", [*RUNS[1:], {**FEEDBACK, "score": value}]),
        ("langfuse", "score", [{**API[0], "scores": [score("s1", value)]}]),
    ):
        episode = Read(format_name, documents)
        assert (episode.rewards, episode.unmapped[f"{format_name}.{kind} without a number"]) == ([], 1)


def assert_read_or_refused(format_name: str, documents: list[Any]) -> None:
    try:
        events = Read(format_name, documents).events
    except ForeignDocumentError:
        return
    assert [decode(encode(event)) for event in events] == events


def span_with(**changes: Any) -> dict[str, Any]:
    return request_of([{**make_span(1), **changes}])


def nested(depth: int) -> dict[str, Any]:
    """An attribute's value that is a list in a list, and so on."""
    return {"arrayValue": {"values": [nested(depth - 1)]}} if depth else {"stringValue": "x"}


@pytest.mark.parametrize(
    ("format_name", "document", "reason"),
    [
        ("langfuse", {"name": "x"}, "id"),
        ("langfuse", {"id": "x", "foo": 1}, "trace"),
        ("langfuse", {"id": "x", "traceId": "t", "startTime": "soon", "type": "SPAN"}, "start_time"),
        ("langfuse", {"id": "x", "startTime": "2026-03-01T10:00:00Z", "type": "SPAN"}, "trace_id"),
        ("langsmith", {"id": "x"}, "run"),
        ("langsmith", {"id": "x", "run_type": "llm", "start_time": "soon"}, "start_time"),
        ("openai-chat", {"prompt": "x"}, "messages"),
        ("openai-batch", {"custom_id": "1"}, "body"),
        ("openai-batch", {"body": {}}, "custom_id"),
        ("otlp", {"messages": []}, "resourceSpans"),
        ("otlp", span_with(traceId="xyz"), "traceId"),
        ("otlp", span_with(spanId="0" * 16), "spanId"),
        ("otlp", span_with(startTimeUnixNano="yesterday"), "startTimeUnixNano"),
        ("otlp", span_with(startTimeUnixNano="9" * 40), "startTimeUnixNano"),
        ("otlp", span_with(attributes="many"), "attributes"),
        ("otlp", span_with(attributes=[{"key": "deep", "value": nested(300)}]), "nested"),
    ],
)
def test_a_document_of_another_format_is_refused_with_the_reason(
    format_name: str, document: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ForeignDocumentError, match=reason):
        Read(format_name, [document])
