"""A tool that does not say which call of the model it is gets the id of the call that it fits."""

import json
from typing import Any

from rollbus.producers import MemorySink, Recorder
from rollbus.schemas.records.events import ToolCalled
from tests.producers.recorded_events import recorded_events

ASK = [{"role": "user", "content": "How many?"}]


def answer(*items: str) -> dict[str, Any]:
    """A message that calls a tool for each item, in the spelling of a model."""
    calls = [
        {"id": f"c{number}", "type": "function", "function": {"name": "stock", "arguments": f'{{ "item" :"{item}"}}'}}
        for number, item in enumerate(items, 1)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def tools_of(recorder: Recorder, sink: MemorySink) -> list[ToolCalled]:
    return [event for event in recorded_events(recorder, sink) if isinstance(event, ToolCalled)]


def test_three_calls_of_one_tool_are_matched_by_their_arguments(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="stock") as episode:
        episode.turn(messages=ASK, answer=answer("bolts", "nuts", "bolts"))
        event_ids = [
            recorder.tool("stock", arguments={"item": item}, result="7") for item in ("nuts", "bolts", "bolts")
        ]
    tools = tools_of(recorder, sink)
    assert [(tool.tool_call_id, json.loads(tool.arguments)["item"]) for tool in tools] == [
        ("c2", "nuts"),
        ("c1", "bolts"),
        ("c3", "bolts"),
    ]
    assert {tool.arguments for tool in tools} == {'{ "item" :"nuts"}', '{ "item" :"bolts"}'}
    assert [tool.event_id for tool in tools] == event_ids


def test_a_tool_that_fits_no_open_call_has_no_id(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="stock") as episode:
        recorder.tool("stock", arguments={"item": "bolts"})
        episode.turn(messages=ASK, answer=answer("bolts"))
        recorder.tool("count", arguments={"item": "bolts"})
        recorder.tool("stock", arguments={"item": "nuts"})
        recorder.tool("stock", arguments="bolts")
        recorder.tool("stock", arguments={"item": "bolts"})
        recorder.tool("stock", arguments={"item": "bolts"})
    assert [tool.tool_call_id for tool in tools_of(recorder, sink)] == [None, None, None, None, "c1", None]


def test_arguments_wrapped_in_kwargs_are_matched_to_their_call(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="stock") as episode:
        episode.turn(messages=ASK, answer=answer("bolts"))
        recorder.tool("stock", arguments={"kwargs": {"item": "nuts"}})
        recorder.tool("stock", arguments={"kwargs": {"item": "bolts"}})
    assert [(tool.tool_call_id, json.loads(tool.arguments)) for tool in tools_of(recorder, sink)] == [
        (None, {"kwargs": {"item": "nuts"}}),
        ("c1", {"item": "bolts"}),
    ]


def test_an_id_that_a_framework_knows_stays(recorder: Recorder, sink: MemorySink) -> None:
    with recorder.episode(task="stock") as episode:
        episode.turn(messages=ASK, answer=answer("bolts"))
        recorder.tool("stock", arguments={"item": "bolts"}, tool_call_id="own")
    assert [tool.tool_call_id for tool in tools_of(recorder, sink)] == ["own"]
