"""The loop on the log with a real service: five steps, a kill in the third, and what is learned."""

import asyncio
import os
import signal
import statistics
import sys
import time
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from openai import AsyncOpenAI

import rollbus
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.tether import tethered
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.records.steps import StepCompleted, StepStarted
from rollbus.stack_settings import HOST
from rollbus.trainer.backends.art_client import ArtClient
from rollbus.trainer.backends.model_settings import ArtServerSettings
from rollbus.trainer.backends.tinker.settings import TinkerAccess
from rollbus.trainer.ledger.reading_kafka import read_ledger
from rollbus.trainer.settings import TinkerBackendSettings, TrainerSettings
from tests.console import ROLLBUS
from tests.services.trainer.kafka import TrainerWorld

pytestmark = [pytest.mark.tinker, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
MODEL = "agent"
STEPS, KILLED_STEP = 5, 3
GROUP_SIZE, GROUPS_PER_STEP = 8, 4
ANSWER_TOKENS = 6
DEADLINE_S = 400.0


@dataclass(slots=True)
class Loop:
    """The processes of one rollbus, by noun."""

    settings: Path
    namespace: str
    kafka: str
    control_url: str
    model_url: str
    running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    @property
    def mark(self) -> Path:
        """While it is there, the art-server dies after its next optimizer step."""
        return self.settings.with_name("die")

    async def start(self, noun: str) -> None:
        command = [str(ROLLBUS)]
        if noun == "art-server":
            command = [sys.executable, "-m", "tests.tinker.dying_process", str(self.mark), "rollbus"]
        with self.settings.with_name(f"{noun}.log").open("ab") as log:
            self.running[noun] = await asyncio.create_subprocess_exec(
                *tethered(), *command, "--config", str(self.settings), noun, "run", stdout=log, stderr=log, cwd=ROOT
            )

    async def kill(self, noun: str) -> None:
        process = self.running.pop(noun)
        if process.returncode is None:
            process.kill()
        await process.wait()

    async def wait_for_head(self, version: int) -> None:
        """Wait until the newest version is this one, and serves."""
        client = ArtClient(self.control_url)
        try:
            deadline = time.monotonic() + DEADLINE_S
            while not await client.is_healthy() or (await client.versions()).serving != version:
                for noun, process in self.running.items():
                    log = self.settings.with_name(f"{noun}.log").read_text()[-6000:]
                    assert process.returncode is None, f"{noun} ended:\n{log}"
                    assert time.monotonic() < deadline, f"no version {version} after {DEADLINE_S:.0f} s:\n{log}"
                await asyncio.sleep(0.3)
        finally:
            await client.close()

    async def play_step(self, number: int) -> float:
        """Play the groups of a step; return the mean reward."""
        recorder = rollbus.init(
            bootstrap_servers=self.kafka, namespace=self.namespace, producer="letters", logprobs="force"
        )
        try:
            async with AsyncOpenAI(base_url=self.model_url, api_key="none") as plain:
                client = recorder.wrap(plain, hide_injected=False)
                rewards: list[float] = []
                for group in range(GROUPS_PER_STEP):
                    members = (play(recorder, client, f"g{number}-{group}", attempt) for attempt in range(GROUP_SIZE))
                    rewards += await asyncio.gather(*members)
            assert await asyncio.to_thread(recorder.flush, 120.0)
            return statistics.fmean(rewards)
        finally:
            await asyncio.to_thread(recorder.close)


async def play(recorder: rollbus.Recorder, client: Any, group: str, attempt: int) -> float:
    """An episode of one turn, whose reward is the share of even tokens."""
    async with recorder.episode(task="letters", example_id=group, group_id=group, group_size=GROUP_SIZE) as episode:
        answer = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "choose a letter"}],
            max_tokens=ANSWER_TOKENS,
            seed=zlib.crc32(f"{group} {attempt}".encode()) % 2**31,
        )
        token_ids = answer.choices[0].token_ids
        reward = sum(token_id % 2 == 0 for token_id in token_ids) / len(token_ids)
        episode.reward(reward)
        return float(reward)


