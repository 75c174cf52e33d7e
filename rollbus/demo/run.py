"""The course of `rollbus demo`: each part starts in its turn, in its own process, and stops at the end.

    base model → Kafka, ClickHouse, art-server → topics → worker, sink, trainer
               → evaluation before → traffic while the rest learns → drain → evaluation after → plot, answers

The job (`job`) says what is learned and from which traffic. With `keep` the three services of the local stack stay up
until `rollbus … down`; everything else always stops.
"""

import asyncio
import shlex
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from rollbus.consumers.clickhouse.store.client import ClickHouse
from rollbus.consumers.clickhouse.store.settings import ClickHouseSettings
from rollbus.demo import processes
from rollbus.demo.configuration import write_settings
from rollbus.demo.job import MODEL, NAMESPACE, TRAFFIC_ENDED, Amounts, DemoJob, StackPlace
from rollbus.demo.pace import TrafficPace, next_pace, write_rate
from rollbus.demo.show import report
from rollbus.demo.show.comparison import BeforeAndAfter, rate_of
from rollbus.demo.show.status import DemoStatus, Query, read_groups, read_status
from rollbus.demo.show.view import LiveView
from rollbus.demo.traffic import local_client
from rollbus.hosted_stages import create_topics
from rollbus.local import stack as local_stack
from rollbus.local.kafka.jars import find_jars
from rollbus.local.process import state
from rollbus.local.process.ports import find_free_port
from rollbus.local.process.service import log_tail
from rollbus.local.process.supervisor import Supervisor
from rollbus.runtime.credentials import NO_TOKEN, TOKEN, read_secret
from rollbus.runtime.kafka.connection import KafkaConnection
from rollbus.runtime.kafka.lag import LagReader, open_lag
from rollbus.schemas.errors import ConfigurationError, ServiceError, UnavailableError
from rollbus.schemas.records.steps import Evaluation
from rollbus.schemas.wall_clock import wall_clock_ms
from rollbus.stack_settings import StackSettings
from rollbus.terminal.progress import show_progress
from rollbus.trainer.operate.publishing import publish_evaluation

POLL_S = 8.0
"""Between two looks: each asks ClickHouse three questions, on the cores that train."""
SETTLED_S = 20.0
"""Everything is done if nothing changes for so long: more than the sink's linger and a few ticks."""
STUCK_S = 150.0
"""Something is wrong if nothing changes for so long and is not done: a step of a busy machine takes less."""
MARKER = "rollbus-demo"
"""A file that marks the folder as the demo's own, which may be replaced."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line chooses."""

    amounts: Amounts
    seed: int = 0
    keep: bool = False
    data_dir: Path = Path(".rollbus/demo")

    @property
    def folder(self) -> Path:
        return self.data_dir / f"seed-{self.seed}"


