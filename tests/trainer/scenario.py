"""A run with batches to train: trajectories stand in the log, and each batch's members point at them."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollbus.schemas.ids import content_hash
from rollbus.schemas.records.groups import Group, TrainingBatch
from rollbus.schemas.records.steps import StepCompleted, StepSkipped
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.schemas.records.trajectories import History, Location, Span, Trajectory
from rollbus.schemas.topics import BATCHES, DROPS, TRAINING_STEPS, TRAJECTORIES
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.loop.loop import Trainer
from rollbus.trainer.settings import TrainerSettings
from tests.builders import START_MS, make_group, make_member, make_trajectory
from tests.trainer.log_memory import MemoryBroker, MemoryLog

SETTINGS = TrainerSettings(alarm=None, batch_wait_s=0.0, poll_interval_s=0.001, retry_pauses_s=(0.0,) * 3)
UPDATE_S = 0.003
"""Of a backend whose update takes many turns of the loop: the next batch is always read and sent before it ends."""


def make_batch(number: int, groups: Sequence[Group], **fields: Any) -> TrainingBatch:
    """Batch `number` of run `main`."""
    members = [[member.trajectory_id for member in group.members] for group in groups]
    defaults: dict[str, Any] = {
        "batch_hash": content_hash([number, members]),
        "run_id": "main",
        "model": "agent",
        "number": number,
        "window": 0,
        "groups": tuple(groups),
        "newest_policy_version": 0,
        "cut_at_ms": START_MS,
    }
    return TrainingBatch(**defaults | fields)


def make_payload(trajectory_id: str, *, version: int = 0, seed: int = 1, **fields: Any) -> Trajectory:
    """A trajectory of two turns of one version, in one history."""
    history = History(
        token_ids=encode_token_ids([1, 2, 3, seed, seed + 1, 7, seed + 2]),
        logprobs=encode_logprobs([-0.5, -0.25, -0.125]),
        spans=(
            Span(start=3, end=5, turn=0, policy_version=version),
            Span(start=6, end=7, turn=0, policy_version=version),
        ),
    )
    fields = {"trajectory_id": trajectory_id, "histories": (history,)} | fields
    return make_trajectory(f"e-{trajectory_id}", **fields)


def stored_group(append: Callable[[Trajectory], Location], name: str, rewards: Sequence[float]) -> Group:
    """A group whose members' payload stands in the log."""
    mean = sum(rewards) / len(rewards)
    members = []
    for index, reward in enumerate(rewards):
        trajectory_id = f"{name}-{index}"
        location = append(make_payload(trajectory_id, seed=10 + index))
        members.append(make_member(trajectory_id, reward, advantage=reward - mean, location=location, sampled_tokens=3))
    return make_group(name, rewards, members=tuple(members))


@dataclass
class World:
    """Everything that outlives a trainer, and a way to start one on it."""

    broker: MemoryBroker = field(default_factory=MemoryBroker)
    backend: MemoryBackend = field(default_factory=MemoryBackend)
    settings: TrainerSettings = SETTINGS
    pauses: list[float] = field(default_factory=list)

    def add_batches(
        self, count: int, *, rewards: Sequence[float] = (0.0, 1.0, 1.0), name: str = "b"
    ) -> list[TrainingBatch]:
        """Write `count` batches of two groups; the second group of each has no signal."""
        start = len(self.broker.topics[BATCHES.name])
        batches = []
        for number in range(start, start + count):
            groups = [self.stored(f"{name}{number}g0", rewards), self.stored(f"{name}{number}g1", [1.0, 1.0])]
            batches.append(make_batch(number, groups))
            self.broker.append(BATCHES, batches[-1])
        return batches

    def stored(self, name: str, rewards: Sequence[float]) -> Group:
        """A group with its payload in this log."""
        return stored_group(lambda payload: self.broker.append(TRAJECTORIES, payload), name, rewards)

    def trainer(self, *, log: Any = None, backend: Any = None, **settings: Any) -> Trainer:
        """A trainer process's worth of state, on this world."""

        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)
            await asyncio.sleep(0)

        return Trainer(
            log or MemoryLog(self.broker, run_id="main", model="agent"),
            backend or self.backend,
            self.settings.model_copy(update=settings),
            clock_ms=lambda: START_MS,
            sleep=sleep,
        )

    async def train(self, count: int, **trainer: Any) -> list[TrainingBatch]:
        """Write `count` batches, and let a trainer take all that there are."""
        batches = self.add_batches(count)
        await self.trainer(**trainer).run(until_idle=True)
        return batches

    def steps(self) -> list[StepCompleted | StepSkipped]:
        """The closed steps, in the order of the log."""
        return [record for record in self.records(TRAINING_STEPS) if isinstance(record, StepCompleted | StepSkipped)]

    def records(self, topic: Any) -> list[Any]:
        """Every record of a topic."""
        return self.broker.records(topic)


def check_exactly_once(world: World, batches: Sequence[TrainingBatch]) -> None:
    """Every member trained in one step or dropped once; steps contiguous; each drop also in the topic `drops`."""
    steps = world.steps()
    assert [step.step for step in steps] == list(range(1, len(batches) + 1))
    assert [step.batch_hash for step in steps] == [batch.batch_hash for batch in batches]
    trained = [member.trajectory_id for step in steps if isinstance(step, StepCompleted) for member in step.trained]
    dropped = [member.trajectory_id for step in steps for member in step.dropped]
    members = [member.trajectory_id for batch in batches for group in batch.groups for member in group.members]
    assert sorted(trained + dropped) == sorted(members)
    assert sorted(drop.unit_id for drop in world.records(DROPS)) == sorted(dropped)
