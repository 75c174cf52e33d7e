"""ART 0.5.17's own HTTP server, as `art run` starts it: `server.py PORT DATA MODEL`.

Routes, request validation and tokenising are the release's. Only the update is left out, which needs a GPU: in its
place what it would train on is written to a file per step, and the step's directory is made.
"""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import art.local
from art import TrainableModel, TrajectoryGroup, dev
from art.cli import run
from art.local import LocalBackend
from art.model import Model
from art.preprocessing.tokenize import tokenize_trajectory_groups
from art.types import TrainConfig
from transformers import AutoTokenizer

PORT, DATA, MODEL = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]


class Recording(LocalBackend):
    def __init__(self) -> None:
        super().__init__(in_process=True, path=str(DATA))
        self.tokenizer = AutoTokenizer.from_pretrained(MODEL, local_files_only=True)

    async def register(self, model: Model) -> None:
        (self._checkpoints(model) / "0000").mkdir(parents=True, exist_ok=True)

    async def _prepare_backend_for_training(
        self, model: TrainableModel, config: dev.OpenAIServerConfig | None = None
    ) -> tuple[str, str]:
        return "http://127.0.0.1:1/v1", "default"

    async def _train_model(  # type: ignore[override]
        self,
        model: TrainableModel,
        trajectory_groups: list[TrajectoryGroup],
        config: TrainConfig,
        dev_config: dev.TrainConfig,
        verbose: bool = False,
    ) -> AsyncIterator[dict[str, float]]:
        step = await self._get_step(model) + 1
        rows = tokenize_trajectory_groups(
            self.tokenizer, trajectory_groups, allow_training_without_logprobs=False, scale_rewards=False
        )
        seen: dict[str, Any] = {
            "config": config.model_dump(),
            "dev_config": dict(dev_config),
            "rows": [
                {
                    "token_ids": row.token_ids,
                    "mask": row.assistant_mask,
                    "logprobs": [value for value in row.logprobs if value == value],
                    "advantage": row.advantage,
                }
                for row in rows
            ],
        }
        (DATA / f"step-{step}.json").write_text(json.dumps(seen), encoding="utf-8")
        (self._checkpoints(model) / f"{step:04d}").mkdir()
        yield {"loss/train": 0.25, "data/step_num_gradient_steps": 1.0}

    def _checkpoints(self, model: Any) -> Path:
        return DATA / model.project / "models" / model.name / "checkpoints"


art.local.LocalBackend = Recording  # type: ignore[misc] # what `art run` makes its server around
run(host="127.0.0.1", port=PORT)
