"""ART 0.5.7's own HTTP server, as `art run` starts it: `server.py PORT DATA`.

Routes, request validation and step counting are the release's. The update is left out, since it needs a GPU: in its
place what arrived is written to a file per step, and the step's directory is made.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import art.cli
import uvicorn
from art import TrainableModel, TrajectoryGroup, dev
from art.local import LocalBackend
from art.model import Model
from art.types import TrainConfig
from openai.types.chat.chat_completion import Choice

PORT, DATA = int(sys.argv[1]), Path(sys.argv[2])


class Recording(LocalBackend):
    def __init__(self) -> None:
        super().__init__(in_process=True, path=str(DATA))

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
        if (DATA / "broken").exists():
            raise RuntimeError("CUDA out of memory")
        step = await self._get_step(model) + 1
        rows = [
            {"reward": trajectory.reward, "chat": [_seen(each) for each in trajectory.messages_and_choices]}
            for group in trajectory_groups
            for trajectory in group.trajectories
        ]
        seen = {"config": config.model_dump(), "dev_config": dict(dev_config), "rows": rows}
        (DATA / f"step-{step}.json").write_text(json.dumps(seen), encoding="utf-8")
        (self._checkpoints(model) / f"{step:04d}").mkdir()
        yield {"loss": 0.25, "num_gradient_steps": 1}

    def _checkpoints(self, model: Any) -> Path:
        return DATA / model.project / "models" / model.name / "checkpoints"


def _seen(item: Any) -> Any:
    """A message as it came; of a choice, which the route leaves a dictionary, ids and log-probs."""
    if not isinstance(item, dict) or "finish_reason" not in item:
        return item
    choice = Choice.model_validate(item)
    assert choice.logprobs is not None
    content = choice.logprobs.content or []
    return [[int(each.token.split(":")[1]) for each in content], [each.logprob for each in content]]


def serve(app: Any, *, host: str, port: int, **_: Any) -> None:
    """As uvicorn.run; the release patches asyncio in a way that today's uvicorn does not expect."""
    asyncio.run(uvicorn.Server(uvicorn.Config(app, host=host, port=port, log_level="warning")).serve())


uvicorn.run = serve
art.cli.LocalBackend = Recording  # type: ignore[misc] # what `art run` makes its server around
art.cli.run(host="127.0.0.1", port=PORT)
