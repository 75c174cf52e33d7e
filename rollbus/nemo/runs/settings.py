"""A finetuning configuration → one settings file, as any other run of rollbus has it.

reward_function → scoring    num_generations → grouping    curriculum_learning → curriculum
target_…, min_episode_length → assembly    backend, training → trainer and ART server
"""

import math
from pathlib import Path
from typing import Any

from nat.data_models.config import Config
from nat.data_models.finetuning import CurriculumLearningConfig
from nat.utils.io.yaml_tools import deep_merge
from pydantic import ValidationError

from rollbus.nemo.bus.publish_trajectories import TASK
from rollbus.nemo.components import ARTBackendConfig, ARTTrainingConfig, BusTrainerAdapterConfig
from rollbus.nemo.curriculum import NO_LIMIT, curriculum_config
from rollbus.nemo.runs.plan import Plan
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import without_version
from rollbus.settings import Settings

GROUP_WINDOW_MS = 30_000
"""Attempts at an example end together; one that failed for good holds its group open for so long."""
PATIENCE_MS = 24 * 3_600_000
"""Stream time that an episode may be open: it ends when the whole dataset is played and scored."""
TICK_MS = 200
"""An epoch waits for a few ticks; five a second cost little."""
EVENT_PARTITIONS = 2
TRAINER = {"alarm": None}
"""A paused run would wait for an operator that a finetuning run does not have."""


def settings_of(plan: Plan, run_id: str, namespace: str) -> dict[str, Any]:
    """Return the settings of the run's stages; `rollbus: settings:` is laid over them."""
    adapter = plan.adapter
    document: dict[str, Any] = {
        "namespace": namespace,
        "worker": {"event_partitions": EVENT_PARTITIONS, "tick_interval_ms": TICK_MS},
        "assembly": _assembly(plan),
        "scoring": {"rewards": [{"type": "feedback", "name": plan.reward}]},
        "runs": [_run(plan, run_id)],
    }
    if isinstance(adapter, BusTrainerAdapterConfig):
        training, backend = adapter.training or ARTTrainingConfig(), adapter.backend
        document["trainer"] = {**TRAINER, "train": training.train_settings}
        if plan.art_backend is not None:
            document["trainer"]["backend"] = {"type": "art-server", "url": backend.url, **_token(backend)}
        document["art_server"] = _art_server(plan, backend)
    else:
        document["trainer"] = TRAINER
    return deep_merge(document, plan.bus.settings)


def checked_settings(plan: Plan) -> None:
    """Raise ConfigurationError, with every mistake, where `rollbus: settings:` does not fit the settings of a run."""
    try:
        Settings.model_validate(settings_of(plan, "check", "check."))
    except ValidationError as error:
        mistakes = [f"  {'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()]
        raise ConfigurationError("\n".join(["mistakes under `rollbus: settings:`", *mistakes])) from error


def processed_logprobs(config: Config) -> bool:
    """Say whether a model is sampled at another temperature than 1: its log-probs must be of that distribution."""
    temperatures = [getattr(llm, "temperature", None) for llm in config.llms.values()]
    return any(temperature not in (None, 1.0) for temperature in temperatures)


def _assembly(plan: Plan) -> dict[str, Any]:
    tuning, attempts = plan.config.finetuning, plan.attempts
    assembly: dict[str, Any] = {"target_functions": list(tuning.target_functions), "inactivity_ms": PATIENCE_MS}
    if tuning.target_model is not None:
        assembly["target_model"] = _target_model(plan, tuning.target_model)
    assembly["include_tool_calls"] = attempts.include_tool_calls
    assembly["min_episode_length"] = math.ceil(attempts.min_episode_length / 2)
    return assembly


def _target_model(plan: Plan, name: str) -> str:
    """Return the name that answers carry: an entry under `llms` stands for its model, the base for the trained one."""
    model_name = str(getattr(plan.config.llms[name], "model_name", name)) if name in plan.config.llms else name
    target = plan.trained[1] if plan.trained is not None and model_name == plan.trained[0] else model_name
    return without_version(target)


def _run(plan: Plan, run_id: str) -> dict[str, Any]:
    generations, model, text = plan.attempts.num_generations, plan.model, plan.trained is None
    everything = CurriculumLearningConfig()
    curriculum = plan.config.finetuning.curriculum_learning if plan.curriculum_on_bus else everything
    return {
        "run_id": run_id,
        "model": model,
        "filter": {"tasks": [TASK], "labels": {"run": run_id}, "models": _models(plan, model), "without_tokens": text},
        "grouping": {
            "strategy": _strategy(plan),
            "group_size": generations,
            "min_group_size": 1 if text else min(2, generations),
            "window_ms": GROUP_WINDOW_MS,
            "reward_wait_ms": 0,  # the evaluator reports before an attempt ends, or never
            "reward_grace_ms": 0,
            "advantage": "mean_std",
        },
        "curriculum": curriculum_config(curriculum, plan.bus.seed).model_dump(mode="json", exclude_defaults=True),
        "batching": {
            "groups_per_step": plan.bus.groups_per_step or NO_LIMIT,
            "max_waiting_groups": NO_LIMIT,
            # The steps of an epoch follow one another on what the weights before the first of them sampled.
            "max_off_policy_steps": NO_LIMIT,
            "flush_ms": 1,
        },
    }


def _strategy(plan: Plan) -> str:
    """Return how attempts are compared: those of the log with one another where several came, else with before."""
    if plan.is_from_log:
        return "adaptive"
    return "single" if plan.attempts.num_generations == 1 else "by_example"


def _models(plan: Plan, model: str) -> list[str]:
    """Return the models whose episodes count: the trained one; where none is trained here, all that are asked."""
    if plan.trained is not None:
        return [model]
    asked_models = (str(getattr(llm, "model_name", name)) for name, llm in plan.config.llms.items())
    return sorted({without_version(asked_model) for asked_model in asked_models} | {model})


def _token(backend: ARTBackendConfig) -> dict[str, str]:
    return {"token": token} if (token := backend.token) else {}


def _art_server(plan: Plan, backend: ARTBackendConfig) -> dict[str, Any]:
    """Return the server's part; it counts where the server is started here."""
    base_model = Path(backend.base_model)
    settings = {
        "model": backend.name,
        "base_model": str(base_model.resolve()) if base_model.is_dir() else None,
        "max_tokens": None if backend.init_args is None else backend.init_args.max_seq_length,
        "keep_checkpoints": 1 if backend.delete_old_checkpoints else None,
        "logprobs_mode": "processed" if processed_logprobs(plan.config) else None,
    }
    return {**{name: value for name, value in settings.items() if value is not None}, **_token(backend)}
