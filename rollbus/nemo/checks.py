"""What the command line chose, and whether it can run: found before anything is started, with what a run would do."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonpath_ng.parser import parse
from nat.builder.function import FunctionGroup
from nat.data_models.config import Config, TelemetryConfig
from nat.data_models.dataset_handler import EvalDatasetCustomConfig
from nat.data_models.finetuning import FinetuneRunConfig
from nat.plugins.eval.dataset_handler.dataset_handler import DatasetHandler
from nat.plugins.eval.runtime.builder import WorkflowEvalBuilder

from rollbus.nemo import troubles
from rollbus.nemo.configuration import load_plan, with_dataset
from rollbus.nemo.runs.folder import RunRecord
from rollbus.nemo.runs.plan import Plan
from rollbus.nemo.runs.road import describe_road
from rollbus.nemo.runs.settings import checked_settings
from rollbus.schemas.errors import ConfigurationError, nearest

NAMED_IDS = 5
"""Of those that rows share; more of them would fill the console."""


@dataclass(frozen=True, slots=True)
class FinetuneOptions:
    """What the command line chose."""

    plan: Plan
    run: FinetuneRunConfig
    resume: RunRecord | None = None
    """The run to continue."""


def describe(options: FinetuneOptions) -> str:
    """Say in a few lines what a configuration would do; raises ConfigurationError for what would fail."""
    plan, run = options.plan, options.run
    examples, held_out = require_runnable(options)
    asyncio.run(_build(plan.config))
    repeated = [f"dataset {message}" for message in repeated_ids(options)]
    tuning, builder = plan.config.finetuning, plan.builder
    dataset = run.dataset or getattr(plan.config.eval.general.dataset, "file_path", None)
    attempts = getattr(builder, "num_generations", "?")
    played = f"{attempts} attempts at each of {examples} examples of {dataset}"
    episodes = "episodes of the log" if plan.is_from_log else played
    return "\n".join(
        (
            f"builder {builder.type}: {episodes}",
            *repeated,
            f"adapter {plan.adapter.type}: model {plan.model!r}",
            f"trainer {plan.config.trainers[tuning.trainer or ''].type}: {tuning.num_epochs} times over the examples",
            f"validation {run.validation_dataset or run.validation_config_file or 'none'}"
            + (f": {held_out} examples, before every {run.validation_interval}th epoch" if held_out else ""),
            f"output {tuning.output_dir}",
            f"reward {plan.reward}",
            describe_road(plan),
        )
    )


def require_runnable(options: FinetuneOptions) -> tuple[int, int]:
    """Raise ConfigurationError for what would be found only once everything runs; return how many examples there are,
    and how many are held out.
    """
    plan, run = options.plan, options.run
    if not plan.config.finetuning.enabled:
        raise ConfigurationError("the configuration has no `finetuning` section with `enabled: true`")
    checked_settings(plan)
    if run.endpoint is None:
        _require_targets(plan.config)
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
    return 0 if plan.is_from_log else _count_examples(plan.config, run.dataset), held_out


def repeated_ids(options: FinetuneOptions) -> Iterator[str]:
    """Yield a message for each dataset in which rows share an id: the toolkit's loader keeps the first of them."""
    config, run = options.plan.config, options.run
    held_out = (run.validation_dataset,) if run.validation_dataset is not None else ()
    for dataset in (*(() if options.plan.is_from_log else (run.dataset,)), *held_out):
        dataset_config: Any = with_dataset(config, dataset).eval.general.dataset
        if dataset_config is None or isinstance(dataset_config, EvalDatasetCustomConfig):
            continue
        parse_rows, arguments = dataset_config.parser()
        rows = parse_rows(dataset_config.file_path, **arguments)
        id_key = dataset_config.id_key
        if id_key in rows.columns and (ids := rows[id_key])[repeated := ids.duplicated()].size:
            names = ", ".join(repr(name) for name in ids[repeated].unique()[:NAMED_IDS])
            yield (
                f"{dataset_config.file_path}: {repeated.sum()} of {len(rows)} rows are left out, since an earlier row "
                f"has their {id_key}: {names}; give each row its own"
            )


def _require_targets(config: Config) -> None:
    """Raise ConfigurationError where `finetuning` targets a function or a model that is not configured."""
    tuning, groups = config.finetuning, tuple(f"{group}{FunctionGroup.SEPARATOR}" for group in config.function_groups)
    functions = {*config.functions, "<workflow>"}
    models = {*config.llms, *(str(getattr(llm, "model_name", name)) for name, llm in config.llms.items())}
    for name in tuning.target_functions:
        if name not in functions and not name.startswith(groups):
            raise ConfigurationError(f"finetuning.target_functions: no function {name!r}; {nearest(name, functions)}")
    if tuning.target_model is not None and tuning.target_model not in models:
        suggestion = nearest(tuning.target_model, models)
        raise ConfigurationError(f"finetuning.target_model: no model {tuning.target_model!r}; {suggestion}")


async def _build(config: Config) -> None:
    """Make every function, model and evaluator; raises ConfigurationError where a name leads nowhere.

    Exporters and log files are not made: a check connects to nothing, and leaves nothing.
    """
    general = config.general.model_copy(update={"telemetry": TelemetryConfig()})
    config = config.model_copy(update={"general": general})
    try:
        async with WorkflowEvalBuilder.from_config(config=config):
            pass
    except Exception as error:
        raise ConfigurationError(f"the workflow cannot be built: {troubles.describe_crash(error)}") from error


def _count_examples(config: Config, dataset: Any) -> int:
    dataset_config = with_dataset(config, dataset).eval.general.dataset
    if dataset_config is None:
        raise ConfigurationError("no dataset: set `eval.general.dataset`, or give --dataset")
    handler = DatasetHandler(dataset_config, reps=1, concurrency=1)
    try:
        items = handler.get_eval_input_from_dataset(None).eval_input_items  # type: ignore[arg-type]
    except Exception as error:
        raise ConfigurationError(
            f"dataset {dataset_config.file_path} cannot be read as {dataset_config.type}: {error}"
        ) from error
    if not items:
        raise ConfigurationError(f"dataset {dataset_config.file_path} has no example; see the file, and its `filter`")
    troubles.require_own_ids(items)
    return len(items)
