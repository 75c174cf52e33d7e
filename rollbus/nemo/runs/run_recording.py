"""One recorder for a run, and what its episodes were: on the bus for training, in memory for evaluation.

    recorder ─▶ Recording ─▶ the sink of the bus (training episodes only)
                    └──────▶ events by episode, until they are taken

An episode whose id begins with `local:` stays in memory: evaluations end up in no training.
"""

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rollbus.nemo.llms import active_function
from rollbus.nemo.troubles import NO_TOKEN_IDS
from rollbus.producers import EventSink, MemorySink, Outbound, Recorder, init
from rollbus.producers.integrations.instrument import instrument
from rollbus.schemas import codec
from rollbus.schemas.records.events import Event, TurnRecorded

LOCAL = "local:"
FLUSH_S = 60.0


class RunRecording:
    """The recorder, and its episodes' events."""

    def __init__(self, namespace: str, sink: EventSink | None = None, *, processed: bool = False) -> None:
        """`sink` is the bus; without it nothing leaves the process. `processed` is what the log-probs are of."""
        self._tee = _Tee(sink or MemorySink())
        self.recorder: Recorder = init(
            sink=self._tee,
            namespace=namespace,
            producer="finetune",
            environment="finetune",
            logprob_mode="processed" if processed else "raw",
        )

    @contextmanager
    def instrumented(self) -> Iterator[None]:
        """Record the process's models and tools while the block lasts."""
        patches = instrument(self.recorder, function=active_function)
        try:
            yield
        finally:
            patches.undo()

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
        refused_places: frozenset[int] = frozenset()
        if passed:
            positions = await self._inner.send([record for _, record in passed])
            refused_places = frozenset(passed[position][0] for position in positions)
        for index, record in enumerate(records):
            events = self.watched.get(record.key.decode(errors="replace"))
            if events is not None and index not in refused_places:
                event = codec.decode(record.value)
                if isinstance(event, Event):
                    events.append(event)
        return refused_places

    async def close(self) -> None:
        await self._inner.close()


@dataclass(slots=True)
class Tally:
    """What the attempts of an epoch were, whatever was made of them."""

    episodes: int = 0
    with_turns: int = 0
    with_token_ids: int = 0
    evaluator_errors: dict[str, str] = field(default_factory=dict)
    """What an evaluator raised last, by its name."""

    def add(self, events: Sequence[Event]) -> None:
        """Count an attempt."""
        turns = [event for event in events if isinstance(event, TurnRecorded)]
        self.episodes += 1
        self.with_turns += bool(turns)
        self.with_token_ids += any(turn.completion_token_ids for turn in turns)

    def summary(self, evaluator: str) -> str:
        """Say what was recorded, what all of it lacks, and what its evaluator raised."""
        error = self.evaluator_errors.get(evaluator)
        return self._describe_episodes() + ("" if error is None else f"; evaluator {evaluator!r} raised {error}")

    def _describe_episodes(self) -> str:
        if not self.episodes:
            return "no episode was recorded"
        text = "1 episode was recorded" if self.episodes == 1 else f"{self.episodes} episodes were recorded"
        if not self.with_turns:
            return f"{text}, none has a model call"
        return text if self.with_token_ids else f"{text}, {NO_TOKEN_IDS}"
