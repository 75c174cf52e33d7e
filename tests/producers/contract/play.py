"""The same calls through one way of recording them, against one scripted server; prints what each became, as JSON.

python -m tests.producers.contract.play wrap|instrument|openinference|openai-v2|langfuse

A process for each: the instrumentations patch the `openai` package.
"""

import gc
import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any

import httpx
import openai
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from rollbus.producers import MemorySink, init
from rollbus.producers.imports.otlp_wire import read_message
from rollbus.producers.integrations.instrument import instrument
from rollbus.schemas.records.events import TurnRecorded
from tests.producers.imports.formats.reading import Read
from tests.producers.openai_server import Body, Script, Server, chunk, completion, sse, streamed

ASK: dict[str, Any] = {"model": "agent", "messages": [{"role": "user", "content": "Say hello"}]}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
UNFINISHED = (None, "abandoned", "error")
"""How a stream that was left is written down: without a reason, or with one of these."""
Client = Any
Case = tuple[Script, Callable[[Client], object]]


def stream_of_two() -> list[Body]:
    """The stream of two choices, each in chunks of its own."""
    *chunks, usage = streamed()
    second = [{**part, "choices": [{**choice, "index": 1} for choice in part["choices"]]} for part in chunks]
    both = [part for pair in zip(chunks, second, strict=True) for part in pair]
    return [*both, {**usage, "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}]


def answer_with_tool() -> Body:
    """An answer that calls a tool."""
    answer = completion(content=None, tool_calls=[CALL])
    answer["choices"][0]["finish_reason"] = "tool_calls"
    return answer


def stream_with_tool() -> list[Body]:
    """The same, its arguments in two pieces."""
    function = {"name": "look", "arguments": '{"at'}
    deltas: list[Body] = [
        {"role": "assistant", "content": None, "tool_calls": [{"index": 0, **CALL, "function": function}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '": 1}'}}]},
    ]
    chunks = [chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas]
    return [*chunks, chunk([{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]), streamed()[-1]]


def create(client: Client, **options: Any) -> Any:
    """Ask."""
    return client.chat.completions.create(**ASK, **options)


def leave_early(client: Client) -> None:
    """Read two chunks of a stream, and go."""
    stream = create(client, stream=True)
    next(stream)
    next(stream)
    stream.close()


CASES: dict[str, Case] = {
    "plain": (lambda _: completion(), create),
    "streamed": (lambda _: streamed(), lambda client: list(create(client, stream=True))),
    "two": (lambda _: completion(choices=2), lambda client: create(client, n=2)),
    "two streamed": (lambda _: stream_of_two(), lambda client: list(create(client, n=2, stream=True))),
    "tool": (lambda _: answer_with_tool(), lambda client: create(client, tools=TOOLS)),
    "tool streamed": (lambda _: stream_with_tool(), lambda client: list(create(client, tools=TOOLS, stream=True))),
    "left early": (lambda _: streamed(), leave_early),
    "cut off": (
        lambda _: sse(streamed()[:2], done=False),
        lambda client: list(create(client, stream=True)),
    ),
    "failed": (lambda _: httpx.Response(500, json={"error": {"message": "busy"}}), create),
}


def reading_of(turn: TurnRecorded) -> dict[str, Any]:
    """Return what a turn says that every way of recording knows."""
    calls = json.loads(turn.completion.tool_calls or "[]")
    return {
        "asked": [message.content for message in turn.added_messages],
        "answer": turn.completion.content,
        "tools": [(call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls],
        "reason": None if turn.finish_reason in UNFINISHED else turn.finish_reason,
        "tokens": (turn.prompt_tokens, turn.completion_tokens),
        "choice": turn.choice,
    }


def play(client: Client, server: Server, read: Callable[[], Iterable[TurnRecorded]]) -> dict[str, Any]:
    """Make each call, and return what it became."""
    readings: dict[str, Any] = {}
    for name, (script, ask) in CASES.items():
        server.script = script
        with suppress(openai.APIError):
            ask(client)
        gc.collect()  # a stream that was left ends, for some, only with its object
        readings[name] = [reading_of(turn) for turn in read()]
    return readings


def play_ours(door: str) -> dict[str, Any]:
    """Record by ourselves; an episode per call."""
    server, sink = Server(), MemorySink()
    recorder = init(sink=sink)
    if door == "instrument":
        instrument(recorder, task="contract")
    client = recorder.wrap(server.client()) if door == "wrap" else server.client()
    recorder.episodes.task_of_calls = "contract"
    seen: list[TurnRecorded] = []

    def read() -> list[TurnRecorded]:
        recorder.flush(60)
        turns = [event for event in sink.records("episode-events") if isinstance(event, TurnRecorded)]
        new = turns[len(seen) :]
        seen.extend(new)
        return new

    return play(client, server, read)


def play_foreign(door: str) -> dict[str, Any]:
    """Let an instrumentation trace, and take its spans in."""
    exporter, provider, server = InMemorySpanExporter(), TracerProvider(), Server()
    if door == "langfuse":
        from langfuse import Langfuse

        import_module("langfuse.openai")  # patches the package
        address = "http://127.0.0.1:9"
        langfuse: Any = Langfuse(
            public_key="pk", secret_key="sk", base_url=address, tracer_provider=provider, span_exporter=exporter
        )
    else:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "gen_ai_latest_experimental"
        os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "SPAN_ONLY"
        if door == "openinference":
            from openinference.instrumentation.openai import OpenAIInstrumentor
        else:
            from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
        OpenAIInstrumentor().instrument(tracer_provider=provider)
        langfuse = None

    def read() -> list[TurnRecorded]:
        if langfuse is not None:
            langfuse.flush()
        spans = exporter.get_finished_spans()
        exporter.clear()
        return Read("otlp", [read_message(encode_spans(spans))]).turns if spans else []

    return play(server.client(), server, read)


if __name__ == "__main__":
    name = sys.argv[1]
    print(json.dumps((play_ours if name in ("wrap", "instrument") else play_foreign)(name)))
