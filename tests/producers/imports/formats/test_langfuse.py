"""Langfuse's exports: of its API and UI, and of its blob storage, give the same episodes."""

import json
from typing import Any

import pytest

from tests.producers.imports.formats.reading import Read

TRACE = {
    "id": "t-1",
    "timestamp": "2026-03-01T10:00:00.000Z",
    "name": "refund",
    "environment": "production",
    "userId": "ann",
    "sessionId": "s-1",
    "tags": ["beta", "eu"],
    "metadata": {"tier": "gold", "nested": {"a": 1}},
    "public": False,
    "bookmarked": False,
    "input": {"question": "where is my order?"},
    "output": "on its way",
    "createdAt": "2026-03-01T10:00:09.000Z",
    "updatedAt": "2026-03-01T10:00:09.000Z",
}
CALL = {"id": "c1", "type": "function", "function": {"name": "track", "arguments": '{"order":7}'}}


def observation(key: str, kind: str, start: str, end: str, **fields: Any) -> dict[str, Any]:
    times = {"startTime": f"2026-03-01T10:00:{start}Z", "endTime": f"2026-03-01T10:00:{end}Z"}
    standard = {"traceId": "t-1", "level": "DEFAULT", "environment": "production", "metadata": {}, "projectId": "p"}
    return {"id": key, "type": kind, "name": key, **times, **standard, **fields}


OBSERVATIONS = [
    observation("root", "AGENT", "00.000", "09.000", input="where is my order?"),
    observation(
        "ask",
        "GENERATION",
        "01.000",
        "02.500",
        parentObservationId="root",
        model="gpt-4o",
        modelParameters={"temperature": "0.2", "max_tokens": 100},
        input=[{"role": "system", "content": "be kind"}, {"role": "user", "content": "where is my order?"}],
        output={"role": "assistant", "content": None, "tool_calls": [CALL]},
        usageDetails={"input": 20, "output": 5, "total": 25},
        costDetails={"total": 0.01},
        metadata={"attributes": {"gen_ai.system": "openai"}},
    ),
    observation(
        "track", "TOOL", "03.000", "04.000", parentObservationId="root", input={"order": 7}, output="in Berlin"
    ),
    observation(
        "tell",
        "GENERATION",
        "05.000",
        "06.000",
        parentObservationId="root",
        model="gpt-4o",
        input={
            "messages": [
                {"role": "system", "content": "be kind"},
                {"role": "user", "content": "where is my order?"},
                {"role": "assistant", "content": "", "tool_calls": [CALL]},
                {"role": "tool", "tool_call_id": "c1", "content": "in Berlin"},
            ],
            "tools": [{"type": "function", "function": {"name": "track"}}],
        },
        output="It is in Berlin.",
    ),
]


def score(key: str, value: Any, **fields: Any) -> dict[str, Any]:
    standard = {"traceId": "t-1", "name": "helpful", "source": "ANNOTATION", "dataType": "NUMERIC", "metadata": {}}
    times = {"timestamp": "2026-03-02T08:00:00.000Z", "createdAt": "2026-03-02T08:00:00.000Z"}
    return {"id": key, "value": value, **standard, **times, **fields}


SCORES = [
    score("s1", 0.5, comment="slow"),
    score("s2", 1, dataType="BOOLEAN", name="correct", observationId="tell", source="EVAL"),
    score("s3", 0, dataType="CATEGORICAL", stringValue="billing", name="topic"),
]