@pytest.fixture
async def loop(kafka: str, skyrl: str, base_model: Path, namespace: str, tmp_path: Path) -> AsyncIterator[Loop]:
    control_port, model_port = find_free_port(), find_free_port()
    settings = tmp_path / "rollbus.yaml"
    settings.write_text(
        yaml.safe_dump(
            {
                "namespace": namespace,
                "insecure": True,
                "kafka": {"bootstrap_servers": kafka},
                "stack": {"data_dir": str(tmp_path / "data"), "art_port": control_port, "model_port": model_port},
                "worker": {"event_partitions": 2, "tick_interval_ms": 200},
                "runs": [
                    {
                        "run_id": "letters",
                        "model": MODEL,
                        "grouping": {"group_size": GROUP_SIZE},
                        "batching": {"groups_per_step": GROUPS_PER_STEP, "max_off_policy_steps": 8},
                    }
                ],
                "art_server": {
                    "model": MODEL,
                    "base_model": str(base_model),
                    "directory": str(tmp_path / "art"),
                    "max_tokens": 128,
                    "keep_versions": 2,
                    "tinker": {"url": skyrl, "base_model": str(base_model), "lora_rank": 8},
                },
                "trainer": {"train": {"loss": "importance_sampling", "learning_rate": 0.05}},
            }
        )
    )
    create = await asyncio.create_subprocess_exec(ROLLBUS, "--config", str(settings), "topics", "create", cwd=tmp_path)
    assert await create.wait() == 0
    loop = Loop(settings, namespace, kafka, f"http://{HOST}:{control_port}", f"http://{HOST}:{model_port}/v1")
    yield loop
    for noun in list(loop.running):
        await loop.kill(noun)


async def test_five_steps_with_a_kill_give_five_versions_and_a_higher_reward(loop: Loop) -> None:
    """The art-server dies after the optimizer step, when the service has moved the weights and nothing knows of it."""
    for noun in ("worker", "art-server", "trainer"):
        await loop.start(noun)
    await loop.wait_for_head(0)
    rewards = []
    for number in range(1, STEPS + 1):
        if number == KILLED_STEP:
            loop.mark.touch()
        rewards.append(await loop.play_step(number))
        if number == KILLED_STEP:
            died = await asyncio.wait_for(loop.running.pop("art-server").wait(), DEADLINE_S)
            assert died == -signal.SIGKILL
            await loop.kill("trainer")
            for noun in ("art-server", "trainer"):
                await loop.start(noun)
        await loop.wait_for_head(number)
    rewards.append(await loop.play_step(STEPS + 1))
    print("mean reward of each version:", [round(reward, 3) for reward in rewards])
    assert rewards[-1] > rewards[0] + 0.1

    ledger = await read_ledger(KafkaConnection(bootstrap_servers=loop.kafka), loop.namespace)
    steps = [record for record in ledger if isinstance(record, StepCompleted)]
    assert [(step.step, step.base_version, step.policy_version) for step in steps] == [
        (number, number - 1, number) for number in range(1, STEPS + 1)
    ]
    assert len({step.batch_hash for step in steps}) == STEPS
    attempts = [record.attempt for record in ledger if isinstance(record, StepStarted) and record.step == KILLED_STEP]
    assert attempts == [1, 2]
    for step in steps:
        assert step.metrics["source_difference_max"] < 1e-3, "what was sampled is what is trained"
        assert step.metrics["tokens_sent"] > step.metrics["tokens_trained"] > 0
        assert step.metrics["forward_backward_seconds"] > 0


class TinkerWorld(TrainerWorld):
    """Trainers that drive the service themselves."""

    mark: Path
    art_server: ArtServerSettings

    def settings(self) -> TrainerSettings:
        return super().settings().model_copy(update={"art_server": self.art_server})

    async def start(self, die_at: str = "") -> asyncio.subprocess.Process:
        """Start a trainer that dies after an optimizer step while the mark is there."""
        command = ("-m", "tests.tinker.dying_process", str(self.mark), "trainer", self.settings().model_dump_json())
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, stderr=asyncio.subprocess.PIPE, cwd=ROOT, env=environment
        )
        self.processes.append(process)
        return process


async def test_a_trainer_killed_at_the_service_trains_each_batch_once(
    kafka: str, skyrl: str, base_model: Path, namespace: str, tmp_path: Path
) -> None:
    world = TinkerWorld(kafka, namespace, TinkerBackendSettings(type="tinker"))
    world.art_server = ArtServerSettings(
        base_model=base_model,
        directory=tmp_path / "tinker",
        max_tokens=128,
        tinker=TinkerAccess(url=skyrl, base_model=str(base_model), lora_rank=8),
    )
    world.mark = tmp_path / "die"
    await world.open()
    try:
        await world.add_batches(KILLED_STEP - 1)
        trainer = await world.start()
        await world.wait_for_steps(KILLED_STEP - 1)
        world.mark.touch()
        await world.add_batches(STEPS - KILLED_STEP + 1)
        assert await asyncio.wait_for(trainer.wait(), DEADLINE_S) == -signal.SIGKILL
        trainer = await world.start()
        await world.wait_for_steps(STEPS)
        trainer.terminate()
        assert await asyncio.wait_for(trainer.wait(), DEADLINE_S) == 0
        await world.check()
    finally:
        await world.close()
