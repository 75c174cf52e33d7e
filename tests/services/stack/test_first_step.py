"""A stranger's traffic reaches its first training step without a settings file.

As a new user does it: an empty folder, the installed commands, README's way to record, verdicts from another process a
few seconds later. The environment only names free ports and a model so small that the test is short.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rollbus.local.process.ports import find_free_port
from rollbus.local.process.tether import tethered
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.schemas.records.drops import Drop
from rollbus.schemas.records.groups import TrainingBatch
from rollbus.schemas.records.steps import StepCompleted
from rollbus.schemas.topics import BATCHES, DROPS, TRAINING_STEPS, Topic
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.kafka.topics import partitions_of
from tests.console import ROLLBUS
from tests.installs import own_environment, run
from tests.services.art.fixtures import Launcher
from tests.services.streams.fixtures import read_topic
from tests.waiting import wait_until

pytestmark = [pytest.mark.services, pytest.mark.timeout(600)]

PARTS = ("kafka", "clickhouse", "art", "model")
VERDICT_DELAY_S = 3
AGENT = """
import json, sys
import rollbus
from openai import OpenAI

url, kafka, task, examples, attempts = sys.argv[1:]
rb = rollbus.init(bootstrap_servers=kafka, producer="shop-agent")
client = rb.wrap(OpenAI(base_url=url, api_key=rollbus.read_token(url)))
for number in range(int(examples) * int(attempts)):
    ticket = number // int(attempts)
    with rb.episode(task=task, example_id=f"{task}-{ticket}") as episode:
        messages = [{"role": "user", "content": f"It is {number} o'clock. Ticket {ticket}: where is it?"}]
        client.chat.completions.create(model="agent", messages=messages, max_tokens=2)
    print(json.dumps([episode.id, number]), flush=True)
rb.close()
"""
"""It records as README shows, and knows no reward."""
VERDICTS = """
import json, sys
import rollbus

rb = rollbus.init(bootstrap_servers=sys.argv[1], producer="shop")
for episode_id, reward, name in json.load(sys.stdin):
    rb.feedback(episode_id, reward=reward, key="user-17", **({"name": name} if name else {}))
rb.close()
"""


@dataclass(slots=True)
class NewUser:
    """An empty folder, in which `rollbus up` was said, and what runs besides."""

    folder: Path
    ports: dict[str, int]
    environment: dict[str, Any]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def kafka(self) -> str:
        return f"127.0.0.1:{self.ports['kafka']}"

    @property
    def model_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['model']}/v1"

    def rollbus(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run(ROLLBUS, *words, cwd=self.folder, check=check, **self.environment)

    @contextmanager
    def running(self, *nouns: str) -> Iterator[None]:
        """Run the parts, each as in a terminal of its own."""
        for noun in nouns:
            with (self.folder / f"{noun}.log").open("ab") as log:
                command, environment = [*tethered(), ROLLBUS, noun, "run"], own_environment() | self.environment
                self.processes[noun] = subprocess.Popen(
                    command, cwd=self.folder, env=environment, stdout=log, stderr=log
                )
        try:
            yield
        finally:
            for noun in nouns:
                self.processes[noun].terminate()
                self.processes.pop(noun).wait(120)

    def play(self, task: str, *, examples: int, attempts: int = 1, model_url: str = "") -> dict[str, int]:
        """Let the agent answer tickets; return the number of each episode."""
        words = (model_url or self.model_url, self.kafka, task, examples, attempts)
        played = run(sys.executable, "-c", AGENT, *words, cwd=self.folder, **self.environment)
        return dict(map(json.loads, played.stdout.splitlines()))

    def report(self, verdicts: dict[str, float], names: tuple[str, ...]) -> None:
        """Report verdicts from another process, under these names in turn; an empty one is feedback's own."""
        rows = [
            (episode_id, reward, names[place % len(names)])
            for place, (episode_id, reward) in enumerate(sorted(verdicts.items()))
        ]
        reported = subprocess.run(
            [sys.executable, "-c", VERDICTS, self.kafka],
            input=json.dumps(rows), text=True, capture_output=True, cwd=self.folder, env=own_environment(), timeout=120,
        )  # fmt: skip
        assert reported.returncode == 0, reported.stderr

    def read(self, topic: Topic) -> list[Any]:
        settings = StreamSettings(kafka=KafkaConnection(bootstrap_servers=self.kafka))
        return asyncio.run(read_topic(settings, topic.name, partitions_of(topic, settings)))

    def trained(self, episodes: Container[str]) -> dict[str, float]:
        """Return the reward of each of these episodes that is in a completed step."""
        rewards = {
            (batch.batch_hash, member.trajectory_id): (member.episode_id, member.reward)
            for batch in self.read(BATCHES)
            if isinstance(batch, TrainingBatch)
            for group in batch.groups
            for member in group.members
            if member.episode_id in episodes
        }
        steps = [step for step in self.read(TRAINING_STEPS) if isinstance(step, StepCompleted)]
        places = [(step.batch_hash, member.trajectory_id) for step in steps for member in step.trained]
        return dict(rewards[place] for place in places if place in rewards)

    def group_sizes(self, episodes: Container[str]) -> list[int]:
        groups = [group for batch in self.read(BATCHES) for group in batch.groups]
        return [len(group.members) for group in groups if group.members[0].episode_id in episodes]

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))