def snake(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the blob storage export writes it: other names, other times, JSON within text."""
    names = {name: "".join(f"_{c.lower()}" if c.isupper() else c for c in name) for name in row}
    renamed = {names[name]: value for name, value in row.items()}
    renamed["provided_model_name"] = renamed.pop("model", None)
    for name, value in renamed.items():
        if name in ("timestamp", "start_time", "end_time", "created_at", "updated_at"):
            renamed[name] = str(value).replace("T", " ").replace("Z", "000")
        elif name in ("input", "output", "model_parameters") and isinstance(value, dict | list):
            renamed[name] = json.dumps(value)
    return renamed


API = [{**TRACE, "observations": OBSERVATIONS, "scores": SCORES, "htmlPath": "/x", "latency": 9.0, "totalCost": 0.01}]
BLOBS = [snake(row) for row in (*SCORES, *OBSERVATIONS[::-1], TRACE)]


def test_a_trace_of_the_api_becomes_an_episode_with_its_original_times() -> None:
    episode = Read("langfuse", API)
    start = episode.started
    assert (start.task, start.environment, start.agent) == ("refund", "production", "root")
    assert start.occurred_at_ms == 1_772_359_200_000
    assert {name: start.labels[name] for name in ("user", "session", "tags", "tier", "trace")} == {
        "user": "ann",
        "session": "s-1",
        "tags": "beta,eu",
        "tier": "gold",
        "trace": "t-1",
    }
    call_turn, answer_turn = episode.turns
    assert (call_turn.model, call_turn.prompt_tokens, call_turn.completion_tokens, call_turn.max_tokens) == (
        "gpt-4o",
        20,
        5,
        100,
    )
    assert (call_turn.occurred_at_ms, call_turn.latency_ms) == (1_772_359_202_500, 1500)
    assert json.loads(call_turn.completion.tool_calls or "") == [CALL]
    assert (answer_turn.prefix_count, answer_turn.completion.content, answer_turn.function) == (
        3,
        "It is in Berlin.",
        "root",
    )
    assert {turn.untrainable_reason for turn in episode.turns} == {"no_token_ids"}
    (tool,) = episode.tools
    assert (tool.name, tool.arguments, tool.result, tool.latency_ms) == ("track", '{"order":7}', "in Berlin", 1000)
    assert episode.ended.stop_reason == "completed"


def ask_with(**fields: Any) -> list[dict[str, Any]]:
    call = observation("ask", "GENERATION", "01.000", "02.500", model="m", input="2+2?", output="four", **fields)
    return [{**TRACE, "observations": [call], "scores": []}]


@pytest.mark.parametrize("count", [2, "2"])
def test_the_number_of_choices_may_be_a_text(count: object) -> None:
    turns = Read("langfuse", ask_with(modelParameters={"n": count})).turns
    assert [turn.untrainable_reason for turn in turns] == ["mixed_choices"] * 2


def test_a_parameter_may_have_any_name() -> None:
    (turn,) = Read("langfuse", ask_with(modelParameters={"value": 2, "temperature": 0.5})).turns
    assert (turn.completion.content, turn.temperature) == ("four", 0.5)


def test_a_count_of_too_many_digits_is_unknown() -> None:
    (turn,) = Read("langfuse", ask_with(usageDetails={"input": "9" * 5000, "output": "3"})).turns
    assert (turn.prompt_tokens, turn.completion_tokens) == (None, 3)


def test_scores_and_annotations_are_feedback_on_the_episode_or_its_turn() -> None:
    episode = Read("langfuse", API)
    helpful, correct = episode.rewards
    assert (helpful.name, helpful.value, helpful.source, helpful.comment) == ("helpful", 0.5, "annotation", "slow")
    assert (correct.value, correct.source, correct.turn_event_id) == (1.0, "eval", episode.turns[1].event_id)
    assert helpful.occurred_at_ms == 1_772_438_400_000
    assert episode.events.index(correct) < episode.events.index(episode.ended)  # the trajectory has them at once
    assert episode.unmapped["langfuse.score without a number"] == 1


def test_the_blob_storage_export_gives_the_same_events_as_the_api() -> None:
    blobs, api = Read("langfuse", BLOBS), Read("langfuse", API)
    assert blobs.events == api.events


def test_scores_of_a_trace_that_is_elsewhere_are_feedback_by_themselves() -> None:
    alone, whole = Read("langfuse", SCORES[:1]), Read("langfuse", API)
    assert alone.events == [event for event in alone.events if event.event_id == whole.rewards[0].event_id]
    assert [event.episode_id for event in alone.events] == [whole.started.episode_id]


def test_half_a_character_in_an_id_or_a_name_is_replaced() -> None:
    (reward,) = Read("langfuse", [score("\ud800", 1.0, name="\ud800")]).rewards
    assert reward.name == "?"


def test_fields_that_have_no_place_are_counted_by_name() -> None:
    episode = Read("langfuse", API)
    assert episode.unmapped["langfuse.trace.metadata.nested"] == 1
    assert episode.unmapped["langfuse.observation.metadata.attributes"] == 1
    assert not [name for name in episode.unmapped if "cost" in name or "project" in name]


def test_a_failed_generation_and_a_trace_of_input_and_output_alone_are_kept() -> None:
    failed = observation("g", "GENERATION", "01.000", "02.000", level="ERROR", statusMessage="quota", input="hi")
    (turn,) = Read("langfuse", [TRACE, failed]).turns
    assert turn.untrainable_reason == "failed_call"
    (alone,) = Read("langfuse", [TRACE]).turns
    assert alone.completion.content == "on its way"
