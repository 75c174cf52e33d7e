"""`rollbus finetune`: a configuration → its services, its components, its epochs, and whether all of it went well.

    configuration ─▶ settings file ─▶ Kafka, ClickHouse, ART server (what is missing) ─▶ worker, sink, trainer
                                   ─▶ builder, adapter, trainer (the toolkit makes them) ─▶ epochs ─▶ files, plot

The name of the run and its settings stay in a folder per configuration: `--resume` finds them there.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from jsonpath_ng.parser import parse
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
from nat.plugins.eval.dataset_handler.dataset_handler import DatasetHandler
from nat.plugins.eval.runtime.builder import WorkflowEvalBuilder
from rich.console import Console
from rich.text import Text

from rollbus.harness import troubles
from rollbus.harness.components import BusConfig
from rollbus.harness.configuration import load_plan, with_dataset
from rollbus.harness.processes import Processes
from rollbus.harness.run import STATE_FILE, Plan, Run, locked, opened_run
from rollbus.harness.run_settings import checked_settings
from rollbus.harness.show import logged
from rollbus.schemas.errors import ConfigurationError

logger = logging.getLogger(__name__)

NOTHING_TRAINED = ("No trajectories", "Nothing trained")
"""How the message of a job without a step begins."""


@dataclass(frozen=True, slots=True)
class FinetuneOptions:
    """What the command line chose."""

    plan: Plan
    run: FinetuneRunConfig
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Components:
    """The three, bound and initialized."""

    builder: TrajectoryBuilder
    adapter: TrainerAdapter
    trainer: Trainer
    run: Run


def run_finetune(options: FinetuneOptions, console: Console) -> bool:
    """Run everything; False where a job failed. Raises what an operator must look at."""
    plan = options.plan
    require_runnable(options)
    run_id = name_run(plan.bus, resume=options.resume)
    output = plan.config.finetuning.output_dir
    with locked(output), logged(console), Processes(plan, run_id) as processes:
        with console.status("starting what is missing"):
            processes.start()
        for line in processes.addresses():
            console.print(Text.assemble(("✓ ", "green"), line), highlight=False)
        try:
            version, is_well = asyncio.run(_run(options, processes, run_id))
        except KeyboardInterrupt:
            logger.warning("Finetuning was canceled; `--resume` continues it")
            return False
        look = f"rollbus --config {processes.settings_file} up, then ui or sql"
        for told in (f"weights {plan.model}@{version}", f"curves  {output / 'reward_plot.png'}", f"look at it: {look}"):
            console.print(told, highlight=False, markup=False, soft_wrap=True)
    return is_well


def describe(options: FinetuneOptions) -> str:
    """Say in a few lines what a configuration would do; raises ConfigurationError for what would fail."""
    plan, run = options.plan, options.run
    examples, held_out = require_runnable(options)
    asyncio.run(_build(plan.config))
    tuning, builder = plan.config.finetuning, plan.builder
    dataset = run.dataset or getattr(plan.config.eval.general.dataset, "file_path", None)
    attempts = getattr(builder, "num_generations", "?")
    return "\n".join(
        (
            f"builder {builder.type}: {attempts} attempts at each of {examples} examples of {dataset}",
            f"adapter {plan.adapter.type}: model {plan.model!r}",
            f"trainer {plan.config.trainers[tuning.trainer or ''].type}: {tuning.num_epochs} times over the examples",
            f"validation {run.validation_dataset or run.validation_config_file or 'none'}"
            + (f": {held_out} examples, before every {run.validation_interval}th epoch" if held_out else ""),
            f"output {tuning.output_dir}",
            f"reward {plan.reward}",
        )
    )


@asynccontextmanager
async def components(run: Run, chosen: FinetuneRunConfig) -> AsyncIterator[Components]:
    """Make, bind and initialize the three components of a configuration; clean up after them."""
    config = run.plan.config
    tuning = config.finetuning.model_copy(
        update={"run_configuration": chosen.model_copy(update={"config_file": config})}
    )
    only = config.model_copy(update={"functions": {}, "function_groups": {}, "llms": {}})
    async with WorkflowBuilder() as made:
        await made.populate_builder(only, skip_workflow=True)
        builder = await made.get_trajectory_builder(tuning.trajectory_builder or "")
        adapter = await made.get_trainer_adapter(tuning.trainer_adapter or "")
        trainer = await made.get_trainer(tuning.trainer or "", trajectory_builder=builder, trainer_adapter=adapter)
        logger.info("Initializing finetuning components...")
        run.attach(builder)
        try:
            await trainer.initialize(tuning)
            logger.info("Initialized trainer: %s", type(trainer).__name__)
            yield Components(builder, adapter, trainer, run)
        finally:
            logger.info("Cleaning up finetuning resources...")
            await trainer.cleanup()
            logger.info("Cleanup completed")


@asynccontextmanager
async def started_run(tuning: FinetuneConfig, trainer: TrainerConfig) -> AsyncIterator[Run]:
    """Start the processes of a run of `nat finetune`, and open it."""
    chosen = tuning.run_configuration
    assert chosen is not None
    config = chosen.config_file
    if not isinstance(config, Config):
        raise ConfigurationError("the trainer needs the configuration; run `nat finetune` or `rollbus finetune`")
    plan = Plan(config, getattr(trainer, "bus", BusConfig()))
    run_id = name_run(plan.bus, resume=False)
    with locked(tuning.output_dir), Processes(plan, run_id) as processes:
        processes.start()
        async with opened_run(plan, run_id, processes, resume=False) as run:
            yield run


def require_runnable(options: FinetuneOptions) -> tuple[int, int]:
    """Raise ConfigurationError for what would be found only once everything runs; return how many examples there are,
    and how many are held out.
    """
    plan, run = options.plan, options.run
    if not plan.config.finetuning.enabled:
        raise ConfigurationError("the configuration has no `finetuning` section with `enabled: true`")
    checked_settings(plan)
    try:
        parse(run.result_json_path)
    except Exception as error:
        raise ConfigurationError(f"--result_json_path {run.result_json_path!r} is not a JSON path: {error}") from error
    held_out = 0
    if run.validation_config_file:
        other = load_plan(Path(run.validation_config_file), run.override).config
        held_out = _count_examples(other, run.validation_dataset)
    elif run.validation_dataset:
        held_out = _count_examples(plan.config, run.validation_dataset)
    return _count_examples(plan.config, run.dataset), held_out


def name_run(bus: BusConfig, *, resume: bool) -> str:
    """Return the configured name, that of the run to resume, or a new one."""
    path = bus.data_dir / STATE_FILE
    if resume:
        if not path.exists():
            raise ConfigurationError(f"nothing to resume: {path} is not there; start without --resume")
        return _named(path)
    run_id = bus.run_id or f"art-run-{uuid4().hex[:8]}"
    if (bus.data_dir / run_id).exists():
        raise ConfigurationError(
            f"run {run_id!r} has begun already; continue it with --resume, or name another under `rollbus: run_id`"
        )
    return run_id


def concluded_well(statuses: Sequence[TrainingJobStatus]) -> bool:
    """Say how a run ended, and whether it ended well."""
    failed = [one for one in statuses if one.status is TrainingStatusEnum.FAILED]
    if not statuses:
        logger.warning("Finetuning completed with no jobs executed.")
    elif failed:
        told = "Finetuning completed with %d failed job(s) out of %d total. %s"
        logger.error(told, len(failed), len(statuses), failed[-1].message)
    elif any(one.status is TrainingStatusEnum.CANCELED for one in statuses):
        logger.warning("Finetuning was canceled...")
    else:
        if all((one.message or "").startswith(NOTHING_TRAINED) for one in statuses):
            logger.warning("Finetuning ended, and nothing was trained: %s", statuses[-1].message)
        else:
            logger.info("Finetuning completed successfully!")
        return True
    return False


def _named(path: Path) -> str:
    """Return the run that the file names."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["run_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f'{path} does not name a run ({error}); write {{"run_id": …}} or delete it') from error


