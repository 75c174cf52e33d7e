"""Steps and evaluations → Weights & Biases, online or offline: one W&B run per run id.

W&B adds whatever it is given, so what a run has is read from its summary, which W&B gives back when the run goes on:
the newest step, and a note of the newest evaluations, as these come for any version. Offline nothing is given back:
each start writes a file of its own, and what had been logged and not yet committed to Kafka is in both.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import wandb

from rollbus.consumers.loggers.protocol import evaluation_points, step_points
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import stable_id
from rollbus.schemas.steps import Evaluation, StepCompleted

STEP, VERSION = "step", "policy_version"
LOGGED = "rollbus_evaluations"
"""In a run's summary: marks of the evaluations that it has."""
REMEMBERED = 500
"""Far more than come between two commits of one who follows; a summary is to stay small."""


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
        open_run: Callable[..., Any] = wandb.init,
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
        self._open_run = open_run
        self._runs: dict[str, Any] = {}
        self._last: dict[str, int] = {}
        """The newest step, by run."""
        self._evaluations: dict[str, list[str]] = {}
        """Marks of the newest evaluations, by run."""

    def log_step(self, record: StepCompleted) -> None:
        """Log a step under its number."""
        run = self._run(record.run_id)
        if record.step > self._last.get(record.run_id, int(run.summary.get(STEP, -1))):
            run.log({**step_points(record), STEP: record.step})
            self._last[record.run_id] = record.step

    def log_evaluation(self, record: Evaluation) -> None:
        """Log a measurement under its version."""
        run_id = record.run_id or record.model
        run = self._run(run_id)
        known = self._evaluations.setdefault(run_id, str(run.summary.get(LOGGED, "")).split())
        mark = stable_id("evaluation", record.evaluation_id)[:8]
        if mark not in known:
            run.log({**evaluation_points(record), VERSION: record.policy_version})
            known[:] = [*known, mark][-REMEMBERED:]
            run.summary[LOGGED] = " ".join(known)

    def close(self) -> None:
        """Finish every run; the same run goes on at the next start."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()

    def _run(self, run_id: str) -> Any:
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
