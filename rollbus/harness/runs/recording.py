"""One recorder for a run, and what its episodes were: on the bus for training, in memory for evaluation.

    recorder ─▶ Recording ─▶ the sink of the bus (training episodes only)
                    └──────▶ events by episode, until they are taken

An episode whose id begins with `local:` stays in memory: evaluations end up in no training.
"""

import asyncio
import uuid
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from nat.data_models.intermediate_step import IntermediateStep, IntermediateStepType

from rollbus.harness.bus.transcripts import logprobs_with_tokens
from rollbus.producers import EventSink, MemorySink, Outbound, Recorder, init
from rollbus.schemas import codec
from rollbus.schemas.records.events import Event, TurnRecorded
from rollbus.schemas.records.tokens import decode_logprobs, decode_token_ids

LOCAL = "local:"
FLUSH_S = 60.0


RECORDING: "ContextVar[Recording | None]" = ContextVar("rollbus_recording", default=None)
"""The recorder of the run whose workflow is being built."""


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


def attach_logprobs(steps: Sequence[IntermediateStep], events: Sequence[Event]) -> None:
    """Give every model call among the toolkit's steps its log-probs, whole, with the sampled ids."""
    turns = [event for event in events if isinstance(event, TurnRecorded)]
    for step in steps:
        if step.event_type is not IntermediateStepType.LLM_END or step.payload.data is None:
            continue
        said = str(step.payload.data.output or "")
        turn = next((one for one in turns if said.startswith(one.completion.content or "")), None)
        if turn is not None:
            turns.remove(turn)
            step.payload.data.logprobs = logprobs_of(turn)  # type: ignore[attr-defined]  # where its parsers look


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
