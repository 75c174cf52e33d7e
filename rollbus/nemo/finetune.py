"""`rollbus finetune`: a configuration → its services, its components, its epochs, and whether all of it went well.

    configuration ─▶ settings file ─▶ Kafka, ClickHouse, ART server (what is missing) ─▶ worker, sink, trainer
                                   ─▶ builder, adapter, trainer (the toolkit makes them) ─▶ epochs ─▶ files, plot

The name of the run and its settings stay in a folder per configuration: `--resume` finds them there.
"""

import json
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

from nat.builder.workflow_builder import WorkflowBuilder
from nat.data_models.config import Config
from nat.data_models.finetuning import (
    FinetuneConfig,
    FinetuneRunConfig,
    TrainerConfig,
    TrainingJobStatus,
    TrainingStatusEnum,
)
from nat.finetuning.interfaces.finetuning_runner import Trainer
from nat.finetuning.interfaces.trainer_adapter import TrainerAdapter
from nat.finetuning.interfaces.trajectory_builder import TrajectoryBuilder
from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from rollbus.local.process.supervisor import Supervisor
from rollbus.nemo import troubles
from rollbus.nemo.checks import FinetuneOptions, repeated_ids, require_runnable
from rollbus.nemo.components import BusConfig
from rollbus.nemo.own_parts.adapter import on_ledger
from rollbus.nemo.own_parts.builder import put_on_log
from rollbus.nemo.runs.event_loop import run_to_end
from rollbus.nemo.runs.folder import STATE_FILE, RunRecord, hold_output, hold_run, now, read_run, what_next, write_run
from rollbus.nemo.runs.plan import Plan
from rollbus.nemo.runs.processes import Processes
from rollbus.nemo.runs.run import Run, opened_run
from rollbus.nemo.show import show_log_lines
from rollbus.schemas.errors import ConfigurationError, RollbusError, RunStoppedError
from rollbus.terminal.progress import show_progress

logger = logging.getLogger(__name__)

SERVING_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Components:
    """The three, bound and initialized."""

    builder: TrajectoryBuilder
    adapter: TrainerAdapter
    trainer: Trainer
    run: Run


def run_finetune(options: FinetuneOptions, console: Console) -> bool:
    """Run everything; False where a job failed. Raises what an operator must look at."""
    require_runnable(options)
    record = _record(options.plan, options.run, options.resume)
    with run_processes(options.plan, record, console) as processes:
        try:
            is_well = run_to_end(_run(options, processes, record))
        except (KeyboardInterrupt, SystemExit) as signalled:
            logger.warning("Finetuning was interrupted; `rollbus finetune resume %s` continues it", record.run_id)
            if isinstance(signalled, SystemExit):  # of SIGTERM and SIGHUP, with its own status
                raise
            return False
        console.print(what_next(read_run(record.folder)), markup=False, soft_wrap=True)
    return is_well


@contextmanager
def hold_processes(plan: Plan, record: RunRecord, *, with_stages: bool = True) -> Iterator[Processes]:
    """Hold a run and its output, and start what is missing."""
    with (
        hold_output(plan.config.finetuning.output_dir),
        hold_run(record.folder),
        Supervisor(log_dir=record.folder / "logs") as supervisor,
    ):
        processes = Processes(plan, record.run_id, supervisor)
        processes.start(with_stages=with_stages)
        yield processes


@contextmanager
def run_processes(plan: Plan, record: RunRecord, console: Console, *, with_stages: bool = True) -> Iterator[Processes]:
    """Hold and start a run, and show what is said meanwhile."""
    with ExitStack() as stack:
        stack.enter_context(show_log_lines(console))
        with show_progress("starting what is missing: Kafka, ClickHouse, the stages, the ART server", console=console):
            processes = stack.enter_context(hold_processes(plan, record, with_stages=with_stages))
        for line in processes.addresses():
            console.print(Text.assemble(("✓ ", "green"), line), highlight=False)
        yield processes


def evaluate_run(options: FinetuneOptions, dataset: str | None, console: Console) -> dict[str, Any]:
    """Measure a run's newest weights on a dataset, by the run's own evaluator."""
    assert options.resume is not None
    examples = dataset or options.run.validation_dataset or options.run.dataset
    evaluation_config = options.run.model_copy(update={"validation_dataset": examples})

    async def measure(processes: Processes, record: RunRecord) -> dict[str, Any]:
        async with (
            opened_run(options.plan, record, processes, resume=True) as run,
            components(run, evaluation_config) as parts,
        ):
            return await parts.trainer.run_validation_evaluation(len(run.log.view.windows), run.run_id)

    before = options.resume
    with run_processes(options.plan, before, console) as processes:
        try:
            metrics = run_to_end(measure(processes, before))
        finally:
            write_run(before)  # to measure a run does not change how it ended
    if "error" in metrics:
        raise RunStoppedError(f"run {before.run_id!r} cannot be measured: {metrics['error']}")
    return metrics


def serve_run(options: FinetuneOptions, console: Console) -> None:
    """Serve a run's newest weights until Ctrl-C."""
    assert options.resume is not None
    with run_processes(options.plan, options.resume, console, with_stages=False) as processes:
        model = f"{options.plan.model}@{options.resume.policy_version}"
        console.print(f"{model} is served at {processes.model_url()}; Ctrl-C ends it", highlight=False, soft_wrap=True)
        with suppress(KeyboardInterrupt):
            while True:
                time.sleep(SERVING_LOOK_S)
                processes.check()


