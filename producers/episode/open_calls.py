"""The model's calls of tools that no recorded tool has answered: they name the call where a framework does not.

A tool without a call id gets that of the oldest open call with its name and equal arguments, and the arguments as the
model wrote them. One with an id gets these where its own are not an object: some tracing tools keep only a value of it.
Others keep how Python's function was called, `{"kwargs": {…}}`, which stands for its keywords.
Belongs to the recorder's own thread, to which an episode's events come in their order.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollbus.schemas.ids import parse_json
from rollbus.schemas.records.events import ToolCalled

MOST_CALLS = 256
"""That are remembered; of more, the oldest are forgotten."""


class OpenCalls:
    """Of one episode and writer."""

    def __init__(self) -> None:
        """Begin with none."""
        self._calls = deque[tuple[str, str, str]](maxlen=MOST_CALLS)
        """Id, name and arguments."""

    def add(self, tool_calls: str | None) -> None:
        """Take the calls of an answer, in the form that a message has them; none where redaction has left no JSON."""
        calls = _value_of(tool_calls) if tool_calls else None
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") or {}
            match call.get("id"), function.get("name"), function.get("arguments"):
                case str() as call_id, str() as name, str() as arguments:
                    self._calls.append((call_id, name, arguments))

    def complete(self, tool: ToolCalled) -> ToolCalled:
        """Return a tool with the call that it is of; the tool as it came where none fits."""
        arguments = _value_of(tool.arguments)
        keywords = (
            arguments["kwargs"] if isinstance(arguments, Mapping) and arguments.keys() == {"kwargs"} else arguments
        )
        for call in self._calls:
            call_id, name, written_arguments = call
            if tool.tool_call_id == call_id:
                self._calls.remove(call)
                return tool if isinstance(arguments, Mapping) else replace(tool, arguments=written_arguments)
            if (
                tool.tool_call_id is None
                and name == tool.name
                and _value_of(written_arguments) in (arguments, keywords)
            ):
                self._calls.remove(call)
                return replace(tool, tool_call_id=call_id, arguments=written_arguments)
        return tool


def _value_of(arguments: str) -> Any:
    try:
        return parse_json(arguments)
    except ValueError:
        return arguments
