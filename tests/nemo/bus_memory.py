"""The bus without Kafka: the same pure stages, the same trainer loop, a backend without a model.

Every look
at it lets one tick pass, so stream time moves only while somebody waits.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from rollbus.producers import MemorySink
from rollbus.schemas.codec import decode
from rollbus.schemas.errors import RunStoppedError
from rollbus.schemas.records.config import AssemblyConfig, RunConfig, ScoringConfig
from rollbus.schemas.records.control import Tick
from rollbus.schemas.topics import (
    BATCHES,
    CURRICULUM,
    DROPS,
    EPISODE_EVENTS,
    EVALUATIONS,
    RUN_LOG,
    SCORES,
    TRAINING_STEPS,
    TRAJECTORIES,
    Topic,
)
from rollbus.streams.pipeline import namespace_stages, run_stages
from rollbus.streams.rewards.registry import load_registry
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.backends.protocol import Backend
from rollbus.trainer.ledger.log import Publication
from rollbus.trainer.loop.loop import Trainer
from rollbus.trainer.settings import TrainerSettings
from tests.flow.in_memory import Flow
from tests.trainer.log_memory import MemoryBroker, MemoryLog

find_rewards = cache(load_registry)
"""Looks through every installed package: once for all buses."""

TICK_MS = 1_000
START_MS = 1_700_000_000_000
OF_THE_STAGES = (EPISODE_EVENTS, TRAJECTORIES, SCORES, RUN_LOG, CURRICULUM, BATCHES, DROPS)
READ = (*OF_THE_STAGES, TRAINING_STEPS, EVALUATIONS)


class MemoryBus:
    """Fulfils `Bus`; it can be opened again by another run log, as a broker can."""

    def __init__(
        self,
        run: RunConfig,
        *,
        assembly: AssemblyConfig | None = None,
        scoring: ScoringConfig | None = None,
        backend: Backend | None = None,
        settings: TrainerSettings | None = None,
        folder: Path | None = None,
    ) -> None:
        self.folder = folder
        """Where a backend of this process keeps its journal."""
        registry = find_rewards()
        stages = namespace_stages(assembly or AssemblyConfig(), scoring or ScoringConfig(), registry=registry)
        self._flow = Flow([*stages, *run_stages(run, registry=registry)])
        self._sink = MemorySink()
        self._records_taken = 0
        self._broker = MemoryBroker()
        self._positions: dict[str, int] = {}
        """How far this reader has read, by topic."""
        self._copied_records: dict[str, int] = {}
        """How far the stages' records are with the trainer, and the trainer's with the stages."""
        self._ticks = 0
        self.backend = backend or MemoryBackend(model=run.model)
        self._settings = settings or TrainerSettings(
            run_id=run.run_id, model=run.model, alarm=None, retry_pauses_s=(), batch_wait_s=0.0
        )
        self._run = run

    @property
    def sink(self) -> MemorySink:
        """Where the recorder sends."""
        return self._sink

    async def open(self) -> None:
        """Begin to read at the oldest record."""
        self._positions = {}

    async def publish(self, publications: Sequence[Publication]) -> None:
        """Write records where stages and readers find them."""
        for publication in publications:
            if publication.topic in (TRAINING_STEPS, EVALUATIONS):
                self._broker.append(publication.topic, publication.record)
            else:
                self._flow.publish(publication.topic, publication.key, publication.record)

    async def poll(self) -> list[Any]:
        """Let a tick pass, train what there is to train, and return what is new."""
        records = self._sink.records(EPISODE_EVENTS.name)
        for event in records[self._records_taken :]:
            self._flow.publish(EPISODE_EVENTS, event.root_episode_id, event)
        self._records_taken = len(records)
        self._ticks += 1
        now_ms = START_MS + self._ticks * TICK_MS
        await self._flow.tick(
            Tick(number=self._ticks, stream_time_ms=now_ms, wall_clock_ms=now_ms, interval_ms=TICK_MS)
        )
        await self._train()
        return [record for topic in READ for record in self._new(topic) if not isinstance(record, Tick)]

    async def catch_up(self) -> list[Any]:
        """Everything is at hand."""
        return await self.poll()

    async def close(self) -> None:
        """Nothing to let go of."""

    async def _train(self) -> None:
        """Show the trainer what the stages wrote, and the stages what it answers."""
        for topic in (TRAJECTORIES, SCORES, BATCHES):
            written = self._flow.log.of(topic)[0]
            for incoming in written[self._copied_records.get(topic.name, 0) :]:
                self._broker.append_bytes(topic, incoming.data)
            self._copied_records[topic.name] = len(written)
        if len(self._broker.records(BATCHES)) > self._broker.offsets.get(self._run.run_id, 0):
            log = MemoryLog(self._broker, run_id=self._run.run_id, model=self._run.model)
            with suppress(RunStoppedError):  # on record as StepFailed or a pause, where a trainer's process would end
                await Trainer(log, self.backend, self._settings).run(until_idle=True)
        for topic in (RUN_LOG, DROPS):
            answered = self._broker.topics[topic.name]
            for data in answered[self._copied_records.get(topic.name, 0) :]:
                record = decode(data)
                self._flow.publish(topic, self._run.run_id, record)
            self._copied_records[topic.name] = len(answered)
        await self._flow.settle()

    def _new(self, topic: Topic) -> list[Any]:
        records = self._flow.records(topic) if topic in OF_THE_STAGES else self._broker.records(topic)
        position, self._positions[topic.name] = self._positions.get(topic.name, 0), len(records)
        return records[position:]
