"""What tracing tools really export is read as it happened: files that their own releases have written."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollbus.schemas.records.events import TurnRecorded
from tests.producers.imports.formats.reading import Read

EXPORTS = Path(__file__).parent / "exports"
CALLS = [("call-1", "bolts"), ("call-2", "nuts"), ("call-3", "bolts")]


def calls_of(turn: TurnRecorded) -> list[Any]:
    """The calls of tools in an answer."""
    return list(json.loads(turn.completion.tool_calls or "[]"))


@pytest.mark.parametrize("names", ["today", "legacy"])
def test_a_vercel_ai_sdk_agent_is_read_with_texts_tools_and_call_ids(names: str) -> None:
    (document,) = json.loads((EXPORTS / "vercel-ai-7.0.173.json").read_text())[names]
    spans = document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    is_streamed: list[bool] = []
    for trace_id in {span["traceId"]: None for span in spans}:
        of_trace = [span for span in spans if span["traceId"] == trace_id]
        read = Read("otlp", [{"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": of_trace}]}]}])
        first, last = read.turns
        messages = [(message.role, message.content) for message in first.added_messages]
        assert messages == [("system", "You count."), ("user", "How many?")]
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
        is_streamed += [turn.streamed for turn in read.turns]
        assert first.tools is not None
        assert json.loads(first.tools)[0]["function"]["name"] == "stock"
    assert is_streamed == [False, False, True, True]


# The same calls through each SDK, as `exports/make.py` makes them

PROMPT = ("Say hello",)
UNFINISHED = (None, "error")
"""How a stream that was left is written down: without a reason, or with this one."""
NOTHING = (None, None)
TOOLS = [(call_id, item, f"{item}: 7") for call_id, item in CALLS]


def turn(answer: str | None, reason: str | None, *calls: Any, prompt: Any = PROMPT, tokens: Any = (3, 2)) -> Any:
    """What one turn says."""
    return (tuple(prompt), answer, calls, reason, tokens)


TWO = [turn("Hello there", "stop", tokens=(3, 4)), turn("Hello there", "stop", prompt=(), tokens=(3, 4))]
CALLED = turn(None, "tool_calls", *CALLS)
LAST = turn("There are 7.", "stop", prompt=[result for *_, result in TOOLS])
CLIENT: Mapping[str, Any] = {
    "plain": [turn("Hello there", "stop")],
    "streamed": [turn("Hello there", "stop")],
    "two": TWO,
    "two streamed": TWO,
    "tools": [CALLED],
    "tools streamed": [CALLED],
    "left early": [turn("Hello", None, tokens=NOTHING)],
    "cut off": [turn("Hello there", None, tokens=NOTHING)],
    "failed": [turn(None, None, tokens=NOTHING)],
}
"""What a client's calls became, by their names."""
AGENT = {**CLIENT, "tools": [CALLED, LAST, TOOLS], "tools streamed": [CALLED, LAST, TOOLS]}
"""The same of an agent, which runs the tools."""
UNREAD = [turn(None, None, tokens=(3, 4)), turn(None, None, prompt=(), tokens=(3, 4))]
NO_REASON: dict[str, Any] = {
    **{name: [turn("Hello there", None)] for name in ("plain", "streamed")},
    **{name: [(*CALLED[:3], None, (3, 2)), (*LAST[:3], None, (3, 2)), TOOLS] for name in ("tools", "tools streamed")},
    "left early": [turn(None, None, tokens=NOTHING)],
}
UNANSWERED, NAMELESS = turn(None, None, tokens=NOTHING), sorted(("None", *rest) for _, *rest in TOOLS)
ADK_ASK = ('You are an agent. Your internal name is "keeper".', *PROMPT)
ADK_AGENT: list[Any] = [
    turn(None, "stop", *CALLS, prompt=ADK_ASK),
    turn("There are 7.", "stop", prompt=[f'{{"result":"{result}"}}' for *_, result in TOOLS]),
    [(call_id, item, f'{{"result": "{result}"}}') for call_id, item, result in TOOLS],
]
FILES: Mapping[str, Mapping[str, Any]] = {
    "openinference-openai-0.1.66": CLIENT,
    "openllmetry-openai-0.62.4": CLIENT,
    "openai-v2-2.4b0": CLIENT,
    "langsmith-0.15.1": CLIENT,
    # why an answer that is not streamed ended, and all of several choices, are not written down
    "langfuse-5.0.4": {
        **CLIENT,
        "plain": [turn("Hello there", None)],
        "tools": [(*CALLED[:3], None, (3, 2))],
        "two": UNREAD,
        "two streamed": UNREAD,
    },
    # neither why an answer ended, nor that there was another choice, nor what a stream that was left had said
    "langfuse-5.0.4-langchain-1.5.2": {
        **AGENT,
        **NO_REASON,
        "two": [turn("Hello there", None, tokens=(3, 4))],
        "cut off": [turn("Hello there", None, tokens=NOTHING)],
    },
    "openinference-langchain-0.1.80": AGENT,
    # usage is added up once for each choice
    "openllmetry-langchain-0.62.4": {**AGENT, "two": [(*choice[:4], (6, 8)) for choice in TWO]},
    "langsmith-0.15.1-langchain-1.5.2": AGENT,
    # a call that failed has no prompt, and a stream that was cut off a reason
    "pydantic-ai-2.68.0-logfire-5.4.0": {
        **AGENT,
        "cut off": [turn("Hello there", "stop", tokens=NOTHING)],
        "failed": [turn(None, None, prompt=(), tokens=NOTHING)],
    },
    # neither why an answer ended, nor what a stream that was left had said
    "openai-agents-0.24.0-openinference-2.6.0": {**AGENT, **NO_REASON},
    # of a chat model only the prompts: what was answered is in the next one
    "openai-agents-0.24.0-openllmetry-0.62.4": {
        **{case: [UNANSWERED] for case in AGENT},
        **{case: [UNANSWERED, (LAST[0], *UNANSWERED[1:]), NAMELESS] for case in ("tools", "tools streamed")},
    },
    # that an answer ended with calls of tools; a stream is read on after it was left
    "adk-2.13.0": {
        **{case: [turn("Hello there", "stop", prompt=ADK_ASK)] for case in ("plain", "streamed")},
        **dict.fromkeys(("tools", "tools streamed"), ADK_AGENT),
        **{case: [turn("Hello there", None, prompt=ADK_ASK, tokens=NOTHING)] for case in ("left early", "cut off")},
        "failed": [turn(None, None, prompt=ADK_ASK, tokens=NOTHING)],
    },
}
"""What the SDKs' files are read as; a comment says what an SDK does not write down."""


