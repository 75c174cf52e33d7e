"""A scripted model server that asks for one tool and then answers, for agents of any framework."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rollbus.schemas.records.events import Event, ToolCalled, TurnRecorded
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids
from tests.producers.openai_server import Body, Server, chunk, logprobs_of

TOKENS = {"tool": ([31, 32, 33], [-0.5, -0.25, -0.125]), "final": ([41, 42], [-1.0, -0.75])}
"""Ids and log-probs that the server samples for its two kinds of answers."""


def stock(item: str) -> str:
    """Count what is in stock."""
    if item == "fault":
        raise ValueError("no such shelf")
    return f"{item}: 7"


class AgentServer(Server):
    """Asks for the tool while the conversation holds no result of it, once for each of the arguments, then answers
    `final`.
    """

    final = "There are 7."

    def __init__(
        self, *arguments_of_calls: Mapping[str, Any], tool: str, arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Ask for this tool with these arguments; several times at once for those of several calls."""
        super().__init__(self._make_answer)
        self.sampled: list[tuple[list[int], list[int], list[float]]] = []
        """Prompt ids, sampled ids and log-probs of each answer."""
        self._calls = [
            {"id": f"call-{number}", "type": "function", "function": {"name": tool, "arguments": json.dumps(written)}}
            for number, written in enumerate(arguments_of_calls or [arguments], start=1)
        ]
        self._numbers = itertools.count(1)

    def _make_answer(self, body: Body) -> Body | list[Body]:
        done = any(message["role"] == "tool" for message in body["messages"])
        ids, logprobs = TOKENS["final" if done else "tool"]
        prompt_ids = list(range(len(body["messages"])))
        self.sampled.append((prompt_ids, ids, logprobs))
        message = {"content": self.final} if done else {"content": None, "tool_calls": self._calls}
        choice: Body = {"index": 0, "finish_reason": "stop" if done else "tool_calls"}
        if body.get("logprobs"):
            choice["logprobs"] = logprobs_of([f"t{token_id}" for token_id in ids], logprobs)
        if body.get("return_token_ids"):
            choice["token_ids"] = ids
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(ids), "total_tokens": 0}
        head: Body = {"id": f"chatcmpl-{next(self._numbers)}", "model": "agent@3", "created": 1}
        if body.get("return_token_ids"):
            head["prompt_token_ids"] = prompt_ids
        if body.get("stream"):
            return _chunks(head, choice, message, usage)
        whole = {"message": {"role": "assistant", **message}, **choice}
        return {**head, "object": "chat.completion", "choices": [whole], "usage": usage}


def _chunks(head: Body, choice: Body, message: Body, usage: Body) -> list[Body]:
    delta: Body = {"role": "assistant", **message}
    if delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
    first = {**choice, "delta": delta, "finish_reason": None}
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    later = {name: value for name, value in head.items() if name != "prompt_token_ids"}
    return [chunk([first], **head), chunk([last], **later), chunk([], **later, usage=usage)]


def assert_sampled(server: AgentServer, turns: Sequence[TurnRecorded]) -> None:
    """The turns are trainable and hold exactly what the server sampled."""
    assert [turn.untrainable_reason for turn in turns] == [None] * len(server.sampled)
    for turn, (prompt_ids, ids, logprobs) in zip(turns, server.sampled, strict=True):
        assert list(decode_token_ids(turn.prompt_token_ids or b"")) == prompt_ids
        assert list(decode_token_ids(turn.completion_token_ids or b"")) == ids
        assert list(decode_logprobs(turn.logprobs or b"")) == logprobs
        assert turn.policy_version == 3


def turns_of(events: Sequence[Event]) -> list[TurnRecorded]:
    """The turns among events."""
    return [event for event in events if isinstance(event, TurnRecorded)]


def assert_agent(
    server: AgentServer,
    events: Sequence[Event],
    *,
    function: str = "keeper",
    streamed: bool = False,
    call_id: str | None = "call-1",
) -> None:
    """The events hold the server's tokens once, under the agent's name, and its tool's call."""
    assert_sampled(server, turns_of(events))
    assert [(turn.function, turn.streamed) for turn in turns_of(events)] == [(function, streamed)] * 2
    (call,) = (event for event in events if isinstance(event, ToolCalled))
    assert (call.name, json.loads(call.arguments), call.tool_call_id) == ("stock", {"item": "bolts"}, call_id)
    assert "bolts: 7" in (call.result or "")