async def _run(options: FinetuneOptions, processes: Processes, run_id: str) -> tuple[int, bool]:
    """Run the epochs; return the newest version of the weights, and whether all went well."""
    async with opened_run(options.plan, run_id, processes, resume=options.resume) as run:
        async with components(run, options.run) as made:
            epochs = options.plan.config.finetuning.num_epochs
            logger.info("Starting training for %d epochs...", epochs)
            statuses = await made.trainer.run(epochs)
            for status in statuses:
                logger.info("Job %s completed with status: %s", status.run_id, status.status.value)
            metrics = await made.trainer.get_metrics(run_id)
            brief = {name: value for name, value in metrics.items() if name not in ("jobs", "epochs", "curriculum")}
            logger.info("Final metrics: %s", json.dumps(brief, default=str))
        version = run.log.view.newest_version()
    return version, concluded_well(statuses)


async def _build(config: Config) -> None:
    """Make every function, model and evaluator; raises ConfigurationError where a name leads nowhere."""
    try:
        async with WorkflowEvalBuilder.from_config(config=config):
            pass
    except Exception as error:
        raise ConfigurationError(f"the workflow cannot be built: {troubles.crash_in_words(error)}") from error


def _count_examples(config: Config, dataset: Any) -> int:
    chosen = with_dataset(config, dataset).eval.general.dataset
    if chosen is None:
        raise ConfigurationError("no dataset: set `eval.general.dataset`, or give --dataset")
    handler = DatasetHandler(chosen, reps=1, concurrency=1)
    try:
        return len(handler.get_eval_input_from_dataset(None).eval_input_items)  # type: ignore[arg-type]
    except Exception as error:
        raise ConfigurationError(f"dataset {chosen.file_path} cannot be read as {chosen.type}: {error}") from error
