"""A finetuning configuration of the NeMo Agent Toolkit: every section that a run needs, each with one part."""

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollbus.local.process.tether import tethered
from rollbus.stack_settings import HOST
from tests.console import ROLLBUS
from tests.installs import own_environment

Section = Mapping[str, Any]


def configuration(
    url: str,
    *,
    workflow: str,
    evaluators: Mapping[str, Section],
    dataset: str | Path,
    builder: Section,
    adapter: Section,
    trainer: str = "openpipe_art_trainer",
    folder: str | Path = "",
    concurrency: int = 4,
    llm: Section | None = None,
    **finetuning: Any,
) -> dict[str, Any]:
    """Return the sections; the parts are named `policy`, `b`, `a` and `t`, and the first evaluator rewards.

    `url` is the model's, `folder` where output goes, and `finetuning` more of that section.
    """
    model = {"_type": "openai", "model_name": "base", "base_url": url, "api_key": "none"}
    return {
        "llms": {"policy": {**model, **(llm or {})}},
        "workflow": {"_type": workflow, "llm": "policy"},
        "eval": {
            "general": {
                "max_concurrency": concurrency,
                "output_dir": str(Path(folder, "eval")),
                "dataset": {"_type": Path(dataset).suffix[1:], "file_path": str(dataset)},
            },
            "evaluators": {name: dict(section) for name, section in evaluators.items()},
        },
        "trajectory_builders": {"b": dict(builder)},
        "trainer_adapters": {"a": dict(adapter)},
        "trainers": {"t": {"_type": trainer}},
        "finetuning": {
            "enabled": True,
            "trainer": "t",
            "trajectory_builder": "b",
            "trainer_adapter": "a",
            "reward_function": {"name": next(iter(evaluators))},
            "output_dir": str(Path(folder, "output")),
            **finetuning,
        },
    }


def art_builder(generations: int) -> dict[str, Any]:
    """Return the guides' builder."""
    return {"_type": "openpipe_art_traj_builder", "num_generations": generations}


def art_adapter(port: int, name: str, **training: float) -> dict[str, Any]:
    """Return the guides' adapter, for a server on this machine."""
    backend = {"ip": HOST, "port": port, "name": name, "base_model": "base"}
    return {"_type": "openpipe_art_trainer_adapter", "backend": backend, "training": training}


def start_finetune(folder: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start `rollbus finetune` as a user does, in the folder of its two files; what it says goes to finetune.log."""
    files = ("--config", "rollbus.yaml", "finetune", "--config_file", "finetune.yml")
    environment = {**own_environment(), "OMP_NUM_THREADS": "1"}
    with (folder / "finetune.log").open("ab") as log:
        return subprocess.Popen(
            [*tethered(), ROLLBUS, *files, *options], cwd=folder, stdout=log, stderr=log, env=environment
        )
