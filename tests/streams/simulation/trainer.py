"""A trainer in the form of a stage: each batch becomes one step, completed or skipped, with its records."""

from collections.abc import Iterator
from dataclasses import dataclass

from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.records.steps import PolicyVersion, StepSkipped, TrainedMember
from rollbus.schemas.topics import BATCHES, DROPS, RUN_LOG, TRAINING_STEPS
from rollbus.streams.state.rows import INT
from rollbus.streams.state.stage import Incoming, Outgoing
from rollbus.streams.state.table import PartitionState, Table
from tests.builders import make_outcome, make_step

SKIP_EVERY = 2
"""Every second step of a run finds nothing to train."""


class TrainerState(PartitionState):
    """Closed steps and head version by run, and the batches taken."""

    def __init__(self) -> None:
        self.numbers: Table[int] = Table("number", INT)
        super().__init__(self.numbers)


@dataclass(slots=True)
class SimulatedTrainer:
    """Trains at once; versions count by run, and each is announced twice, as after a crash."""

    name: str = "trainer"
    input = BATCHES

    def new_state(self) -> TrainerState:
        return TrainerState()

    def step(self, state: TrainerState, incoming: Incoming) -> Iterator[Outgoing]:
        batch = incoming.record
        if state.numbers.get(batch.batch_hash) is not None:
            return
        steps, base = (state.numbers.get(f"{name} {batch.run_id}") or 0 for name in ("steps", "head"))
        skipped = (steps + 1) % SKIP_EVERY == 0
        state.numbers.put(batch.batch_hash, steps + 1)
        state.numbers.put(f"steps {batch.run_id}", steps + 1)
        version = base if skipped else base + 1
        state.numbers.put(f"head {batch.run_id}", version)
        yield from (_skip_step if skipped else _complete_step)(batch, steps + 1, base)
        state_of_step = "skipped" if skipped else "completed"
        outcome = make_outcome(batch, step=steps + 1, base=base, version=version, state=state_of_step)
        yield Outgoing(RUN_LOG, batch.run_id, outcome)
        if not skipped:
            new_version = PolicyVersion(
                model=batch.model, version=version, parent=base, run_id=batch.run_id, state="serving", changed_at_ms=0
            )
            yield from [Outgoing(RUN_LOG, batch.run_id, new_version)] * 2


def _complete_step(batch: TrainingBatch, step: int, base: int) -> Iterator[Outgoing]:
    trained = tuple(
        TrainedMember(
            trajectory_id=member.trajectory_id,
            group_id=group.group_id,
            lag=base - member.min_policy_version,
            advantage=member.advantage,
            sampled_tokens=member.sampled_tokens,
        )
        for group in batch.groups
        for member in group.members
    )
    names = {"run_id": batch.run_id, "model": batch.model, "batch_hash": batch.batch_hash}
    versions = {"base_version": base, "policy_version": base + 1}
    done = make_step(step, **names, **versions, batch_number=batch.number, trained=trained)
    yield Outgoing(TRAINING_STEPS, batch.run_id, done)


def _skip_step(batch: TrainingBatch, step: int, base: int) -> Iterator[Outgoing]:
    skipped = StepSkipped(
        run_id=batch.run_id,
        model=batch.model,
        step=step,
        batch_hash=batch.batch_hash,
        batch_number=batch.number,
        base_version=base,
        reason="nothing_trainable",
        started_at_ms=0,
        completed_at_ms=0,
    )
    yield Outgoing(TRAINING_STEPS, batch.run_id, skipped)
    for group in batch.groups:
        ids = tuple(member.trajectory_id for member in group.members)
        drop = Drop(
            unit="group",
            unit_id=group.group_id,
            reason="rejected_by_backend",
            stage="trainer",
            run_id=batch.run_id,
            trajectory_ids=ids,
            dropped_at_ms=0,
        )
        yield Outgoing(DROPS, group.group_id, drop)
