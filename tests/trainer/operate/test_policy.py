"""An operator's rollback and promotion: what is recorded, who is fenced, and where training goes on."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from rollbus.schemas.errors import ConfigurationError, FencedError, RejectedError, RunStoppedError, UnavailableError
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.records.steps import StepCompleted
from rollbus.schemas.topics import DELIVERY_LOG, POLICY_VERSIONS, RUN_LOG
from rollbus.trainer.backends.memory import MemoryBackend
from rollbus.trainer.backends.protocol import Capabilities, TrainRequest, TrainResult, Versions
from rollbus.trainer.ledger.log import Publication, make_announcements
from rollbus.trainer.operate.policy import is_quarantined_above, roll_back
from rollbus.trainer.serving import serve_version
from tests.builders import START_MS, make_version
from tests.trainer.log_memory import MemoryLog
from tests.trainer.loop.crashes import Crash, CrashAt
from tests.trainer.scenario import SETTINGS, World, check_exactly_once


async def rolled_back(world: World, version: int, *, log: Any = None, backend: Any = None) -> tuple[int, ...]:
    """Roll back as the command does."""
    log = log or MemoryLog(world.broker, run_id="main", model="agent")
    backend = backend or world.backend
    return await roll_back(log, backend, SETTINGS, version=version, reason="a bad reward", now_ms=START_MS)


async def rolled_back_by_another(world: World, point: int) -> bool:
    """Let a rollback die at a point, and another one complete it; False where it has no such point."""
    crash = CrashAt(point)
    log = crash.wrap(MemoryLog(world.broker, run_id="main", model="agent"))
    try:
        await rolled_back(world, 1, log=log, backend=crash.wrap(world.backend))
    except Crash:
        await rolled_back(world, 1)
        return True
    assert point > 5
    return False


async def test_a_quarantined_version_is_left_once_and_never_serves() -> None:
    world = World()
    world.add_batches(3)
    trainer = world.trainer()
    await trainer.run(until_idle=True)
    lineage = trainer.ledger.lineage
    assert not is_quarantined_above(lineage, 1)
    lineage.apply(make_version(2, 1, state="quarantined"))
    assert is_quarantined_above(lineage, 1)
    assert not is_quarantined_above(lineage, 2), "only what is above counts"

    async def publish(publications: Sequence[Publication]) -> None:
        raise AssertionError(publications)

    with pytest.raises(ConfigurationError, match="was quarantined"):
        await serve_version(world.backend, publish, lineage, SETTINGS, version=2, reason="", now_ms=START_MS)
    for version in (2, 3):
        lineage.apply(make_version(version, version - 1, state="rolled_back"))
    assert not is_quarantined_above(lineage, 1), "after the roll-back there is nothing to leave"


async def test_training_does_not_continue_from_a_version_that_never_served() -> None:
    """The version would then serve."""
    world = World()
    world.add_batches(3)
    trainer = world.trainer(serve="after_evaluation")
    await trainer.run(until_idle=True)
    lineage = trainer.ledger.lineage
    lineage.apply(make_version(3, 2, state="quarantined"))
    with pytest.raises(ConfigurationError, match=r"version 2, now candidate, has never served.*`--from 0`"):
        is_quarantined_above(lineage, 2)
    assert is_quarantined_above(lineage, 0)


async def test_a_quarantined_version_is_not_rolled_back_to() -> None:
    world = World()
    await world.train(3)
    for publication in make_announcements(make_version(2, 1, state="quarantined"), "main"):
        world.broker.append(publication.topic, publication.record)
    before = world.records(POLICY_VERSIONS)
    with pytest.raises(ConfigurationError, match="version 2 of 'agent' was quarantined"):
        await rolled_back(world, 2)
    assert world.records(POLICY_VERSIONS) == before
    assert await rolled_back(world, 1) == (3, 2)


async def test_training_continues_from_the_version_rolled_back_to() -> None:
    world = World()
    batches = await world.train(3)
    assert await rolled_back(world, 1) == (3, 2)
    batches += await world.train(1)
    check_exactly_once(world, batches)
    last = world.steps()[-1]
    assert isinstance(last, StepCompleted)
    assert (last.base_version, last.policy_version) == (1, 4)
    states = {record.version: record.state for record in world.records(POLICY_VERSIONS)}
    assert states == {0: "serving", 1: "serving", 2: "rolled_back", 3: "rolled_back", 4: "serving"}
    assert world.records(RUN_LOG)[-3].reason == "a bad reward"
    versions = await world.backend.versions()
    assert (versions.head, versions.serving) == (4, 4)


async def test_an_idle_trainer_ends_with_the_rollback_that_fenced_it() -> None:
    """Without this it ends with its next batch only, and an operator who waits to start it again waits for that."""
    world = World()
    world.add_batches(2)
    running = asyncio.create_task(world.trainer(batch_wait_s=0.001).run())
    while len(world.steps()) < 2:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.001)
    await rolled_back(world, 1)
    with pytest.raises(FencedError, match=r"from version 1 .* start this trainer again"):
        await asyncio.wait_for(running, 120)


async def test_a_refused_rollback_leaves_the_running_trainer_in_charge() -> None:
    """A mistyped number costs an error message, and no training."""
    world = World(backend=Forgetful())
    world.add_batches(3)
    running = asyncio.create_task(world.trainer(batch_wait_s=0.001).run())
    while len(world.steps()) < 3:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.001)
    for version, why in ((7, "those are: 3, 2, 1, 0"), (1, "has no checkpoint")):
        with pytest.raises(ConfigurationError, match=why):
            await rolled_back(world, version)
    world.add_batches(1)
    while len(world.steps()) < 4:
        assert not running.done(), running.exception()
        await asyncio.sleep(0.001)
    running.cancel()


async def test_a_rollback_closes_the_open_step_first_and_gives_it_up_too() -> None:
    world = World()
    batches = world.add_batches(2)
    crash = CrashAt(None)
    log = crash.wrap(MemoryLog(world.broker, run_id="main", model="agent"))
    await world.trainer(log=log).run(until_idle=True)
    points, world = crash.passed, World()
    batches = world.add_batches(2)
    log = CrashAt(points - 5).wrap(MemoryLog(world.broker, run_id="main", model="agent"))
    with pytest.raises(Crash):
        await world.trainer(log=log).run(until_idle=True)
    assert await rolled_back(world, 0) == (2, 1)
    check_exactly_once(world, batches)
    assert (await world.backend.versions()).head == 0


class Spoiled(MemoryBackend):
    """Nothing can be trained from version 2."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def submit(self, request: TrainRequest) -> str:
        if request.base_version == 2:
            raise self.error
        return await super().submit(request)


