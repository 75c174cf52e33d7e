"""The whole loop through the command line: every process restarts once, and no episode is lost or doubled."""

import asyncio
import os
import signal
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka import AIOKafkaProducer
from openai import AsyncOpenAI

import rollbus
from rollbus.consumers.clickhouse.questions.saved_questions import ask, run_query
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.local.process.tether import tethered
from rollbus.schemas.topics import EPISODE_EVENTS
from tests.console import ROLLBUS
from tests.services.art.fixtures import MODEL, ArtServer

pytestmark = pytest.mark.services

RUN = "letters"
GROUP_SIZE = 4
GROUPS_PER_STEP = 4
READY = {"worker": "worker runs stages", "sink": "sink started", "trainer": "trainer open"}
"""What each part logs once it works."""
ROUNDS = tuple(READY)
"""Who is restarted in the middle of the round's traffic."""
EPISODES = len(ROUNDS) * 2 * GROUPS_PER_STEP * GROUP_SIZE
DEADLINE_S = 240.0
TURNS = 2


@dataclass(slots=True)
class Processes:
    """The parts of a running rollbus, by noun, each started as a user starts it."""

    settings: Path
    logs: Path
    running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    async def start(self, noun: str) -> None:
        (self.logs / f"{noun}.log").unlink(missing_ok=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ROLLBUS_")}
        with (self.logs / f"{noun}.log").open("ab") as log:
            self.running[noun] = await asyncio.create_subprocess_exec(
                *tethered(), ROLLBUS, "--config", str(self.settings), noun, "run",
                stdout=log, stderr=log, cwd=self.logs, env={**environment, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip

    async def stop(self, noun: str) -> None:
        await self.wait_until_ready(noun)
        process = self.running.pop(noun)
        process.send_signal(signal.SIGTERM)
        status = await asyncio.wait_for(process.wait(), 120)
        assert status == 0, f"{noun} ended with {status}:\n{self.make_log(noun)}"

    async def restart(self, noun: str) -> None:
        await self.stop(noun)
        await self.start(noun)

    async def wait_until_ready(self, noun: str) -> None:
        """A process that gets SIGTERM while it still imports ends by it, as any program does."""
        deadline = time.monotonic() + DEADLINE_S
        while READY[noun] not in self.make_log(noun):
            self.require_alive()
            assert time.monotonic() < deadline, f"{noun} did not get ready:\n{self.make_log(noun)}"
            await asyncio.sleep(0.1)

    def make_log(self, noun: str) -> str:
        return (self.logs / f"{noun}.log").read_text()[-4000:]

    def require_alive(self) -> None:
        for noun, process in self.running.items():
            assert process.returncode is None, f"{noun} ended:\n{self.make_log(noun)}"


@asynccontextmanager
async def running_processes(settings: Path, logs: Path) -> AsyncIterator[Processes]:
    processes = Processes(settings, logs)
    try:
        for noun in ROUNDS:
            await processes.start(noun)
        yield processes
    finally:
        for noun in list(processes.running):
            process = processes.running[noun]
            if process.returncode is None:
                process.kill()
                await process.wait()


@dataclass(frozen=True, slots=True)
class Loop:
    """Where this test's rollbus lives."""

    settings: Path
    namespace: str
    kafka: str
    clickhouse: ClickHouseSettings

    def fates(self) -> dict[tuple[str, str], tuple[int, int]]:
        """(fate, reason) → trajectories, and how many of them were trained more than once."""
        rows = run_query(self.clickhouse, "fate_of_every_trajectory", {"namespace": self.namespace, "run": RUN}).rows
        return {(fate, reason): (count, twice) for fate, _, reason, count, _, twice in rows}

    def count(self, table: str, condition: str = "1") -> int:
        statement = f"SELECT count() FROM {table} FINAL WHERE namespace = {{namespace:String}} AND {condition}"
        return int(ask(self.clickhouse, statement, {"namespace": self.namespace}).rows[0][0])


@pytest.fixture
async def loop(
    kafka: str, clickhouse: tuple[str, int], own_art_server: ArtServer, namespace: str, tmp_path: Path
) -> Loop:
    """Settings for this test alone, its topics created by the command line, and an ART server of its own."""
    own_art_server.start()
    database = namespace.strip(".").replace("-", "_")
    host, port = clickhouse
    settings = tmp_path / "rollbus.yaml"
    settings.write_text(
        yaml.safe_dump(
            {
                "namespace": namespace,
                "kafka": {"bootstrap_servers": kafka},
                "worker": {"event_partitions": 2, "tick_interval_ms": 200},
                "runs": [
                    {
                        "run_id": RUN,
                        "model": MODEL,
                        "grouping": {"group_size": GROUP_SIZE},
                        "batching": {"groups_per_step": GROUPS_PER_STEP, "max_off_policy_steps": 8},
                    }
                ],
                "trainer": {
                    "backend": {"type": "art-server", "url": own_art_server.url},
                    "train": {"learning_rate": 1e-3},
                },
                "clickhouse": {"host": host, "port": port, "database": database},
                "sink": {"linger_ms": 100},
            }
        )
    )
    command = [ROLLBUS, "--config", str(settings), "topics", "create"]
    create = await asyncio.create_subprocess_exec(*command, cwd=settings.parent)
    assert await create.wait() == 0
    return Loop(settings, namespace, kafka, ClickHouseSettings(host=host, port=port, database=database))


async def play(recorder: rollbus.Recorder, client: Any, group: str, attempt: int) -> None:
    """An episode of several turns whose reward is the share of even tokens: there is something to learn."""
    async with recorder.episode(task="letters", example_id=group, group_id=group, group_size=GROUP_SIZE) as episode:
        messages: list[Any] = [{"role": "user", "content": f"choose a letter {group}"}]
        tokens: list[int] = []
        for turn in range(TURNS):
            seed = zlib.crc32(f"{group} {attempt} {turn}".encode())
            answer = await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4, seed=seed)
            messages += [{"role": "assistant", "content": answer.choices[0].message.content or ""}]
            messages += [{"role": "user", "content": "again"}]
            tokens += answer.choices[0].token_ids
        episode.reward(sum(token % 2 == 0 for token in tokens) / len(tokens))


async def play_groups(loop: Loop, model_url: str, groups: list[str]) -> dict[str, int]:
    """Play every attempt of every group; returns the recorder's counters once all is with the broker."""
    recorder = rollbus.init(
        bootstrap_servers=loop.kafka, namespace=loop.namespace, producer="letters", logprobs="force"
    )
    try:
        async with AsyncOpenAI(base_url=model_url, api_key="none") as plain:
            client = recorder.wrap(plain, hide_injected=False)
            for group in groups:
                await asyncio.gather(*(play(recorder, client, group, attempt) for attempt in range(GROUP_SIZE)))
        assert await asyncio.to_thread(recorder.flush, 120.0)
        return dict(recorder.counters)
    finally:
        await asyncio.to_thread(recorder.close)


async def wait_until(condition: Callable[[], bool], what: str, processes: Processes) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not await asyncio.to_thread(condition):
        processes.require_alive()
        logs = "\n".join(processes.make_log(noun) for noun in ROUNDS)
        assert time.monotonic() < deadline, f"{what} did not happen within {DEADLINE_S:.0f} s:\n{logs}"
        await asyncio.sleep(0.3)


async def test_every_part_restarts_once_and_the_counts_add_up(
    loop: Loop, own_art_server: ArtServer, tmp_path: Path
) -> None:
    emitted = 0
    async with running_processes(loop.settings, tmp_path) as processes:
        for number, noun in enumerate(ROUNDS):
            groups = [f"g{number}-{index}" for index in range(2 * GROUPS_PER_STEP)]
            playing = asyncio.create_task(play_groups(loop, own_art_server.model_url, groups))
            await asyncio.sleep(0.5)
            await processes.restart(noun)
            counters = await playing
            assert counters["events_emitted"] == counters["events_delivered"], counters
            emitted += counters["events_emitted"]
        async with AIOKafkaProducer(bootstrap_servers=loop.kafka) as producer:
            await producer.send_and_wait(EPISODE_EVENTS.full_name(loop.namespace), b"no record", key=b"junk")

        def settled() -> bool:
            fates = loop.fates()
            (pending, _), (open_episodes, _) = (fates.get((fate, ""), (0, 0)) for fate in ("pending", "open"))
            is_full = fates[("all", "")][0] == EPISODES and not open_episodes
            return is_full and pending < GROUPS_PER_STEP * GROUP_SIZE

        await wait_until(lambda: "schema_migrations" in tables(loop), "the sink's tables", processes)
        await wait_until(settled, f"a fate for {EPISODES} trajectories", processes)
        await wait_until(lambda: loop.count("dead_letters") >= 1, "the junk's dead letter", processes)
        for noun in ROUNDS:
            await processes.stop(noun)

    fates = loop.fates()
    assert fates[("all", "")] == (EPISODES, 0)
    assert sum(count for (fate, _), (count, _) in fates.items() if fate != "all") == EPISODES
    assert {reason for fate, reason in fates if fate == "dropped"} <= {"no_signal", "superseded"}
    trained = fates[("trained", "")][0]
    assert trained == loop.count("step_members", "fate = 'trained'")
    assert loop.count("events") == emitted
    assert loop.count("turns", "trainable") == EPISODES * TURNS
    steps = loop.count("steps", "state = 'completed'")
    client = own_art_server.client()
    versions = await client.versions()
    await client.close()
    assert versions.head == versions.serving == steps > 0


def tables(loop: Loop) -> set[str]:
    names = ask(loop.clickhouse, "SELECT name FROM system.tables WHERE database = currentDatabase()").rows
    return {str(name) for (name,) in names}
