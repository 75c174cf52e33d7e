"""Steps and evaluations → Weights & Biases, online or offline: one W&B run per run id.

W&B adds every point that it gets, even twice. So the logger reads from the run's summary what the run already has: the
newest step, and marks of the newest evaluations, because evaluations come for older versions, too. Offline there is no
summary: each start writes a file of its own, and points that were logged but not yet committed to Kafka are in both.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import wandb

from rollbus.consumers.loggers.protocol import evaluation_points, step_points
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import stable_id
from rollbus.schemas.records.steps import Evaluation, StepCompleted

STEP, VERSION = "step", "policy_version"
EVALUATION_MARKS = "rollbus_evaluations"
"""Key in a run's summary: marks of the evaluations that it has."""
MOST_MARKS = 500
"""Far more than come between two commits; a summary has to stay small."""


class WandbLogger:
    """Logs to one project of W&B."""

    def __init__(
        self,
        project: str,
        *,
        namespace: str,
        entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
        folder: Path = Path(),
        open_run: Callable[..., Any] = wandb.init,
    ) -> None:
        """Log in, unless offline; raises ConfigurationError without a valid key."""
        if mode == "online":
            try:
                wandb.login(verify=True)
            except Exception as error:
                raise ConfigurationError(
                    f"W&B refuses the login: {error}; set WANDB_API_KEY, or give --mode offline"
                ) from error
        self._project, self._entity, self._mode = project, entity, mode
        self._namespace, self._folder = namespace, folder
        self._open_run = open_run
        self._runs: dict[str, Any] = {}
        self._newest_step_by_run: dict[str, int] = {}
        self._evaluation_marks_by_run: dict[str, list[str]] = {}
        """The newest last."""

    def log_step(self, record: StepCompleted) -> None:
        """Log a step under its number, unless the run has this step or a later one."""
        run = self._find_or_open_run(record.run_id)
        if record.step > self._newest_step_by_run.get(record.run_id, int(run.summary.get(STEP, -1))):
            run.log({**step_points(record), STEP: record.step})
            self._newest_step_by_run[record.run_id] = record.step

    def log_evaluation(self, record: Evaluation) -> None:
        """Log an evaluation under its version, unless the run has it."""
        run_id = record.run_id or record.model
        run = self._find_or_open_run(run_id)
        marks = self._evaluation_marks_by_run.setdefault(run_id, str(run.summary.get(EVALUATION_MARKS, "")).split())
        mark = stable_id("evaluation", record.evaluation_id, record.evaluated_at_ms)[:8]
        if mark not in marks:
            run.log({**evaluation_points(record), VERSION: record.policy_version})
            marks[:] = [*marks, mark][-MOST_MARKS:]
            run.summary[EVALUATION_MARKS] = " ".join(marks)

    def close(self) -> None:
        """Finish every run; the same run goes on at the next start."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()

    def _find_or_open_run(self, run_id: str) -> Any:
        if run_id not in self._runs:
            run = self._open_run(
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