async def stopped_on_a_spoiled_version(error: Exception) -> tuple[World, list[TrainingBatch]]:
    world = World(backend=Spoiled(error))
    batches = world.add_batches(4)
    with pytest.raises(RunStoppedError):
        await world.trainer().run(until_idle=True)
    return world, batches


@pytest.mark.parametrize("error", [RejectedError("no gradient is finite"), UnavailableError("weights are damaged")])
async def test_a_step_that_cannot_be_trained_is_left_to_the_version_rolled_back_to(error: Exception) -> None:
    """It may be for this very step that the operator rolls back."""
    world, batches = await stopped_on_a_spoiled_version(error)
    assert await rolled_back(world, 1) == (2,)
    await world.trainer().run(until_idle=True)
    check_exactly_once(world, batches)
    steps = [step for step in world.steps() if isinstance(step, StepCompleted)]
    assert [(step.base_version, step.policy_version) for step in steps] == [(0, 1), (1, 2), (1, 3), (3, 4)]


@pytest.mark.parametrize("spoiled", [False, True], ids=["after a step", "from a step that cannot be trained"])
async def test_a_rollback_that_died_at_any_point_is_completed_by_another(spoiled: bool) -> None:
    for point in range(40):
        if spoiled:
            world, batches = await stopped_on_a_spoiled_version(RejectedError("no gradient is finite"))
        else:
            world = World()
            batches = await world.train(2)
        if not await rolled_back_by_another(world, point):
            return
        if not spoiled:
            batches += world.add_batches(1)
        await world.trainer().run(until_idle=True)
        check_exactly_once(world, batches)
        assert (await world.backend.versions()).head == 3 + spoiled
    raise AssertionError("a rollback has fewer points than that")


