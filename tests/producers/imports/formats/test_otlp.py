"""OTLP's spans to events: every way in which the conventions have written a call, and spans in any order."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollbus.producers.imports.formats.attributes import nest
from rollbus.schemas.records.events import Event
from tests.examples import count_examples
from tests.producers.imports.formats.reading import START_NS, Read, make_span, otlp_value, request_of

ASKED: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.request.model": "agent",
    "gen_ai.response.model": "agent@7",
}
CALL = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": '{"q":"x"}'}}


def read(*spans: dict[str, Any], **options: Any) -> Read:
    return Read("otlp", [request_of(spans)], **options)


def call(number: int, messages: list[Any], answer: str, **options: Any) -> dict[str, Any]:
    """A call as the newest conventions write it."""
    input_messages = [{"role": role, "parts": [{"type": "text", "content": text}]} for role, text in messages]
    output_messages = [{"role": "assistant", "parts": [{"type": "text", "content": answer}], "finish_reason": "stop"}]
    attributes: dict[str, Any] = {
        **ASKED,
        "gen_ai.input.messages": json.dumps(input_messages),
        "gen_ai.output.messages": json.dumps(output_messages),
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.request.temperature": 0.5,
    }
    return make_span(number, **{**attributes, **options})


NEWEST = {
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "be kind"}]),
    "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]),
    "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "hello"}]}]),
}
FLATTENED = {
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "be kind",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "hi",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "hello",
    "gen_ai.completion.0.finish_reason": "stop",
}
TWO_EVENTS = (
    (
        "gen_ai.content.prompt",
        {"gen_ai.prompt": json.dumps([{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}])},
    ),
    ("gen_ai.content.completion", {"gen_ai.completion": json.dumps([{"role": "assistant", "content": "hello"}])}),
)
EVENT_EACH = (
    ("gen_ai.system.message", {"content": "be kind"}),
    ("gen_ai.user.message", {"gen_ai.event.content": json.dumps({"content": "hi", "role": "user"})}),
    ("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": json.dumps({"content": "hello"})}),
)
DETAILS = (("gen_ai.client.inference.operation.details", NEWEST),)
OPENINFERENCE: dict[str, Any] = {
    "openinference.span.kind": "LLM",
    "llm.model_name": "agent@7",
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "be kind",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.contents.0.message_content.type": "text",
    "llm.input_messages.1.message.contents.0.message_content.text": "hi",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "hello",
    "llm.token_count.prompt": 12,
    "llm.invocation_parameters": json.dumps({"temperature": 0.5}),
}
SPELLINGS: dict[str, tuple[dict[str, Any], Any]] = {
    "attributes with JSON": ({**ASKED, **NEWEST}, ()),
    "flattened attributes": ({**ASKED, **FLATTENED}, ()),
    "two events": (ASKED, TWO_EVENTS),
    "an event per message": (ASKED, EVENT_EACH),
    "an event with details": (ASKED, DETAILS),
    "OpenInference": (OPENINFERENCE, ()),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_a_call_gives_the_same_turn(spelling: str) -> None:
    attributes, events = SPELLINGS[spelling]
    episode = read(make_span(1, events=events, at_s=5, seconds=2, **attributes))
    (turn,) = episode.turns
    assert episode.texts() == [(["system", "user"], "hello")]
    assert [added_message.content for added_message in turn.added_messages] == ["be kind", "hi"]
    assert (turn.model, turn.policy_version) == ("agent@7", 7)
    assert (turn.trainable, turn.untrainable_reason) == (False, "no_token_ids")
    assert turn.occurred_at_ms == START_NS // 1_000_000 + 7000
    assert turn.latency_ms == 2000


def test_events_that_come_as_log_records_belong_to_their_span() -> None:
    span = make_span(1, **ASKED)
    names: list[tuple[str, dict[str, Any]]] = [
        ("gen_ai.user.message", {"content": "hi"}),
        ("gen_ai.choice", {"message": {"content": "hello"}}),
    ]
    records = [
        {
            "traceId": span["traceId"],
            "spanId": span["spanId"],
            "observedTimeUnixNano": str(START_NS + at),
            "eventName": name,
            "body": otlp_value(body),
        }
        for at, (name, body) in enumerate(names)
    ]
    logs = {"resourceLogs": [{"resource": {}, "scopeLogs": [{"logRecords": records[::-1]}]}]}
    assert Read("otlp", [logs, request_of([span])]).texts() == [(["user"], "hello")]


def test_log_records_without_a_span_of_their_trace_are_counted() -> None:
    record = {"traceId": "ab" * 16, "timeUnixNano": str(START_NS), "eventName": "gen_ai.user.message"}
    records = [record | {"body": otlp_value({"content": "hi"})}, record | {"spanId": f"{9:016x}"}]
    logs = {"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}
    assert Read("otlp", [logs, request_of([make_span(1, **ASKED)])]).unmapped["otlp.log without its span"] == 2


@pytest.mark.parametrize("digits", ["--5", "9" * 5000])
def test_a_whole_number_that_is_none_is_no_value(digits: str) -> None:
    span = make_span(1, **ASKED)
    span["attributes"].append({"key": "gen_ai.usage.input_tokens", "value": {"intValue": digits}})
    assert Read("otlp", [request_of([span])]).turns[0].prompt_tokens is None


def test_tool_calls_their_results_and_the_tools_offered_are_kept() -> None:
    call_messages = [
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "search", "arguments": {"q": "x"}}]}
    ]
    conversation = [
        {"role": "user", "parts": [{"type": "text", "content": "find x"}]},
        *call_messages,
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": {"hits": 2}}]},
    ]
    tool_definitions = json.dumps([{"type": "function", "name": "search", "parameters": {"type": "object"}}])
    first = {**ASKED, "gen_ai.tool.definitions": tool_definitions}
    first |= {
        "gen_ai.input.messages": json.dumps(conversation[:1]),
        "gen_ai.output.messages": json.dumps(call_messages),
    }
    tool: dict[str, Any] = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "search",
        "gen_ai.tool.call.id": "c1",
        "gen_ai.tool.call.arguments": '{"q":"x"}',
        "gen_ai.tool.call.result": '{"hits":2}',
    }
    answer_messages = [{"role": "assistant", "parts": [{"type": "text", "content": "two"}]}]
    last: dict[str, Any] = {
        **ASKED,
        "gen_ai.input.messages": json.dumps(conversation),
        "gen_ai.output.messages": json.dumps(answer_messages),
    }
    episode = read(
        make_span(
            9,
            name="invoke_agent helper",
            seconds=9,
            gen_ai__operation__name="invoke_agent",
            gen_ai__agent__name="helper",
        ),
        make_span(1, parent=9, at_s=0, **first),
        make_span(2, parent=9, at_s=2, **tool),
        make_span(3, parent=9, at_s=4, **last),
    )
    call_turn, answer_turn = episode.turns
    assert json.loads(call_turn.completion.tool_calls or "") == [CALL]
    assert json.loads(call_turn.tools or "")[0]["function"]["name"] == "search"
    assert (answer_turn.prefix_count, [added_message.role for added_message in answer_turn.added_messages]) == (
        2,
        ["tool"],
    )
    assert (answer_turn.added_messages[0].tool_call_id, answer_turn.added_messages[0].content) == ("c1", '{"hits":2}')
    assert [(tool.name, tool.tool_call_id, tool.result) for tool in episode.tools] == [("search", "c1", '{"hits":2}')]
    assert {turn.function for turn in episode.turns} == {"helper"}
    assert [type(event).__name__ for event in episode.events][:4] == [
        *("EpisodeStarted", "TurnRecorded", "ToolCalled", "TurnRecorded")
    ]


def test_sessions_users_and_metadata_are_labels_and_evaluations_are_feedback() -> None:
    score: dict[str, Any] = {"gen_ai.evaluation.name": "relevance", "gen_ai.evaluation.score.value": 0.8,
             "gen_ai.evaluation.explanation": "on topic"}  # fmt: skip
    span = call(1, [("user", "hi")], "hello", events=[("gen_ai.evaluation.result", score)],
                session__id="s-1", user__id="ann", metadata=json.dumps({"tier": "gold"}), my__own=3)  # fmt: skip
    episode = read(span)
    assert episode.started.labels == {
        "session": "s-1",
        "conversation": "s-1",
        "user": "ann",
        "tier": "gold",
        "format": "otlp",
        "trace": "ab" * 16,
    }
    (reward,) = episode.rewards
    assert (reward.name, reward.value, reward.comment) == ("relevance", 0.8, "on topic")
    assert reward.turn_event_id == episode.turns[0].event_id
    assert episode.unmapped == {"otlp.my.own": 1}


def test_a_call_without_an_answer_and_a_failed_agent_are_recorded_as_such() -> None:
    episode = read(make_span(1, error="rate limit", **ASKED))
    (turn,) = episode.turns
    assert (turn.untrainable_reason, turn.completion.content) == ("failed_call", None)
    assert (episode.ended.stop_reason, episode.ended.error) == ("error", "rate limit")


def test_a_call_that_two_instrumentations_saw_is_one_turn() -> None:
    outer = call(1, [("user", "hi")], "hello", seconds=3)
    inner = call(2, [("user", "hi")], "hello", parent=1, at_s=1)
    episode = read(make_span(5, name="agent", seconds=9), {**outer, "parentSpanId": f"{5:016x}"}, inner)
    assert len(episode.turns) == 1
    assert episode.counts["calls_seen_twice"] == 1


AGENT = [
    make_span(1, name="agent", seconds=30),
    call(2, [("user", "q")], "a1", parent=1, at_s=1),
    make_span(3, parent=1, name="remote", at_s=4, seconds=8),
    make_span(4, parent=3, name="server", at_s=5, seconds=6),
    call(5, [("user", "sub")], "b1", parent=4, at_s=6),
    call(6, [("user", "sub"), ("assistant", "b1"), ("user", "more")], "b2", parent=4, at_s=8),
    call(7, [("user", "q"), ("assistant", "a1"), ("user", "and?")], "a2", parent=1, at_s=20),
]


def shifted(span: dict[str, Any], by_s: int) -> dict[str, Any]:
    times = {name: str(int(span[name]) + by_s * 10**9) for name in ("startTimeUnixNano", "endTimeUnixNano")}
    return {**span, **times}


def content(episode: Read) -> list[Event]:
    """The events without their times."""
    return [replace(event, occurred_at_ms=0, episode_started_at_ms=0) for event in episode.events]


@settings(max_examples=count_examples(60), deadline=None)
@given(st.permutations(range(len(AGENT))), st.lists(st.integers(0, len(AGENT) - 1)), st.integers(1, 4))
def test_spans_in_any_order_and_twice_give_the_same_events(order: list[int], again: list[int], pieces: int) -> None:
    spans = [AGENT[index] for index in (*order, *again)]
    requests = [request_of(spans[piece::pieces]) for piece in range(pieces)]
    assert Read("otlp", requests).events == read(*AGENT).events


@settings(max_examples=count_examples(30), deadline=None)
@given(st.integers(-3600, 3600))
def test_services_with_different_clocks_change_only_times(by_s: int) -> None:
    far = [shifted(span, by_s) if span["spanId"][-1] in "456" else span for span in AGENT]
    assert content(read(*far)) == content(read(*AGENT))


def test_spans_without_their_parents_are_one_partial_episode() -> None:
    episode = read(*(span for span in AGENT if span["spanId"][-1] not in "14"))
    assert [turn.completion.content for turn in episode.turns] == ["a1", "b1", "b2", "a2"]
    assert episode.started.labels["partial"] == "5 spans name a parent that did not come"
    assert episode.started.episode_id == read(*AGENT).started.episode_id


def test_spans_that_are_each_others_parents_are_read_to_the_end() -> None:
    episode = read(call(1, [("user", "q")], "a", parent=2), make_span(2, parent=1))
    assert [turn.completion.content for turn in episode.turns] == ["a"]


def test_a_call_without_traced_texts_is_not_a_failed_one() -> None:
    usage: dict[str, Any] = {"gen_ai.usage.input_tokens": 130, "gen_ai.usage.output_tokens": 41}
    span = make_span(1, **{**ASKED, **usage, "gen_ai.response.finish_reasons": ["STOP"]})
    (turn,) = read(span).turns
    assert (turn.untrainable_reason, turn.finish_reason) == ("no_content", "stop")
    assert (turn.prompt_tokens, turn.completion_tokens, turn.completion.content) == (130, 41, None)


def test_two_choices_are_two_answers_each_with_its_own_reason() -> None:
    output_messages = [
        {"role": "assistant", "parts": [{"type": "text", "content": text}], "finish_reason": reason}
        for text, reason in (("first", "stop"), ("second", "max_tokens"))
    ]
    span = make_span(1, **{**ASKED, "gen_ai.output.messages": json.dumps(output_messages)})
    assert [(turn.choice, turn.completion.content, turn.finish_reason) for turn in read(span).turns] == [
        (0, "first", "stop"),
        (1, "second", "length"),
    ]


@pytest.mark.parametrize("reason", ["tool_call", "tool_calls", "tool_use"])
def test_a_reason_has_one_spelling_wherever_it_was_written(reason: str) -> None:
    output_messages = [{"role": "assistant", "parts": [{"type": "text", "content": "x"}], "finish_reason": reason}]
    within = make_span(1, **{**ASKED, "gen_ai.output.messages": json.dumps(output_messages)})
    beside = make_span(1, **{**ASKED, **NEWEST, "gen_ai.response.finish_reasons": [reason]})
    for span in (within, beside):
        assert [turn.finish_reason for turn in read(span).turns] == ["tool_calls"]


def test_the_reason_of_an_end_that_is_null_is_none() -> None:
    """Instrumentations write one for each choice, also where the server gave none."""
    output_messages = [{"role": "assistant", "parts": [{"type": "text", "content": "x"}]}]
    outputs = {"gen_ai.output.messages": json.dumps(output_messages), "gen_ai.response.finish_reasons": "[null]"}
    (turn,) = read(make_span(1, **{**ASKED, **outputs})).turns
    assert (turn.completion.content, turn.finish_reason) == ("x", None)


def test_a_field_that_has_a_value_and_fields_keeps_both_in_any_order() -> None:
    flat = {"call.name": "f", "call": "c"}
    assert nest(flat) == nest(dict(reversed(flat.items()))) == {"call": {"": "c", "name": "f"}}
