"""What makes a new version serve: the update where the backend takes that, else the trainer before it says so."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.errors import RejectedError, RunStoppedError, UnavailableError
from rollbus.schemas.records.steps import PolicyVersion, StepCompleted, StepFailed
from rollbus.schemas.topics import POLICY_VERSIONS, TRAINING_STEPS
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.backends.protocol import Capabilities, TrainRequest
from rollbus.trainer.ledger.log import Publication
from tests.trainer.log_memory import MemoryLog
from tests.trainer.scenario import UPDATE_S, World, check_exactly_once


class Noting(MemoryBackend):
    """Notes which updates were to serve their version, and what is asked by `promote`; may honour the first or not."""

    def __init__(self, *, heeds: bool = True) -> None:
        super().__init__(step_s=UPDATE_S)
        self.heeds = heeds
        self.to_serve: list[bool] = []
        self.promoted: list[int] = []

    async def capabilities(self) -> Capabilities:
        return replace(await super().capabilities(), serves_on_request=self.heeds)

    async def submit(self, request: TrainRequest) -> str:
        self.to_serve.append(request.serve)
        return await super().submit(request)

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        self.promoted.append(version)
        await super().promote(version, rollback=rollback)


class Looking(MemoryLog):
    """Looks which version serves when the log says that one does."""

    def __init__(self, world: World) -> None:
        super().__init__(world.broker, run_id="main", model="agent")
        self.backend = world.backend
        self.served: list[tuple[int, int]] = []
        """Version announced, version that served."""

    async def publish(self, publications: Sequence[Publication], **options: Any) -> Sequence[Publication]:
        serving = (await self.backend.versions()).serving
        records = (publication.record for publication in publications if publication.topic is POLICY_VERSIONS)
        self.served += [
            (record.version, serving) for record in records if isinstance(record, PolicyVersion) and record.step
        ]
        return await super().publish(publications, **options)


@pytest.mark.parametrize("heeds", [True, False], ids=["the update serves it", "the trainer asks"])
async def test_a_version_serves_before_the_log_says_so(heeds: bool) -> None:
    backend = Noting(heeds=heeds)
    world = World(backend=backend)
    batches, log = world.add_batches(3), Looking(world)
    await world.trainer(log=log).run(until_idle=True)
    check_exactly_once(world, batches)
    assert log.served == [(1, 1), (2, 2), (3, 3)]
    assert backend.to_serve == [heeds] * 3
    assert backend.promoted == [1, 2, 3], "each once"


async def test_a_candidate_is_not_served() -> None:
    backend = Noting()
    world = World(backend=backend)
    await world.train(2, serve="after_evaluation")
    assert backend.to_serve == [False, False]
    assert backend.promoted == []


async def test_a_step_whose_version_cannot_be_served_is_trained_only_once() -> None:
    class Full(Noting):
        """Has no memory for another version at the first call."""

        async def promote(self, version: int, *, rollback: bool = False) -> None:
            await super().promote(version, rollback=rollback)
            if self.promoted == [1]:
                raise UnavailableError("no memory for another version")

    backend = Full()
    world = World(backend=backend)
    batches, log = world.add_batches(2), Looking(world)
    await world.trainer(log=log).run(until_idle=True)
    check_exactly_once(world, batches)
    (failure,) = [record for record in world.records(TRAINING_STEPS) if isinstance(record, StepFailed)]
    assert "no memory" in failure.message
    assert log.served == [(1, 1), (2, 2)]
    assert backend.promoted == [1, 1, 2]
    assert backend.to_serve == [True, True]


async def test_a_trained_batch_with_an_unservable_version_is_not_dropped() -> None:
    class Broken(Noting):
        """Cannot read the first checkpoint until somebody has mended it."""

        mended = False

        async def promote(self, version: int, *, rollback: bool = False) -> None:
            if not self.mended:
                raise RejectedError("the checkpoint lacks a tensor")
            await super().promote(version, rollback=rollback)

    backend = Broken()
    world = World(backend=backend)
    batches = world.add_batches(2)
    with pytest.raises(RunStoppedError, match=r"lacks a tensor.*start the trainer again$"):
        await world.trainer(on_rejected="skip").run(until_idle=True)
    assert world.steps() == []
    backend.mended = True
    await world.trainer(on_rejected="skip").run(until_idle=True)
    check_exactly_once(world, batches)
    assert [step.policy_version for step in world.steps() if isinstance(step, StepCompleted)] == [1, 2]


async def test_a_version_that_an_earlier_attempt_trains_is_served_by_the_trainer() -> None:
    failures = [UnavailableError("hung up")]

    class HangsUp(Noting):
        """Loses the answer to the first submission, whose update goes on."""

        async def submit(self, request: TrainRequest) -> str:
            submitted = await super().submit(request)
            if failures:
                raise failures.pop()
            return submitted

    backend = HangsUp()
    world = World(backend=backend)
    batches, log = world.add_batches(1), Looking(world)
    await world.trainer(log=log).run(until_idle=True)
    check_exactly_once(world, batches)
    assert log.served == [(1, 1)]
    assert backend.to_serve == [True, False]
    assert backend.promoted == [1, 1]
