"""The game's agents on a real stack whose versions earn their traffic: processes as a user starts them.

The art-server can be told to turn the sign of every advantage: its next version is then worse than its base.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rollbus.demo.game.agents import AgentSettings
from rollbus.local.process.tether import tethered
from rollbus.runtime.kafka.decisions import read_decisions
from rollbus.schemas.codec import decode
from rollbus.schemas.records.control import ConfigApplied
from rollbus.schemas.records.delivery import PolicyDecision
from rollbus.schemas.records.trajectories import Score, Trajectory
from rollbus.schemas.topics import DELIVERY_LOG, SCORES, TRAJECTORIES
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.settings import Settings
from rollbus.stack_settings import HOST
from rollbus.streams.exactly_once.batch import Partition
from rollbus.streams.kafka.settings import StreamSettings
from rollbus.streams.stages.delivery.stage import DeliveryStage
from tests.console import ROLLBUS
from tests.faults.log_contents import read_entries
from tests.services.art.fixtures import MODEL, ArtServer
from tests.services.commands import say_installed
from tests.services.streams.fixtures import read_topic, stream_settings
from tests.stepper import Stepper
from tests.streams.simulation.naive import by_round

RUN = "game"
WAIT_S = 240.0
PARTS = {
    "worker": ("worker", "run"),
    "trainer": ("trainer", "run"),
    "webhook": ("log-to", "webhook"),
    "proxy": ("proxy", "run"),
}
DELIVERY = {"alpha": 0.1, "reward_low": -0.25, "wait_ms": 0, "metrics": []}


def settings_document(
    kafka: str, namespace: str, *, learning_rate: float, episodes_per_step: int, delivery: dict[str, Any]
) -> dict[str, Any]:
    """Return the settings file, without the trainer's backend."""
    return {
        "namespace": namespace,
        "kafka": {"bootstrap_servers": kafka},
        "worker": {"event_partitions": 2, "tick_interval_ms": 200},
        "runs": [
            {
                "run_id": RUN,
                "model": MODEL,
                "grouping": {"group_size": 4, "min_group_size": 2, "advantage": "mean_std"},
                "batching": {"groups_per_step": episodes_per_step // 4, "max_off_policy_steps": 8},
                "delivery": DELIVERY | delivery,
            }
        ],
        "trainer": {
            "serve": "after_evaluation",
            "train": {"learning_rate": learning_rate, "loss": "cispo", "ratio_max": 5.0},
        },
    }


@dataclass(slots=True)
class DeliveryWorld:
    """A settings file, an art-server, and processes by name; `close` ends them all."""

    server: ArtServer
    document: dict[str, Any]
    folder: Path
    hook: str
    agents: Sequence[str] = ("-m", "rollbus.demo.game.agents")
    """What Python runs as the agents."""
    proxy_port: int | None = None
    """Where the agents find a proxy, if there is one."""
    running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    heard_ms: dict[int, int] = field(default_factory=dict)
    """When the server was known to route by a decision, by its number."""

    @property
    def settings_file(self) -> Path:
        return self.folder / "rollbus.yaml"

    @property
    def streams(self) -> StreamSettings:
        return stream_settings(self.document["kafka"]["bootstrap_servers"], self.document["namespace"])

    async def open(self, *, trains: str = "") -> None:
        """Write the settings, create the topics, start everything."""
        self.server.shared = self.document
        self.write_settings()
        await self.say("topics create")
        await asyncio.to_thread(self.server.start, die_at=trains)
        for name in PARTS:
            if name != "proxy" or self.proxy_port is not None:
                await self.start(name)
        await self.start_agents()

    def write_settings(self, **train: Any) -> None:
        """Write the file; `train` changes how the next trainer trains."""
        trainer = self.document["trainer"]
        backend = {"type": "art-server", "url": self.server.url}
        changed = {"trainer": {**trainer, "backend": backend, "train": trainer["train"] | train}}
        self.settings_file.write_text(yaml.safe_dump(self.document | changed))

    async def start(self, name: str, *more: str) -> None:
        if name == "proxy":
            more = ("--upstream", self.server.model_url, "--port", str(self.proxy_port))
        await self._start(name, ROLLBUS, "--config", str(self.settings_file), *PARTS[name], *more)

    async def start_agents(self, **changes: Any) -> None:
        values: dict[str, Any] = {"group_size": 4, "episodes_per_s": 40.0, "games_at_once": 32}
        settings = AgentSettings(
            model_url=f"http://{HOST}:{self.proxy_port}/v1" if self.proxy_port else self.server.model_url,
            bootstrap_servers=self.document["kafka"]["bootstrap_servers"],
            namespace=self.document["namespace"],
            **(values | changes),
        )
        await self._start("agents", sys.executable, *self.agents, json.dumps(asdict(settings)))

    async def _start(self, name: str, *command: str) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ROLLBUS_")}
        environment |= {"OMP_NUM_THREADS": "1", "ROLLBUS_WEBHOOK_URL": self.hook}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = await asyncio.create_subprocess_exec(
                *tethered(), *command, stdout=log, stderr=log, cwd=self.folder, env=environment
            )

    async def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        process = self.running.pop(name)
        process.send_signal(number)
        await process.wait()

    async def close(self) -> None:
        for name, process in list(self.running.items()):
            if process.returncode is None:
                await self.kill(name)
        await asyncio.to_thread(self.server.stop, signal.SIGKILL)

    async def say(self, command: str, *, expect: int = 0) -> str:
        """Run a command of the console script; return what it prints."""
        return await say_installed(self.settings_file, command, expect=expect)

    # What is on the log

    async def decisions(self) -> list[PolicyDecision]:
        settings = self.streams
        return await read_decisions(settings.kafka, settings.namespace, MODEL)

    async def until(self, condition: Callable[[list[PolicyDecision]], bool], what: str) -> list[PolicyDecision]:
        """Wait for decisions, while every process lives; return them."""

        async def look() -> list[PolicyDecision]:
            return await self.decisions()

        return await self.until_found(look, condition, what)

    async def wait_until_heard(self, decision: PolicyDecision) -> None:
        """Wait until the server routes by a decision: how long that takes is the machine's affair."""
        line = f"decision {decision.number}: {decision.action} {decision.version},"

        async def read_log() -> list[str]:
            return self.server.launcher.log.read_text().splitlines()

        await self.until_found(read_log, lambda lines: any(line in logged for logged in lines), f"hearing {line}")
        self.heard_ms[decision.number] = wall_clock_ms()

    async def until_scored(self, version: int, count: int) -> None:
        """Wait until so many episodes of a version have their scores."""

        def has_scores(scores: list[Score]) -> bool:
            return sum(score.served_versions == (version,) for score in scores) >= count

        await self.until_found(self.scores, has_scores, f"{count} episodes of version {version}")

    async def until_found(
        self, look: Callable[[], Awaitable[list[Any]]], condition: Callable[[list[Any]], bool], what: str
    ) -> list[Any]:
        records: list[Any] = []
        try:
            async with asyncio.timeout(WAIT_S):
                while not condition(records := await look()):
                    for name, process in self.running.items():
                        assert process.returncode is None, f"{name} ended:\n{self.log(name)}"
                    await asyncio.sleep(0.3)
        except TimeoutError:
            logs = "\n".join(f"-- {name}\n{self.log(name)}" for name in self.running)
            raise AssertionError(f"{what} did not happen; last: {records[-3:]}\n{logs}") from None
        return records

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-2000:]

    async def scores(self) -> list[Score]:
        return [record for record in await read_topic(self.streams, SCORES.name) if isinstance(record, Score)]

    async def check(self) -> None:
        """No episode on an unknown version, no decision lost or made twice, and a replay says the same."""
        scores, decisions = await self.scores(), await self.decisions()
        assert [decision.number for decision in decisions] == list(range(1, len(decisions) + 1))
        known_versions = {version for decision in decisions for version in (decision.serving, decision.canary)}
        assert {version for score in scores for version in score.served_versions} <= known_versions
        for stop in decisions:
            if stop.action == "quarantine":
                later_ids = {
                    trajectory.trajectory_id
                    for trajectory in await read_topic(self.streams, TRAJECTORIES.name)
                    if isinstance(trajectory, Trajectory) and trajectory.started_at_ms > self.heard_ms[stop.number]
                }
                assert later_ids, "nothing came after the stop"
                assert not [s for s in scores if s.trajectory_id in later_ids and stop.version in s.served_versions]
        run = Settings.model_validate(self.document).run(RUN)
        replay = Stepper(DeliveryStage(run))
        place = Partition(DELIVERY_LOG.full_name(self.streams.namespace), 0)
        entries = (await read_entries(self.streams, [place]))[place]
        records = [decode(entry.value) for entry, _ in by_round(entries, takes_early=False)]
        assert any(isinstance(record, ConfigApplied) for record in records)
        outputs = await asyncio.to_thread(replay.feed, *records)
        again = [output for output in outputs if isinstance(output, PolicyDecision)]
        assert again[: len(decisions)] == decisions
        later = await self.until(lambda decisions: len(decisions) >= len(again), "what the replay has decided")
        assert later[: len(again)] == again
