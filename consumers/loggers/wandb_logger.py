"""Steps and evaluations → Weights & Biases, online or offline: one W&B run per run id."""

from pathlib import Path
from typing import Any, Literal

import wandb

from rollbus.consumers.loggers.protocol import evaluation_points, step_points
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import stable_id
from rollbus.schemas.steps import Evaluation, StepCompleted

STEP, VERSION = "step", "policy_version"


class WandbLogger:
    """One project."""

    def __init__(
        self,
        project: str,
        *,
        namespace: str,
        entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
        folder: Path = Path(),
    ) -> None:
        """Log in, unless offline; raises ConfigurationError without a key that W&B takes."""
        if mode == "online":
            try:
                wandb.login(verify=True)
            except Exception as error:
                raise ConfigurationError(
                    f"W&B does not let us in: {error}; set WANDB_API_KEY, or --mode offline"
                ) from error
        self._project, self._entity, self._mode = project, entity, mode
        self._namespace, self._folder = namespace, folder
        self._runs: dict[str, Any] = {}
        self._last: dict[tuple[str, str], int] = {}

    def log_step(self, record: StepCompleted) -> None:
        """Log a step under its number."""
        self._log(record.run_id, STEP, record.step, step_points(record))

    def log_evaluation(self, record: Evaluation) -> None:
        """Log a measurement under its version."""
        self._log(record.run_id or record.model, VERSION, record.policy_version, evaluation_points(record))

    def close(self) -> None:
        """Finish every run; the same run goes on at the next start."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()

    def _log(self, run_id: str, axis: str, position: int, points: dict[str, float]) -> None:
        run = self._run(run_id)
        seen = self._last.get((run_id, axis), int(run.summary.get(axis, -1)))
        if axis == STEP and position <= seen:
            return
        self._last[run_id, axis] = position
        run.log({**points, axis: position})

    def _run(self, run_id: str) -> Any:
        if run_id not in self._runs:
            run = wandb.init(
                project=self._project,
                entity=self._entity,
                mode=self._mode,
                dir=str(self._folder),
                id=stable_id("wandb", self._namespace, run_id),
                name=f"{self._namespace}{run_id}",
                resume="allow",
                reinit="create_new",
            )
            run.define_metric("train/*", step_metric=STEP)
            run.define_metric("evaluation/*", step_metric=VERSION)
            self._runs[run_id] = run
        return self._runs[run_id]
