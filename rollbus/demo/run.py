"""The director of `rollbus demo`: every part in its order, each in a process of its own, and nothing left at the end.

    base model → Kafka, ClickHouse, art-server → topics → worker, sink, trainer
               → evaluation before → agents play while the rest learns → drain → evaluation after → plot, answers

With `keep` the three services of the local stack stay up, for `rollbus … down` to end; everything else always ends.
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
from rich.progress import Progress

from rollbus.demo import base_model, processes, report
from rollbus.demo.agents import AgentSettings
from rollbus.demo.base_model import WarmStartSettings
from rollbus.demo.configuration import GROUP_SIZE, MODEL, NAMESPACE, RUN, write_settings
from rollbus.demo.evaluation import GAMES, Comparison, Evaluation, as_record, evaluate, schedule
from rollbus.demo.lag_kafka import LagReader
from rollbus.demo.plot import draw
from rollbus.demo.sql import Ask, over_http
from rollbus.demo.status import DemoStatus, read_groups, read_status
from rollbus.demo.view import LiveView
from rollbus.local import stack as local_stack
from rollbus.local import state
from rollbus.local.ports import free_port
from rollbus.local.service import log_tail
from rollbus.local.settings import StackSettings
from rollbus.local.supervisor import Supervisor
from rollbus.schemas.errors import ConfigurationError, ServiceError, UnavailableError
from rollbus.settings import Settings
from rollbus.trainer.publishing_kafka import publish_evaluation

POLL_S = 2.0
"""Each look costs ClickHouse three questions, on the cores that train."""
DRAIN_S = 60.0
"""How long to wait at most for what is in flight once the agents have ended."""
SETTLED_S = 6.0
"""Nothing moved for so long: longer than the sink's linger and a few ticks."""
MARKER = "rollbus-demo"
"""A file that says: this folder belongs to the demo and may be replaced."""
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
    """For the agents' play; whatever they have not played by then is left out."""
    keep: bool = False
    data_dir: Path = Path(".rollbus/demo")

    @property
    def folder(self) -> Path:
        return self.data_dir / f"seed-{self.seed}"