@dataclass(slots=True)
class Demo:
    """One run of the demo."""

    job: DemoJob
    options: DemoOptions
    console: Console
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time by phase."""

    def run(self) -> BeforeAndAfter:
        """Run all phases; raises UnavailableError, with the end of its log, if a part has died."""
        with self.hold_folder():
            return self._run()

    @contextmanager
    def hold_folder(self) -> Iterator[None]:
        """Hold the folder against a second demo."""
        folder = self.options.folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        message = f"another demo plays in {folder}; wait until it ends, or choose another --seed or --data-dir"
        with state.hold_file(folder.with_name(f"{folder.name}.lock"), lambda holder: message):
            yield

    def _run(self) -> BeforeAndAfter:
        find_jars(report=self.console.print)
        with self._time_phase("base model"):
            model = self.job.make_base_model(self.options.seed, self.options.data_dir / "models")
        with show_progress(f"emptying {self.options.folder}"):
            stack = self._fresh_stack()
            settings_file = stack.data_dir / "settings.yaml"
            settings = write_settings(settings_file, self.job, stack, model)
        with Supervisor(log_dir=stack.log_dir) as supervisor:
            with self._time_phase("start"):
                self._start_stack(supervisor, stack, settings_file)
                asyncio.run(create_topics(settings))
                query = ClickHouse(settings.clickhouse).query
                for service in processes.stage_rows(settings_file, self.job.run, has_tables=lambda: can_read(query)):
                    supervisor.start(service)
            with self._time_phase("evaluation before"):
                before = self._evaluate(stack, version=0, label="before")
            with self._time_phase("learning"):
                with show_progress("the worker, the sink and the trainer are getting ready"):
                    supervisor.wait()
                amounts = self._pace()
                place = StackPlace(stack, settings_file, _token(stack))
                final_status = asyncio.run(self._learn(supervisor, place, query, amounts))
            with self._time_phase("evaluation after"):
                after = self._evaluate(stack, version=final_status.version, label="after")
            for evaluation in (before, after):
                asyncio.run(publish_evaluation(settings.kafka, NAMESPACE, evaluation))
            supervisor.check()
            if final_status.pause:
                self.console.print(
                    f"[yellow]{escape(final_status.pause)}. What it had learned by then:[/yellow]", highlight=False
                )
            comparison = BeforeAndAfter(before, after, success=self.job.outcomes[0][0])
            self._report(settings.clickhouse, query, comparison, final_status, amounts)
        return comparison

    def _fresh_stack(self) -> StackSettings:
        """Make an empty folder, and choose free ports."""
        folder = self.options.folder
        if folder.exists():
            if not (folder / MARKER).exists():
                raise ConfigurationError(f"{folder} was not made by the demo; choose another folder with --data-dir")
            if state.read_all(folder / "run"):
                raise ConfigurationError(
                    f"the stack of an earlier demo still runs in {folder}; stop it first: "
                    f"rollbus --config {shlex.quote(str(folder / 'settings.yaml'))} down"
                )
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        (folder / MARKER).touch()
        names = [name for name in StackSettings.model_fields if name.endswith("_port")]
        ports = dict(zip(names, _find_free_ports(len(names)), strict=True))
        return StackSettings.model_validate({"data_dir": folder, **ports})

    def _start_stack(self, supervisor: Supervisor, stack: StackSettings, settings_file: Path) -> None:
        rows = processes.stack_rows(stack, settings_file)
        with show_progress("starting Kafka, ClickHouse and the ART server, which imports torch and loads the model"):
            if self.options.keep:
                local_stack.up(stack, rows)
            else:
                for service in rows:
                    supervisor.start(service)
                supervisor.wait()
        for service in rows:
            self.console.print(f"[green]✓[/green] {service.name:<11} {service.address}", highlight=False)

    def _evaluate(self, stack: StackSettings, *, version: int, label: str) -> Evaluation:
        seed, count = self.options.seed, self.options.amounts.evaluated

        async def ask() -> Evaluation:
            with show_progress(f"evaluation {label}: {MODEL}@{version}", self.job.words.traffic_unit) as progress:
                async with local_client(stack.model_url, _token(stack)) as client:
                    now_ms = wall_clock_ms()
                    return await self.job.evaluate(
                        client, version, seed=seed, count=count, now_ms=now_ms, progress=progress
                    )

        evaluation = asyncio.run(ask())
        rate = rate_of(evaluation, self.job.outcomes[0][0]).percent()
        self.console.print(f"[green]✓[/green] {label:<11} {self.job.words.success} {rate}", highlight=False)
        return evaluation

    def _pace(self) -> Amounts:
        """Return the amounts of traffic that this machine can learn from; print a line if they are not those chosen."""
        chosen_amounts = self.options.amounts
        amounts = chosen_amounts.slow_to_machine(self.seconds["evaluation before"])
        if amounts != chosen_amounts:
            minutes = amounts.episodes / amounts.episodes_per_s / 60
            coming = f"{amounts.episodes:,} {self.job.words.traffic_unit}"
            self.console.print(
                f"[dim]the evaluation took {self.seconds['evaluation before']:.0f} s, so {coming} come, "
                f"{amounts.episodes_per_s:.2f} a second, in about {minutes:.0f} minutes[/dim]",
                highlight=False,
            )
        return amounts

    async def _learn(self, supervisor: Supervisor, place: StackPlace, query: Query, amounts: Amounts) -> DemoStatus:
        """Let the traffic come and the rest learn; return the status once nothing changes any more."""
        write_rate(place.rate_file, amounts.episodes_per_s)
        traffic = self.job.traffic(place, self.options.seed, amounts)
        connection = KafkaConnection(bootstrap_servers=place.stack.bootstrap_servers)
        with LiveView(self.console, self.job.words, amounts) as view:
            for service in traffic:
                supervisor.start(service)
                supervisor.wait()
            async with open_lag(connection) as lag:
                read_next = _NextStatus(query, lag, view, supervisor, self.job.run)
                await self._wait_for_traffic(read_next, supervisor, traffic[-1].name, place, amounts)
                return await drain(read_next)

    async def _wait_for_traffic(
        self, read_next: "_NextStatus", supervisor: Supervisor, name: str, place: StackPlace, amounts: Amounts
    ) -> None:
        """Return once the traffic has ended, its time is up or the run is paused; UnavailableError if it broke off.

        Until then the traffic comes as fast as the machine learns from it, unless its rate was chosen.
        """
        began_s = time.monotonic()
        deadline = began_s + amounts.time_limit_s
        pace = TrafficPace(amounts.episodes_per_s, amounts.episodes_per_s, began_s)
        while not supervisor.has_ended(name):
            if time.monotonic() > deadline:
                self.console.print("[yellow]time is up; the traffic ends[/yellow]")
                break
            status = await read_next(self.job.words.traffic, may_end=name)
            if status.pause:
                break
            if amounts.share_of_evaluation_rate is not None:
                pace = self._follow_pace(pace, status, place.rate_file)
        await asyncio.to_thread(supervisor.stop, name)
        log = place.stack.log_dir / f"{name}.log"
        if TRAFFIC_ENDED not in log.read_text(encoding="utf-8", errors="replace"):
            raise UnavailableError(f"the {name} ended before they were done; {log_tail(log)}")

    def _follow_pace(self, pace: TrafficPace, status: DemoStatus, rate_file: Path) -> TrafficPace:
        """Return the pace from now on; tell the traffic and the reader where it changes."""
        new_pace = next_pace(pace, now_s=time.monotonic(), trained=status.trained, passed_over=status.passed_over)
        if new_pace.per_s != pace.per_s:
            write_rate(rate_file, new_pace.per_s)
            why = "less was trained than came" if new_pace.per_s < pace.per_s else "what came was trained"
            self.console.print(
                f"[dim]{why}: from now on {new_pace.per_s:.2f} {self.job.words.traffic_unit} a second[/dim]",
                highlight=False,
            )
        return new_pace

    def _report(
        self,
        clickhouse: ClickHouseSettings,
        query: Query,
        comparison: BeforeAndAfter,
        final_status: DemoStatus,
        amounts: Amounts,
    ) -> None:
        from rollbus.demo.show.plot import draw  # matplotlib, which is needed at the end alone

        folder, job, seed = self.options.folder, self.job, self.options.seed
        references = job.references(seed, amounts)
        groups = read_groups(query, namespace=NAMESPACE)
        draw(folder / "learning.png", job, groups, comparison, references, seed=seed)
        report.write_result(
            folder / "result.json", comparison, references, seed=seed, seconds=self.seconds, steps=final_status.steps
        )
        report.print_answers(self.console, clickhouse, namespace=NAMESPACE, run=job.run)
        report.print_comparison(self.console, job, comparison, references)
        report.print_next_steps(self.console, folder, is_kept=self.options.keep)
        durations = ", ".join(f"{phase} {seconds:.0f} s" for phase, seconds in self.seconds.items())
        self.console.print(f"[dim]{durations}[/dim]")

    @contextmanager
    def _time_phase(self, phase: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[phase] = round(time.monotonic() - began, 1)


def _token(stack: StackSettings) -> str:
    return read_secret(stack.secrets_dir, TOKEN) or NO_TOKEN


@dataclass(slots=True)
class _NextStatus:
    """Reads the next status: checks that all parts run, reads the counts and shows them."""

    query: Query
    lag: LagReader
    view: LiveView
    supervisor: Supervisor
    run: str

    async def __call__(self, phase: str, *, may_end: str | None = None) -> DemoStatus:
        """Check, read and show once, then wait `POLL_S`; `may_end` names a part that ends by itself."""
        try:
            self.supervisor.check()
        except UnavailableError:
            if may_end is None or not self.supervisor.has_ended(may_end):
                raise
        lag_by_stage = await self._read_lags()
        status = await asyncio.to_thread(read_status, self.query, namespace=NAMESPACE, run=self.run, lag=lag_by_stage)
        self.view.show(status, phase=phase)
        await asyncio.sleep(POLL_S)
        return status

    async def _read_lags(self) -> dict[str, int]:
        """Return the records that each stage is behind, by its name; without a stage that has not begun."""
        group_by_stage = self._consumer_groups()
        try:
            groups = await self.lag.read(dict.fromkeys(group_by_stage.values()))
        except UnavailableError:  # only a number on a screen; `supervisor.check` notices a dead Kafka
            return {}
        return {stage: groups[group].lag for stage, group in group_by_stage.items() if groups[group].partitions}

    def _consumer_groups(self) -> dict[str, str]:
        """Return the consumer group of each stage."""
        stages = {"assembly": "", "scoring": "", "grouping": f".{self.run}", "curriculum": f".{self.run}", "sink": ""}
        return {stage: f"{NAMESPACE}{stage}{of_run}" for stage, of_run in stages.items()}


async def drain(
    read_next: Callable[[str], Awaitable[DemoStatus]], clock: Callable[[], float] = time.monotonic
) -> DemoStatus:
    """Wait until every batch has been trained and nothing has moved for a while, for as long as something moves.

    A paused run trains nothing more. Raises UnavailableError if nothing moves although something is left.
    """
    last_move_s, status = clock(), await read_next("the last batches are trained")
    while not status.pause:
        next_status = await read_next("the last batches are trained")
        now_s = clock()
        if next_status.progress() != status.progress():
            last_move_s = now_s
        status = next_status
        if status.is_drained and now_s - last_move_s > SETTLED_S:
            return status
        if now_s - last_move_s > STUCK_S:
            raise UnavailableError(
                f"for {STUCK_S:.0f} s nothing has moved, and {status.episodes - status.trajectories} attempts are not "
                f"yet trajectories and {status.batches - status.steps} batches are not yet steps; see the logs"
            )
    return status


def can_read(query: Query) -> bool:
    """Say whether the tables exist."""
    try:
        read_status(query, namespace=NAMESPACE, run="")
    except ServiceError:
        return False
    return True


def _find_free_ports(count: int) -> tuple[int, ...]:
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(find_free_port())
    return tuple(ports)