def reading_of(read: Read) -> list[Any]:
    """The turns of a case, and its tools if there are any."""
    turns: list[Any] = []
    for recorded in read.turns:
        calls = tuple((call["id"], json.loads(call["function"]["arguments"])["item"]) for call in calls_of(recorded))
        prompt = tuple(message.content for message in recorded.added_messages if message.role != "assistant")
        reason = None if recorded.finish_reason in UNFINISHED else recorded.finish_reason
        tokens = (recorded.prompt_tokens, recorded.completion_tokens)
        turns.append((prompt, recorded.completion.content or None, calls, reason, tokens))
    tools = sorted((str(tool.tool_call_id), json.loads(tool.arguments)["item"], tool.result) for tool in read.tools)
    return [*turns, tools] if tools else turns


@pytest.mark.parametrize("name", FILES)
def test_the_same_calls_are_read_the_same_from_what_each_sdk_exports(name: str) -> None:
    exports = json.loads((EXPORTS / f"{name}.json").read_text())
    format_name = "langsmith" if name.startswith("langsmith") else "otlp"
    read_by_case = {case: Read(format_name, documents) for case, documents in exports.items()}
    readings = {case: reading_of(read) for case, read in read_by_case.items()}
    assert readings == {case: FILES[name][case] for case in exports}
    assert {"two", "tools", "failed"} <= exports.keys() or {"tools", "left early", "failed"} <= exports.keys()
    for case, read in read_by_case.items():
        reasons = {turn.untrainable_reason for turn in read.turns}
        assert case == "left early" or ("failed_call" in reasons) == (case == "failed")
        if read.tools:
            assert {turn.function for turn in read.turns} == {"keeper"}
