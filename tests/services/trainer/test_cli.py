"""What an operator sees of a run that has trained, and does to it: each command by its words and its answer."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.records.steps import StepStarted
from rollbus.schemas.topics import TRAINING_STEPS
from rollbus.trainer.ledger.log import Publication
from rollbus.trainer.loop.loop import Trainer
from rollbus.trainer.operate.publishing import publish_all
from rollbus.trainer.process import make_log, open_backend
from rollbus.trainer.settings import MemoryBackendSettings
from tests.services.commands import say_in_thread, write_config
from tests.services.trainer.kafka import TrainerWorld

pytestmark = pytest.mark.services

Say = Callable[..., Awaitable[str]]


async def train(world: TrainerWorld, batches: int) -> None:
    await world.add_batches(batches)
    log = make_log(world.settings())
    async with open_backend(world.settings()) as backend:
        await Trainer(log, backend, world.settings()).run(until_idle=True)
    await log.close()


@pytest.fixture
async def say(kafka: str, namespace: str, tmp_path: Path) -> AsyncIterator[Say]:
    """The command line, on a run of three steps."""
    folder = tmp_path / "backend"
    trainer = {"backend": {"type": "memory", "folder": str(folder)}}
    config = write_config(tmp_path, kafka, namespace, runs=[{"run_id": "main"}], trainer=trainer)

    async def run(command: str, *, expect: int = 0) -> str:
        return await say_in_thread(config, *command.split(), expect=expect)

    world = TrainerWorld(kafka, namespace, MemoryBackendSettings(type="memory", folder=folder))
    await world.open()
    await train(world, 3)
    yield run
    await world.close()


def rows(output: str) -> list[list[str]]:
    """The words of each line that begins with a number."""
    return [words for line in output.splitlines() if (words := line.split()) and words[0].isdigit()]


async def test_status_steps_and_show_report_the_training(say: Say) -> None:
    status = " ".join((await say("trainer status")).split())
    for part in ("closed steps 3", "open step –", "head 3", "serving 3", "last step 3: version 2 → 3, 3 trajectories"):
        assert part in status
    assert [row[:6] for row in rows(await say("trainer steps"))] == [
        [str(step), "completed", str(step - 1), str(step), "3", "0"] for step in (1, 2, 3)
    ]
    assert [row[0] for row in rows(await say("trainer steps --last 1"))] == ["3"]
    output = await say("trainer show 2")
    assert output.index("StepStarted(") < output.index("StepCompleted(") < output.index("PolicyVersion(")
    assert "run 'main' has no step 4; see `rollbus trainer steps`" in await say("trainer show 4", expect=1)


async def test_status_shows_the_open_step(say: Say, kafka: str, namespace: str) -> None:
    step = StepStarted(
        run_id="main",
        model="agent",
        step=4,
        attempt=1,
        batch_hash="b4",
        batch_number=4,
        base_version=3,
        started_at_ms=0,
    )
    started_step = Publication(TRAINING_STEPS, "main", step)
    await publish_all(KafkaConnection(bootstrap_servers=kafka), namespace, [started_step])
    assert "open step step 4, attempt 1: from version 3, batch b4" in " ".join((await say("trainer status")).split())


async def test_a_pause_holds_with_its_newest_reason_until_it_is_taken_back(say: Say) -> None:
    for reason in ("looking", "still"):
        assert "`rollbus trainer resume` continues it" in await say(f"trainer pause --reason {reason}")
        assert f"paused {reason}" in " ".join((await say("trainer status")).split())
    for _ in range(2):
        assert await say("trainer resume") == "the run continues\n"
        assert "paused –" in " ".join((await say("trainer status")).split())
    assert "Missing option '--reason'" in await say("trainer pause", expect=2)


async def test_a_repeated_promotion_or_rollback_shows_once_in_the_list(say: Say) -> None:
    for _ in range(2):
        assert await say("policy promote 1 --reason steadier") == "version 1 is served\n"
    assert [row[2:-1] for row in rows(await say("policy list"))] == [
        ["served"], ["serving", "serving"], ["served"], ["served", "head"]
    ]  # fmt: skip
    for given_up in ("3, 2", "none"):
        assert await say("policy rollback 1 --reason short") == (
            f"version 1 is served and trained on; rolled back: {given_up}; start the trainer again: `rollbus start`\n"
        )
    assert [row[2:-1] for row in rows(await say("policy list"))] == [
        ["served"], ["serving", "serving,", "head"], ["rolled", "back"], ["rolled", "back"]
    ]  # fmt: skip
    output = await say("policy show 3")
    assert "StepCompleted(" in output
    assert output.index("state='serving'") < output.index("state='rolled_back'") < output.index("reason='short'")
    assert "version 3 of 'agent' was rolled back" in await say("policy promote 3 --reason a", expect=1)
    assert "those are: 1, 0" in await say("policy rollback 2 --reason a", expect=1)
    assert "model 'agent' has no version 9; see `rollbus policy list`" in await say("policy show 9", expect=1)
