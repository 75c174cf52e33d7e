"""One recorder for a run, and what its episodes were: on the bus for training, in memory for evaluation.

    recorder ─▶ Recording ─▶ the sink of the bus (training episodes only)
                    └──────▶ events by episode, until they are taken

An episode whose id begins with `local:` stays in memory: evaluations end up in no training.
"""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

from rollbus.harness.evaluation_models import IntermediateStep
from rollbus.harness.transcripts import logprobs_with_tokens
from rollbus.producers import EventSink, MemorySink, Outbound, Recorder, init
from rollbus.schemas import codec
from rollbus.schemas.records.events import Event, Message, ToolCalled, TurnRecorded
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids

LOCAL = "local:"
FLUSH_S = 60.0


class Recording:
    """The recorder and its episodes' events."""

    def __init__(
        self, namespace: str, sink: EventSink | None = None, *, producer: str = "finetune", processed: bool = False
    ) -> None:
        """`sink` is the bus; without it nothing leaves the process. `processed` is what the log-probs are of."""
        self._tee = _Tee(sink or MemorySink())
        self.recorder: Recorder = init(
            sink=self._tee,
            namespace=namespace,
            producer=producer,
            environment="finetune",
            logprob_mode="processed" if processed else "raw",
        )

    def local_episode_id(self) -> str:
        """Return an id for an episode that stays in memory."""
        return f"{LOCAL}{uuid.uuid4()}"

    def watch(self, episode_id: str) -> None:
        """Keep the events of an episode until they are taken."""
        self._tee.watched[episode_id] = []

    async def take(self, episode_id: str) -> list[Event]:
        """Return an episode's events so far, in order, and keep them no longer."""
        await self.flush()
        return self._tee.watched.pop(episode_id, [])

    async def flush(self) -> None:
        """Return once everything recorded is safe."""
        await asyncio.to_thread(self.recorder.flush, FLUSH_S)

    async def close(self) -> None:
        """Deliver and stop."""
        await asyncio.to_thread(self.recorder.close, FLUSH_S)


class _Tee:
    """An EventSink that keeps watched episodes and passes on what belongs on the bus."""

    def __init__(self, inner: EventSink) -> None:
        self._inner = inner
        self.watched: dict[str, list[Event]] = {}

    async def start(self) -> None:
        await self._inner.start()

    async def send(self, records: Sequence[Outbound]) -> frozenset[int]:
        passed = [(index, record) for index, record in enumerate(records) if not record.key.startswith(LOCAL.encode())]
        refused: frozenset[int] = frozenset()
        if passed:
            positions = await self._inner.send([record for _, record in passed])
            refused = frozenset(passed[position][0] for position in positions)
        for index, record in enumerate(records):
            known = self.watched.get(record.key.decode(errors="replace"))
            if known is not None and index not in refused:
                event = codec.decode(record.value)
                if isinstance(event, Event):
                    known.append(event)
        return refused

    async def close(self) -> None:
        await self._inner.close()


def steps_of(events: Sequence[Event]) -> list[IntermediateStep]:
    """Return an episode's model and tool calls as evaluators and custom builders read them."""
    steps: list[IntermediateStep] = []
    for event in events:
        if isinstance(event, TurnRecorded):
            steps += _model_call(event)
        elif isinstance(event, ToolCalled):
            metadata = {"tool_call_id": event.tool_call_id, "error": event.error}
            shared: dict[str, Any] = {"name": event.name, "metadata": metadata, "input": event.arguments}
            steps.append(IntermediateStep(event_type="TOOL_START", **shared))
            steps.append(IntermediateStep(event_type="TOOL_END", output=event.result, **shared))
    return steps


def _model_call(turn: TurnRecorded) -> list[IntermediateStep]:
    function = turn.function or "<workflow>"
    asked = [_plain(message) for message in turn.added_messages]
    start = IntermediateStep(event_type="LLM_START", name=turn.model, function_name=function, input=asked)
    end = IntermediateStep(
        event_type="LLM_END",
        name=turn.model,
        function_name=function,
        output=turn.completion.content or "",
        logprobs=logprobs_of(turn),
        metadata={"event_id": turn.event_id, **_plain(turn.completion)},
    )
    return [start, end]


def logprobs_of(turn: TurnRecorded) -> dict[str, Any]:
    """Return a turn's log-probs as an `EpisodeItem` takes them; empty where the turn cannot be trained."""
    if not (turn.trainable and turn.prompt_token_ids and turn.completion_token_ids and turn.logprobs):
        return {}
    return logprobs_with_tokens(
        list(decode_token_ids(turn.prompt_token_ids)),
        list(decode_token_ids(turn.completion_token_ids)),
        list(decode_logprobs(turn.logprobs)),
        policy_version=turn.policy_version,
        model=turn.model,
        logprob_mode=turn.logprob_mode,
        temperature=turn.temperature,
    )


def _plain(message: Message) -> dict[str, Any]:
    names = ("role", "content", "name", "tool_call_id", "tool_calls")
    return {name: value for name in names if (value := getattr(message, name)) is not None}