@pytest.fixture(scope="module")
def user(art_launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NewUser]:
    """A stack on free ports, with a tiny model."""
    base, words = tmp_path_factory.mktemp("first"), "system user assistant ticket"
    base_model = art_launcher.make_model(base / "model", words, max_tokens=128, seed=5)
    (folder := base / "shop").mkdir()
    ports = {name: find_free_port() for name in PARTS}
    environment: dict[str, Any] = {f"ROLLBUS_STACK__{name.upper()}_PORT": str(port) for name, port in ports.items()} | {
        "ROLLBUS_ART_SERVER__BASE_MODEL": str(base_model),
        "OMP_NUM_THREADS": "1",
    }
    new_user = NewUser(folder, ports, environment)
    before = os.umask(0o022)  # as a user's shell has it
    try:
        new_user.rollbus("up")
        new_user.rollbus("topics", "create")
        yield new_user
    finally:
        os.umask(before)
        new_user.rollbus("down")


def test_tickets_that_come_once_are_trained_by_verdicts_that_come_later(user: NewUser) -> None:
    with user.running("worker", "trainer"):
        episodes = user.play("refund", examples=40)
        wait_for_seconds(user, VERDICT_DELAY_S)
        verdicts = {episode_id: float(number % 3 == 0) for episode_id, number in episodes.items()}
        user.report(verdicts, names=("thumbs", "", "solved"))
        wait_until(lambda: len(user.trained(episodes)) == 40, f"not all were trained:\n{user.logs()}", within_s=240)
    assert user.trained(episodes) == verdicts
    assert [drop for drop in user.read(DROPS) if isinstance(drop, Drop)] == []


def test_repeated_attempts_are_compared_with_one_another(user: NewUser) -> None:
    with user.running("worker", "trainer"):
        episodes = user.play("repeated", examples=16, attempts=8)
        verdicts = {episode_id: float(number % 3 == 0) for episode_id, number in episodes.items()}
        user.report(verdicts, names=("thumbs",))
        wait_until(lambda: user.trained(episodes), f"no step was completed:\n{user.logs()}", within_s=240)
    assert user.trained(episodes).items() <= verdicts.items()
    assert user.group_sizes(episodes) == [8] * 16


def test_no_other_user_can_read_anything_that_the_stack_keeps(user: NewUser) -> None:
    kept_in = user.folder / ".rollbus"
    mode_by_path = {path: path.lstat().st_mode & 0o777 for path in kept_in.rglob("*") if not path.is_symlink()}
    tops = {path.relative_to(kept_in).parts[0] for path in mode_by_path}
    assert tops >= {"art", "clickhouse", "kafka", "logs", "run", "secrets"}
    assert {path: oct(mode) for path, mode in mode_by_path.items() if mode & 0o077} == {}
    assert {mode for path, mode in mode_by_path.items() if path.parent.name == "secrets"} == {0o600}


def wait_for_seconds(user: NewUser, seconds: float) -> None:
    """Let a verdict take its time, which the log counts too: none has come before."""
    ended = user.processes["worker"].wait
    with pytest.raises(subprocess.TimeoutExpired):
        ended(seconds)
