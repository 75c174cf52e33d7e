"""`rollbus finetune`: a configuration → its services, its components, its epochs, and whether all of it went well.

    configuration ─▶ settings file ─▶ Kafka, ClickHouse, ART server (what is missing) ─▶ worker, sink, trainer
                                   ─▶ builder, adapter, trainer (the components) ─▶ epochs ─▶ files, plot

The name of the run and its settings stay in a folder per configuration: `--resume` finds them there.
"""

import asyncio
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from rich.console import Console
from rich.text import Text

from rollbus.harness.art_trainer import ARTTrainer
from rollbus.harness.art_trainer_adapter import ARTTrainerAdapter
from rollbus.harness.art_trajectory_builder import ARTTrajectoryBuilder
from rollbus.harness.builder import Builder
from rollbus.harness.config_file import load_configuration
from rollbus.harness.configuration import Configuration
from rollbus.harness.endpoint import json_path
from rollbus.harness.episodes import TrainingJobStatus, TrainingStatusEnum, TrajectoryCollection
from rollbus.harness.evaluation_run import examples_of
from rollbus.harness.finetune_config import FinetuneRunConfig
from rollbus.harness.interfaces import Trainer, TrainerAdapter, TrajectoryBuilder
from rollbus.harness.nemo_customizer_trainer import NeMoCustomizerTrainer
from rollbus.harness.outputs import replace_text
from rollbus.harness.processes import Processes
from rollbus.harness.publishing import publications
from rollbus.harness.recording import Recording
from rollbus.harness.run_log import RunLog
from rollbus.harness.run_settings import (
    adapter_of,
    builder_of,
    checked_settings,
    model_of,
    on_art_server,
    processed_logprobs,
    trained_model,
)
from rollbus.harness.show import logged, show_epochs
from rollbus.schemas.errors import ConfigurationError

logger = logging.getLogger(__name__)

STATE_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class FinetuneOptions:
    """What the command line chose."""

    config: Configuration
    run: FinetuneRunConfig
    settings_file: Path | None = None
    """Of the services to use; without one they are started here."""
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Components:
    """The three, bound and initialized."""

    builder: TrajectoryBuilder
    adapter: TrainerAdapter
    trainer: Trainer
    log: RunLog


def run_finetune(options: FinetuneOptions, console: Console | None = None) -> bool:
    """Run everything; False where a job failed. Raises what an operator must look at."""
    config = options.config
    _require_runnable(options)
    folder = state_folder(config)
    run_id = _run_id(config, folder, resume=options.resume)
    console = console or Console()
    with logged(console), Processes(config, run_id, folder, settings_file=options.settings_file) as processes:
        with console.status("starting what is missing"):
            processes.start()
        for line in processes.addresses():
            console.print(Text.assemble(("✓ ", "green"), line), highlight=False)
        try:
            return asyncio.run(_run(options, processes, run_id, console))
        except KeyboardInterrupt:
            logger.warning("Finetuning was canceled; `--resume` continues it")
            return False


def describe(options: FinetuneOptions) -> str:
    """Say in a few lines what a configuration would do; raises ConfigurationError where its datasets cannot be read."""
    config, run = options.config, options.run
    held_out = _require_runnable(options)
    tuning, builder = config.finetuning, builder_of(config)
    dataset = run.dataset or (config.eval.general.dataset and config.eval.general.dataset.file_path)
    examples, attempts = len(examples_of(config, run.dataset)), getattr(builder, "num_generations", "?")
    return "\n".join(
        (
            f"builder {builder.type}: {attempts} attempts at each of {examples} examples of {dataset}",
            f"adapter {adapter_of(config).type}: model {model_of(adapter_of(config))!r}",
            f"trainer {config.trainers[tuning.trainer or ''].type}: {tuning.num_epochs} times over the examples",
            f"validation {run.validation_dataset or run.validation_config_file or 'none'}"
            + (f": {held_out} examples, before every {run.validation_interval}th epoch" if held_out else ""),
            f"output {tuning.output_dir}",
            f"reward {tuning.reward_function.name if tuning.reward_function else '?'}",
        )
    )


@asynccontextmanager
async def components(
    builder: Builder, log: RunLog, run: FinetuneRunConfig, *, resume: bool = False
) -> AsyncIterator[Components]:
    """Make, bind and initialize the three components of a configuration; clean up after them."""
    run = run.model_copy(update={"config_file": builder.config})  # as it was read, its overrides applied
    config = builder.config.finetuning.model_copy(update={"run_configuration": run})
    trajectories = await builder.get_trajectory_builder(config.trajectory_builder or "")
    adapter = await builder.get_trainer_adapter(config.trainer_adapter or "")
    trainer = await builder.get_trainer(config.trainer or "")
    _connect(trajectories, adapter, trainer, log, model_of(adapter_of(builder.config)), resume=resume)
    if isinstance(adapter, ARTTrainerAdapter) and not on_art_server(builder.config):
        adapter.health_url = None
    logger.info("Initializing finetuning components...")
    await trainer.bind_components(trajectories, adapter)
    await trainer.initialize(config)
    logger.info("Initialized trainer: %s", type(trainer).__name__)
    try:
        yield Components(trajectories, adapter, trainer, log)
    finally:
        logger.info("Cleaning up finetuning resources...")
        await trainer.cleanup()
        logger.info("Cleanup completed")


