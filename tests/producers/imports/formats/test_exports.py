"""What tracing tools really export is read as it happened: files that their own releases have written."""

import json
from pathlib import Path
from typing import Any

from rollbus.schemas.records.events import TurnRecorded
from tests.producers.imports.formats.reading import Read

EXPORTS = Path(__file__).parent / "exports"
CALLS = [("call-1", "bolts"), ("call-2", "nuts"), ("call-3", "bolts")]


def calls_of(turn: TurnRecorded) -> list[Any]:
    """The calls of tools in an answer."""
    return list(json.loads(turn.completion.tool_calls or "[]"))


def test_an_agent_of_vercels_ai_sdk_is_read_with_its_texts_tools_and_call_ids() -> None:
    document = json.loads((EXPORTS / "vercel-ai-6.0.326.json").read_text())
    spans = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    for trace_id in {span["traceId"] for span in spans}:
        of_trace = [span for span in spans if span["traceId"] == trace_id]
        read = Read("otlp", [{"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": of_trace}]}]}])
        first, last = read.turns
        asked = [(message.role, message.content) for message in first.added_messages]
        assert asked == [("system", "You count."), ("user", "How many?")]
        written = [(call["id"], json.loads(call["function"]["arguments"])["item"]) for call in calls_of(first)]
        assert written == CALLS
        results = [(message.tool_call_id, message.content) for message in last.added_messages if message.role == "tool"]
        assert results == [(call_id, f"{item}: 7") for call_id, item in CALLS]
        tools = [(tool.tool_call_id, json.loads(tool.arguments)["item"], tool.result) for tool in read.tools]
        assert sorted(tools) == [(call_id, item, f'"{item}: 7"') for call_id, item in CALLS]
        assert last.completion.content == "There are 7."
        assert [turn.finish_reason for turn in read.turns] == ["tool_calls", "stop"]
        assert {turn.function for turn in read.turns} == {"keeper"}
        assert {(turn.model, turn.temperature, turn.prompt_tokens, turn.completion_tokens) for turn in read.turns} == {
            ("agent@3", 0.5, 3, 2)
        }
        assert {turn.untrainable_reason for turn in read.turns} == {"no_token_ids"}
        assert len({turn.streamed for turn in read.turns}) == 1
        assert first.tools is not None
        assert json.loads(first.tools)[0]["function"]["name"] == "stock"