@asynccontextmanager
async def components(run: Run, run_config: FinetuneRunConfig) -> AsyncIterator[Components]:
    """Make, bind and initialize the three components of a configuration; clean up after them."""
    config = run.plan.config
    tuning = config.finetuning.model_copy(
        update={"run_configuration": run_config.model_copy(update={"config_file": config})}
    )
    only = config.model_copy(update={"functions": {}, "function_groups": {}, "llms": {}})
    async with WorkflowBuilder() as workflow:
        await workflow.populate_builder(only, skip_workflow=True)
        builder = await workflow.get_trajectory_builder(tuning.trajectory_builder or "")
        adapter = await workflow.get_trainer_adapter(tuning.trainer_adapter or "")
        on_ledger(adapter)
        trainer = await workflow.get_trainer(tuning.trainer or "", trajectory_builder=builder, trainer_adapter=adapter)
        logger.info("Initializing finetuning components...")
        put_on_log(builder, run)
        try:
            await trainer.initialize(tuning)
            logger.info("Initialized trainer: %s", type(trainer).__name__)
            yield Components(builder, adapter, trainer, run)
        finally:
            logger.info("Cleaning up finetuning resources...")
            await trainer.cleanup()
            logger.info("Cleanup completed")


@asynccontextmanager
async def begin_run(tuning: FinetuneConfig, trainer: TrainerConfig) -> AsyncIterator[Run]:
    """Start the processes of a run of `nat finetune`, and open it."""
    run_config = tuning.run_configuration
    assert run_config is not None
    config = run_config.config_file
    if not isinstance(config, Config):
        raise ConfigurationError("the trainer needs the configuration; run `nat finetune` or `rollbus finetune`")
    plan = Plan(config, getattr(trainer, "bus", BusConfig()))
    record = _record(plan, run_config, None)
    with hold_processes(plan, record) as processes:
        async with opened_run(plan, record, processes, resume=False) as run:
            yield run


def name_run(bus: BusConfig) -> str:
    """Return the configured name, or a new one."""
    run_id = bus.run_id or f"art-run-{uuid4().hex[:8]}"
    if (bus.data_dir / run_id / STATE_FILE).exists():
        raise ConfigurationError(
            f"run {run_id!r} has begun already; continue it with --resume, or name another under `rollbus: run_id`"
        )
    return run_id


def concluded_well(
    statuses: Sequence[TrainingJobStatus], untrained: Mapping[int, Mapping[str, int]] = MappingProxyType({})
) -> bool:
    """Say how a run ended, and whether it ended well; `untrained` are the epochs of which nothing was trained."""
    failed_epochs = [status for status in statuses if status.status is TrainingStatusEnum.FAILED]
    if not statuses:
        logger.warning("Finetuning completed with no jobs executed.")
    elif failed_epochs:
        message = "Finetuning completed with %d failed job(s) out of %d total. %s"
        logger.error(message, len(failed_epochs), len(statuses), failed_epochs[-1].message)
    elif any(status.status is TrainingStatusEnum.CANCELED for status in statuses):
        logger.warning("Finetuning was canceled...")
    elif untrained:
        logger.error("Finetuning ended, and %s", troubles.nothing_trained(untrained))
    else:
        logger.info("Finetuning completed successfully!")
        return True
    return False


def _record(plan: Plan, run_config: FinetuneRunConfig, resumed: RunRecord | None) -> RunRecord:
    """Return the record of a run that begins, or of one that continues."""
    if resumed is not None:
        return replace(resumed, state="running", ended_at=None)
    run_id = name_run(plan.bus)
    path, settings_file = run_config.config_file, plan.bus.settings_file
    return RunRecord(
        run_id=run_id,
        config_file="" if isinstance(path, BaseModel) else str(Path(path).resolve()),
        options=run_config.model_dump(mode="json", exclude={"config_file"}),
        output_dir=str(plan.config.finetuning.output_dir.resolve()),
        model=plan.model,
        settings_file=None if settings_file is None else str(settings_file.resolve()),
        began_at=now(),
        folder=plan.bus.data_dir / run_id,
    )


async def run_epochs(parts: Components) -> Sequence[TrainingJobStatus]:
    """Run what is configured; raises RunStoppedError for what parts of a user's own raise."""
    epochs = parts.run.plan.config.finetuning.num_epochs
    logger.info("Starting training for %d epochs...", epochs)
    try:
        return await parts.trainer.run(epochs)
    except RollbusError:
        raise
    except Exception as error:
        raise RunStoppedError(troubles.describe_crash(error)) from error


async def untrained_epochs(parts: Components) -> dict[int, dict[str, int]]:
    """Return the epochs that trained nothing, with reasons, once every job has ended, also one nobody waited for."""
    run, ledger = parts.run, on_ledger(parts.adapter)
    for epoch in sorted(run.log.view.windows):
        await ledger.wait_until_complete(ledger.job_of(epoch))
    return run.untrained_epochs()


async def _run(options: FinetuneOptions, processes: Processes, record: RunRecord) -> bool:
    """Run the epochs; return whether all went well."""
    run_id = record.run_id
    for message in repeated_ids(options):
        logger.warning("%s", message)
    async with opened_run(options.plan, record, processes, resume=options.resume is not None) as run:
        async with components(run, options.run) as parts:
            statuses = await run_epochs(parts)
            for status in statuses:
                logger.info("Job %s completed with status: %s", status.run_id, status.status.value)
            metrics = await parts.trainer.get_metrics(run_id)
            brief = {name: value for name, value in metrics.items() if name not in ("jobs", "epochs", "curriculum")}
            logger.info("Final metrics: %s", json.dumps(brief, default=str))
            untrained = await untrained_epochs(parts)
        run.is_well = concluded_well(statuses, untrained)
    return run.is_well
