"""The course of `rollbus demo`: each part starts in its turn, in its own process, and stops at the end.

    base model → Kafka, ClickHouse, art-server → topics → worker, sink, trainer
               → evaluation before → agents play while the rest learns → drain → evaluation after → plot, answers

With `keep` the three services of the local stack stay up until `rollbus … down`; everything else always stops.
"""

import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from openai import AsyncOpenAI
from rich.console import Console

from rollbus.cli.output import show_progress
from rollbus.cli.stages import create_topics
from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.demo import base_model, processes
from rollbus.demo.base_model import WarmStartSettings
from rollbus.demo.configuration import GROUP_SIZE, MODEL, NAMESPACE, RUN, write_settings
from rollbus.demo.game.agents import AgentSettings
from rollbus.demo.show import report
from rollbus.demo.show.evaluation import GAMES, Comparison, evaluate, rate_of, schedule
from rollbus.demo.show.plot import draw
from rollbus.demo.show.status import DemoStatus, Query, read_groups, read_status
from rollbus.demo.show.view import LiveView
from rollbus.local import stack as local_stack
from rollbus.local.process import state
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import log_tail
from rollbus.local.process.settings import StackSettings
from rollbus.local.process.supervisor import Supervisor
from rollbus.schemas.credentials import NO_TOKEN, TOKEN, read_secret
from rollbus.schemas.errors import ConfigurationError, ServiceError, UnavailableError
from rollbus.schemas.kafka.connection import KafkaConnection
from rollbus.schemas.kafka.lag import LagReader, open_lag
from rollbus.schemas.records.steps import Evaluation
from rollbus.trainer.operate.publishing import publish_evaluation

POLL_S = 2.0
"""Each look asks ClickHouse three questions, on the cores that train."""
DRAIN_S = 60.0
"""Longest wait for what is in flight after the agents have ended."""
SETTLED_S = 6.0
"""Everything is done if nothing changes for so long: more than the sink's linger and a few ticks."""
MARKER = "rollbus-demo"
"""A file that marks the folder as the demo's own, which may be replaced."""
LAG_GROUPS = {
    "assembly": f"{NAMESPACE}assembly",
    "scoring": f"{NAMESPACE}scoring",
    "grouping": f"{NAMESPACE}grouping.{RUN}",
    "curriculum": f"{NAMESPACE}curriculum.{RUN}",
    "sink": f"{NAMESPACE}sink",
}


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line chooses."""

    seed: int = 0
    episodes: int = 4096
    games: int = GAMES
    """Of each evaluation."""
    episodes_per_s: float = 14.0
    time_limit_s: float = 345.0
    """For the agents' play; games that they have not begun by then are left out."""
    keep: bool = False
    data_dir: Path = Path(".rollbus/demo")

    @property
    def folder(self) -> Path:
        return self.data_dir / f"seed-{self.seed}"