class Unheard(MemoryBackend):
    """Trains on while nobody hears of it."""

    heard = False

    async def wait(self, batch_hash: str, poll_interval_s: float = 0.5) -> TrainResult:
        if not self.heard:
            raise UnavailableError("no answer")
        return await super().wait(batch_hash, poll_interval_s)


async def test_nothing_is_rolled_back_while_an_update_may_still_make_a_version() -> None:
    backend = Unheard(step_s=0.2)
    world = World(backend=backend)
    batches = world.add_batches(2)
    for attempt in (world.trainer(retry_pauses_s=()).run(until_idle=True), rolled_back(world, 0)):
        with pytest.raises(RunStoppedError, match="no answer"):
            await attempt
    assert (await backend.versions()).head == 0
    backend.heard = True
    assert await rolled_back(world, 0) == (1,)
    await world.trainer().run(until_idle=True)
    check_exactly_once(world, batches)


async def test_only_an_ancestor_of_the_head_can_be_rolled_back_to() -> None:
    world = World()
    await world.train(2)
    with pytest.raises(ConfigurationError, match=r"version 7 .* those are: 2, 1, 0"):
        await rolled_back(world, 7)
    assert (await world.backend.versions()).head == 2


async def test_a_candidate_is_promoted_and_one_that_was_rolled_back_is_not() -> None:
    world = World(backend=MemoryBackend())
    world.add_batches(2)
    trainer = world.trainer(serve="after_evaluation")
    await trainer.run(until_idle=True)
    records: list[Publication] = []

    async def publish(publications: Sequence[Publication]) -> None:
        assert (await world.backend.versions()).serving == 2, "the log must not run ahead of the backend"
        records.extend(publications)

    order: dict[str, Any] = {"version": 2, "reason": "evaluated", "now_ms": START_MS}
    await serve_version(world.backend, publish, trainer.ledger.lineage, SETTINGS, **order)
    topics = (POLICY_VERSIONS, RUN_LOG, DELIVERY_LOG)
    assert [(record.topic, record.record.state) for record in records] == [(topic, "serving") for topic in topics]
    await rolled_back(world, 1)
    later = world.trainer(serve="after_evaluation")
    await later.run(until_idle=True)
    with pytest.raises(ConfigurationError, match="was rolled back"):
        await serve_version(world.backend, publish, later.ledger.lineage, SETTINGS, **order)


async def test_a_rollback_to_a_version_without_checkpoint_writes_nothing() -> None:
    """Written first, it would leave a log whose head no backend can take."""
    world = World(backend=Forgetful())
    await world.train(3)
    before = world.records(POLICY_VERSIONS)
    with pytest.raises(ConfigurationError, match=r"version 1 has no checkpoint .* those that have one are: 3, 2, 0"):
        await rolled_back(world, 1)
    assert world.records(POLICY_VERSIONS) == before
    assert await rolled_back(world, 2) == (3,)


class Forgetful(MemoryBackend):
    """Its retention has removed version 1."""

    async def versions(self) -> Versions:
        versions = await super().versions()
        return replace(versions, known=tuple(version for version in versions.known if version.version != 1))


async def test_a_backend_that_cannot_go_back_is_asked_before_anything_is_written() -> None:
    world = World(backend=OnlyOnwards())
    await world.train(2)
    before = world.records(POLICY_VERSIONS)
    with pytest.raises(ConfigurationError, match=r"trains from its newest version, 2, .* above 1 away"):
        await rolled_back(world, 1)
    assert world.records(POLICY_VERSIONS) == before
    await MemoryBackend.promote(world.backend, 1, rollback=True)  # as by hand
    assert await rolled_back(world, 1) == (2,)


class OnlyOnwards(MemoryBackend):
    """As ART's own service, which serves and trains what is newest."""

    async def capabilities(self) -> Capabilities:
        return replace(await super().capabilities(), rolls_back=False)

    async def promote(self, version: int, *, rollback: bool = False) -> None:
        assert version == (await self.versions()).head
        await super().promote(version, rollback=rollback)