@dataclass(slots=True)
class Demo:
    """One run."""

    options: DemoOptions
    console: Console
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by phase."""

    def run(self) -> Comparison:
        """Everything; raises UnavailableError, with the end of its log, when a part has died."""
        with self.alone():
            return self._run()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the folder against a second demo."""
        folder = self.options.folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        busy = f"another demo plays in {folder}; wait until it ends, or choose another --seed or --data-dir"
        with state.held(folder.with_name(f"{folder.name}.lock"), lambda holder: busy):
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
                asyncio.run(_create_topics(settings))
                ask = over_http(stack.clickhouse_url, settings.clickhouse.database)
                for service in processes.stage_rows(settings_file, has_tables=lambda: can_read(ask)):
                    supervisor.start(service)
            with self._timed("evaluation before"):
                before = self._evaluate(stack, version=0, label="before")
            with self._timed("learning"):
                supervisor.wait()
                last = asyncio.run(self._learn(supervisor, stack, ask))
            with self._timed("evaluation after"):
                after = self._evaluate(stack, version=last.version, label="after")
            for evaluation in (before, after):
                self._write_down(settings, evaluation)
            supervisor.check()
            comparison = Comparison(before, after)
            self._report(ask, comparison, last)
        return comparison

    def _base_model(self) -> Path:
        with Progress(console=self.console, transient=True) as progress:
            task = progress.add_task("teaching the base model which cells are free", total=None)
            return base_model.ensure(
                WarmStartSettings(seed=self.options.seed),
                self.options.data_dir / "models",
                lambda done, total: progress.update(task, completed=done, total=total),
            )

    def _fresh_stack(self) -> StackSettings:
        """An empty folder, and ports that nobody uses."""
        folder = self.options.folder
        if folder.exists():
            if not (folder / MARKER).exists():
                raise ConfigurationError(f"{folder} was not made by the demo; choose another folder with --data-dir")
            if state.read_all(folder / "run"):
                raise ConfigurationError(
                    f"the stack of an earlier demo still runs in {folder}; end it first: "
                    f"rollbus --config {folder / 'settings.yaml'} down"
                )
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / MARKER).touch()
        kafka, controller, clickhouse, art, model = _free_ports(5)
        return StackSettings(folder, kafka, controller, clickhouse, art, model)

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
            with Progress(console=self.console, transient=True) as progress:
                task = progress.add_task(f"evaluation {label}: {MODEL}@{version}", total=self.options.games)
                async with AsyncOpenAI(base_url=stack.model_url, api_key="none", max_retries=4) as client:
                    games = schedule(self.options.seed, self.options.games)
                    return await evaluate(
                        client, MODEL, version, games, progress=lambda done, _: progress.update(task, completed=done)
                    )

        evaluation = asyncio.run(play())
        self.console.print(f"[green]✓[/green] {label:<11} wins {evaluation.wins.percent()}", highlight=False)
        return evaluation

    def _write_down(self, settings: Settings, evaluation: Evaluation) -> None:
        seed, games = self.options.seed, schedule(self.options.seed, self.options.games)
        record = as_record(evaluation, run=RUN, seed=seed, games=games, now_ms=time.time_ns() // 1_000_000)
        asyncio.run(publish_evaluation(settings.kafka, NAMESPACE, record))

    async def _learn(self, supervisor: Supervisor, stack: StackSettings, ask: Ask) -> DemoStatus:
        """Let the agents play and the rest learn; return the status once nothing moves any more."""
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
                )
            )
        )
        lag = LagReader(stack.bootstrap_servers, LAG_GROUPS)
        await lag.open()
        try:
            with LiveView(self.console, episodes=options.episodes, time_limit_s=options.time_limit_s) as view:
                look = _Look(ask, lag, view, supervisor)
                await self._wait_for_agents(look, supervisor, stack)
                return await _drain(look)
        finally:
            await lag.close()

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
            raise UnavailableError(f"the agents broke off; {log_tail(log)}")

    def _report(self, ask: Ask, comparison: Comparison, last: DemoStatus) -> None:
        folder = self.options.folder
        draw(folder / "learning.png", read_groups(ask, namespace=NAMESPACE), comparison, seed=self.options.seed)
        report.write_result(
            folder / "result.json", comparison, seed=self.options.seed, seconds=self.seconds, steps=last.steps
        )
        report.print_answers(self.console, ask, namespace=NAMESPACE, run=RUN)
        report.print_comparison(self.console, comparison)
        report.print_next_steps(self.console, folder, kept=self.options.keep)
        took = ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in self.seconds.items())
        self.console.print(f"[dim]{took}[/dim]")

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[phase] = round(time.monotonic() - began, 1)


@dataclass(slots=True)
class _Look:
    """One look at everything: are all parts alive, what do the counts say, show it."""

    ask: Ask
    lag: LagReader
    view: LiveView
    supervisor: Supervisor

    async def __call__(self, phase: str, *, may_end: str | None = None) -> DemoStatus:
        """`may_end` names a part that is meant to end by itself."""
        try:
            self.supervisor.check()
        except UnavailableError:
            if may_end is None or not self.supervisor.has_ended(may_end):
                raise
        behind = await self.lag.read()
        status = await asyncio.to_thread(read_status, self.ask, namespace=NAMESPACE, run=RUN, lag=behind)
        self.view.show(status, phase=phase)
        await asyncio.sleep(POLL_S)
        return status


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
                f"{DRAIN_S:.0f} s after the last game {status.episodes - status.trajectories} episodes have not become "
                f"trajectories and {status.batches - status.steps} batches have not become steps; see the logs"
            )


async def _create_topics(settings: Settings) -> None:
    from rollbus.cli.stages import all_stages
    from rollbus.streams.topics_kafka import ensure_topics

    await ensure_topics(settings.stream_settings(), all_stages(settings))


def can_read(ask: Ask) -> bool:
    """Whether the tables are there."""
    try:
        read_status(ask, namespace=NAMESPACE, run=RUN)
    except ServiceError:
        return False
    return True


def _free_ports(count: int) -> tuple[int, ...]:
    """So many different ports."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port())
    return tuple(found)