@dataclass(slots=True)
class Demo:
    """One run of the demo."""

    options: DemoOptions
    console: Console
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by phase."""

    def run(self) -> Comparison:
        """Run all phases; raises UnavailableError, with the end of its log, if a part has died."""
        with self.hold_folder():
            return self._run()

    @contextmanager
    def hold_folder(self) -> Iterator[None]:
        """Hold the folder against a second demo."""
        folder = self.options.folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        busy = f"another demo plays in {folder}; wait until it ends, or choose another --seed or --data-dir"
        with state.hold_file(folder.with_name(f"{folder.name}.lock"), lambda holder: busy):
            yield

    def _run(self) -> Comparison:
        with self._timed("warm start"):
            model = self._base_model()
        stack = self._fresh_stack()
        settings_file = stack.data_dir / "settings.yaml"
        settings = write_settings(settings_file, stack, model)
        with Supervisor(log_dir=stack.log_dir) as supervisor:
            with self._timed("start"), self.console.status("starting Kafka, ClickHouse and art-server"):
                self._start_stack(supervisor, stack, settings_file)
                asyncio.run(create_topics(settings))
                query = ClickHouse(settings.clickhouse).query
                for service in processes.stage_rows(settings_file, has_tables=lambda: can_read(query)):
                    supervisor.start(service)
            with self._timed("evaluation before"):
                before = self._evaluate(stack, version=0, label="before")
            with self._timed("learning"):
                supervisor.wait()
                last = asyncio.run(self._learn(supervisor, stack, query))
            with self._timed("evaluation after"):
                after = self._evaluate(stack, version=last.version, label="after")
            for evaluation in (before, after):
                asyncio.run(publish_evaluation(settings.kafka, NAMESPACE, evaluation))
            supervisor.check()
            comparison = Comparison(before, after)
            self._report(settings.clickhouse, query, comparison, last)
        return comparison

    def _base_model(self) -> Path:
        settings = WarmStartSettings(seed=self.options.seed)
        with show_progress("teaching the base model which cells are free") as progress:
            return base_model.ensure(settings, self.options.data_dir / "models", progress)

    def _fresh_stack(self) -> StackSettings:
        """Make an empty folder, and choose free ports."""
        folder = self.options.folder
        if folder.exists():
            if not (folder / MARKER).exists():
                raise ConfigurationError(f"{folder} was not made by the demo; choose another folder with --data-dir")
            if state.read_all(folder / "run"):
                raise ConfigurationError(
                    f"the stack of an earlier demo still runs in {folder}; stop it first: "
                    f"rollbus --config {folder / 'settings.yaml'} down"
                )
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / MARKER).touch()
        names = [name for name in StackSettings.model_fields if name.endswith("_port")]
        ports = dict(zip(names, _find_free_ports(len(names)), strict=True))
        return StackSettings.model_validate({"data_dir": folder, **ports})

    def _start_stack(self, supervisor: Supervisor, stack: StackSettings, settings_file: Path) -> None:
        rows = processes.stack_rows(stack, settings_file)
        if self.options.keep:
            local_stack.up(stack, rows)
        else:
            for service in rows:
                supervisor.start(service)
            supervisor.wait()
        for service in rows:
            self.console.print(f"[green]✓[/green] {service.name:<11} {service.address}", highlight=False)

    def _evaluate(self, stack: StackSettings, *, version: int, label: str) -> Evaluation:
        async def play() -> Evaluation:
            games = schedule(self.options.seed, self.options.games)
            with show_progress(f"evaluation {label}: {MODEL}@{version}") as progress:
                async with AsyncOpenAI(base_url=stack.model_url, api_key=_token(stack), max_retries=4) as client:
                    now_ms = time.time_ns() // 1_000_000
                    return await evaluate(
                        client, MODEL, version, games, run=RUN, seed=self.options.seed, now_ms=now_ms, progress=progress
                    )

        evaluation = asyncio.run(play())
        self.console.print(f"[green]✓[/green] {label:<11} wins {rate_of(evaluation).percent()}", highlight=False)
        return evaluation

    async def _learn(self, supervisor: Supervisor, stack: StackSettings, query: Query) -> DemoStatus:
        """Let the agents play and the rest learn; return the status once nothing changes any more."""
        options = self.options
        supervisor.start(
            processes.agents_row(
                AgentSettings(
                    model_url=stack.model_url,
                    bootstrap_servers=stack.bootstrap_servers,
                    namespace=NAMESPACE,
                    model=MODEL,
                    seed=options.seed,
                    episodes=options.episodes,
                    group_size=GROUP_SIZE,
                    episodes_per_s=options.episodes_per_s,
                ),
                _token(stack),
            )
        )
        async with open_lag(KafkaConnection(bootstrap_servers=stack.bootstrap_servers)) as lag:
            with LiveView(self.console, episodes=options.episodes, time_limit_s=options.time_limit_s) as view:
                look = _Look(query, lag, view, supervisor)
                await self._wait_for_agents(look, supervisor, stack)
                return await _drain(look)

    async def _wait_for_agents(self, look: "_Look", supervisor: Supervisor, stack: StackSettings) -> None:
        deadline = time.monotonic() + self.options.time_limit_s
        while not supervisor.has_ended("agents"):
            if time.monotonic() > deadline:
                self.console.print("[yellow]time is up; the agents stop playing[/yellow]")
                break
            await look("agents play, the policy learns", may_end="agents")
        await asyncio.to_thread(supervisor.stop, "agents")
        log = stack.log_dir / "agents.log"
        if "agents are done" not in log.read_text(encoding="utf-8", errors="replace"):
            raise UnavailableError(f"the agents ended before they were done; {log_tail(log)}")

    def _report(self, clickhouse: ClickHouseSettings, query: Query, comparison: Comparison, last: DemoStatus) -> None:
        folder = self.options.folder
        draw(folder / "learning.png", read_groups(query, namespace=NAMESPACE), comparison, seed=self.options.seed)
        report.write_result(
            folder / "result.json", comparison, seed=self.options.seed, seconds=self.seconds, steps=last.steps
        )
        report.print_answers(self.console, clickhouse, namespace=NAMESPACE, run=RUN)
        report.print_comparison(self.console, comparison)
        report.print_next_steps(self.console, folder, kept=self.options.keep)
        took = ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in self.seconds.items())
        self.console.print(f"[dim]{took}[/dim]")

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[phase] = round(time.monotonic() - began, 1)


def _token(stack: StackSettings) -> str:
    return read_secret(stack.secrets_dir, TOKEN) or NO_TOKEN


@dataclass(slots=True)
class _Look:
    """Checks that all parts run, reads the counts and shows them."""

    query: Query
    lag: LagReader
    view: LiveView
    supervisor: Supervisor

    async def __call__(self, phase: str, *, may_end: str | None = None) -> DemoStatus:
        """Look once; `may_end` names a part that ends by itself."""
        try:
            self.supervisor.check()
        except UnavailableError:
            if may_end is None or not self.supervisor.has_ended(may_end):
                raise
        behind = await self._read_lags()
        status = await asyncio.to_thread(read_status, self.query, namespace=NAMESPACE, run=RUN, lag=behind)
        self.view.show(status, phase=phase)
        await asyncio.sleep(POLL_S)
        return status

    async def _read_lags(self) -> dict[str, int]:
        """Return the lag of each consumer that has begun, by its name for people."""
        try:
            groups = await self.lag.read(dict.fromkeys(LAG_GROUPS.values()))
        except UnavailableError:  # only a number on a screen; `supervisor.check` notices a dead Kafka
            return {}
        return {name: groups[group].lag for name, group in LAG_GROUPS.items() if groups[group].partitions}


async def _drain(look: _Look) -> DemoStatus:
    """Wait until every batch has been trained and nothing has moved for a while."""
    began = moved = time.monotonic()
    status = await look("the last batches are trained")
    while True:
        following = await look("the last batches are trained")
        now = time.monotonic()
        if following.progress() != status.progress():
            moved = now
        status = following
        if status.is_drained and now - moved > SETTLED_S:
            return status
        if now - began > DRAIN_S:
            raise UnavailableError(
                f"{DRAIN_S:.0f} s after the last game {status.episodes - status.trajectories} episodes are not yet "
                f"trajectories and {status.batches - status.steps} batches are not yet steps; see the logs"
            )


def can_read(query: Query) -> bool:
    """Whether the tables exist."""
    try:
        read_status(query, namespace=NAMESPACE, run=RUN)
    except ServiceError:
        return False
    return True


def _find_free_ports(count: int) -> tuple[int, ...]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(find_free_port())
    return tuple(ports)