def state_folder(config: Configuration) -> Path:
    """Return where a configuration's runs keep what `--resume` needs, and their local stack."""
    return config.rollbus.data_dir


async def _run(options: FinetuneOptions, processes: Processes, run_id: str, console: Console) -> bool:
    config = options.config
    recording = Recording(processes.namespace, processes.sink(), processed=processed_logprobs(config))
    log = RunLog(processes.bus(resume=options.resume), run_id, recording, check=processes.check)
    await log.bus.open()
    try:
        if options.resume:
            await log.read_to_the_end()
        builder = Builder(config, recording=recording, trained=trained_model(config))
        async with builder, components(builder, log, options.run, resume=options.resume) as made:
            statuses = await _epochs(made, config.finetuning.num_epochs, console)
            metrics = await made.trainer.get_metrics(run_id)
            logger.info("Final metrics: %s", json.dumps(_brief(metrics), default=str))
        await processes.drain()
    finally:
        await log.close()
    return _conclude(statuses)


async def _epochs(made: Components, epochs: int, console: Console) -> Sequence[TrainingJobStatus]:
    logger.info("Starting training for %d epochs...", epochs)
    with show_epochs(console, made):
        statuses = await made.trainer.run(epochs)
    for status in statuses:
        logger.info("Job %s completed with status: %s", status.run_id, status.status.value)
    return statuses


def _conclude(statuses: Sequence[TrainingJobStatus]) -> bool:
    failed = [one for one in statuses if one.status is TrainingStatusEnum.FAILED]
    if not statuses:
        logger.warning("Finetuning completed with no jobs executed.")
        return False
    if failed:
        logger.error(
            "Finetuning completed with %d failed job(s) out of %d total. %s",
            len(failed),
            len(statuses),
            failed[-1].message,
        )
        return False
    if any(one.status is TrainingStatusEnum.CANCELED for one in statuses):
        logger.warning("Finetuning was canceled...")
        return False
    logger.info("Finetuning completed successfully!")
    return True


def _connect(
    builder: TrajectoryBuilder, adapter: TrainerAdapter, trainer: Trainer, log: RunLog, model: str, *, resume: bool
) -> None:
    """Give ours the log; put what a user's own builder finalizes on it."""
    if isinstance(builder, ARTTrajectoryBuilder):
        builder.run_log, builder.trainable_only = log, isinstance(adapter, ARTTrainerAdapter)
    else:
        builder.finalize = _publishing(builder, log, model)  # type: ignore[assignment,method-assign]
    if isinstance(adapter, ARTTrainerAdapter):
        adapter.run_log = log
    if isinstance(trainer, NeMoCustomizerTrainer):
        trainer.run_id = log.run_id
    if isinstance(trainer, ARTTrainer):
        trainer.run_log, trainer.run_id, trainer.model, trainer.resume = log, log.run_id, model, resume


def _publishing(builder: TrajectoryBuilder, log: RunLog, model: str) -> Callable[..., Awaitable[TrajectoryCollection]]:
    """Return the builder's `finalize`, its result published before anybody sees it."""
    finalize, epochs = builder.finalize, iter(range(1_000_000_000))

    async def published(run_id: str, meta: dict[str, Any] | None = None) -> TrajectoryCollection:
        collection = await finalize(run_id, meta)
        number = next(epochs)
        reward = builder.run_config.reward_function
        found = publications(
            collection,
            run_id=log.run_id,
            epoch=int((meta or {}).get("epoch", number)),
            task="workflow",
            reward_name=reward.name if reward is not None else "reward",
            now_ms=time.time_ns() // 1_000_000,
            model=model,
            policy_version=log.view.newest_version(),
        )
        await log.publish(found)
        return collection

    return published


def _run_id(config: Configuration, folder: Path, *, resume: bool) -> str:
    """Return the configured name, that of the run to resume, or a new one."""
    path = folder / STATE_FILE
    if resume:
        if not path.exists():
            raise ConfigurationError(f"nothing to resume: {path} is not there; start without --resume")
        return _named(path)
    run_id = config.rollbus.run_id or f"art-run-{uuid4().hex[:8]}"
    if path.exists() and _named(path) == run_id:
        raise ConfigurationError(
            f"run {run_id!r} has begun already; continue it with --resume, or name another under `rollbus: run_id`"
        )
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps({"run_id": run_id}))
    return run_id


def _named(path: Path) -> str:
    """Return the run that the file names."""
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["run_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(f'{path} does not name a run ({error}); write {{"run_id": …}} or delete it') from error


def _require_runnable(options: FinetuneOptions) -> int:
    """Raise ConfigurationError for what would be found only once everything runs; return the number held out."""
    config, run = options.config, options.run
    if not config.finetuning.enabled:
        raise ConfigurationError("the configuration has no `finetuning` section with `enabled: true`")
    checked_settings(config)
    json_path(run.result_json_path)
    if run.dataset is not None or config.eval.general.dataset is not None:
        examples_of(config, run.dataset)
    if not run.validates:
        return 0
    other = run.validation_config_file
    validated = load_configuration(Path(other), os.environ, run.override) if other else config
    return len(examples_of(validated, run.validation_dataset))


def _brief(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return metrics fit for one line."""
    return {name: value for name, value in metrics.items() if name not in ("epochs", "curriculum")}
