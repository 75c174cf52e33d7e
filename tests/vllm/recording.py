"""An agent that asks vLLM through the recorder, and its turns as a backend gets them."""

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from openai import AsyncOpenAI

import rollbus
from rollbus.producers import MemorySink, Recorder
from rollbus.schemas.records.config import AssemblyConfig
from rollbus.schemas.records.events import Event, TurnRecorded
from rollbus.schemas.topics import EPISODE_EVENTS
from rollbus.streams.stages.assembly.trajectory import Closing, build
from rollbus.trainer.backends.art_client import ArtClient
from rollbus.trainer.backends.protocol import TrainRequest, TrainResult, TrainTrajectory, TurnTokens
from rollbus.trainer.loop.inspection import inspect
from rollbus.trainer.train_config import TrainConfig

MODEL = "agent"
QUESTION = "choose a letter of the word and say it again"


class Agent:
    """Plays episodes of one call; `turns` are what was recorded of them."""

    def __init__(self, client: AsyncOpenAI, recorder: Recorder, sink: MemorySink) -> None:
        self.client, self._recorder, self._sink = client, recorder, sink

    async def ask(self, model: str = f"{MODEL}@0", question: str = QUESTION, **options: Any) -> Any:
        """Return the answer to one call, an episode; a stream comes whole."""
        async with self._recorder.episode(task="letters", example_id="1"):
            answer = await self.client.chat.completions.create(
                model=model, messages=[{"role": "user", "content": question}], **{"max_tokens": 12, **options}
            )
            return [chunk async for chunk in answer] if options.get("stream") else answer

    @property
    def turns(self) -> list[TurnRecorded]:
        """As they were sent."""
        assert self._recorder.flush(60)
        return [record for record in self._sink.records(EPISODE_EVENTS.name) if isinstance(record, TurnRecorded)]

    def cut(self) -> list[TurnTokens]:
        """Return what a trainer gets of the episodes; each must be trainable."""
        assert self._recorder.flush(60)
        events_by_episode: dict[str, list[Event]] = defaultdict(list)
        for record in self._sink.records(EPISODE_EVENTS.name):
            events_by_episode[record.episode_id].append(record)
        turns: list[TurnTokens] = []
        for events in events_by_episode.values():
            trajectory = build(events, (), AssemblyConfig(), "", Closing(now_ms=0, holes={}))
            assert trajectory is not None
            inspected = inspect(trajectory)
            assert inspected.refusal is None, (
                inspected.refusal,
                [turn.untrainable_reason for turn in trajectory.turns],
            )
            turns += inspected.turns
        return turns


@asynccontextmanager
async def open_agent(url: str, *, producer: str = "shop") -> AsyncIterator[Agent]:
    """Give an agent whose client knows nothing of log-probs and token ids."""
    sink = MemorySink()
    recorder = rollbus.init(sink=sink, producer=producer, logprob_mode="processed")
    try:
        async with AsyncOpenAI(base_url=url, api_key="none", timeout=600) as client:
            yield Agent(recorder.wrap(client), recorder, sink)
    finally:
        recorder.close()


async def train(
    client: ArtClient, turns: Sequence[TurnTokens], *, base: int, name: str, most: float = 0.1
) -> TrainResult:
    """Make one step of the turns, half of them up and half down; raises RejectedError."""
    trajectories = tuple(
        TrainTrajectory(f"{name}-{number}", name, (-1.0) ** number, float(number % 2 == 0), (turn,))
        for number, turn in enumerate(turns)
    )
    config = TrainConfig(learning_rate=0.02)
    request = TrainRequest(name, "letters", MODEL, base, trajectories, config, most_difference=most)
    return await client.wait(await client.submit(request), 0.1)
