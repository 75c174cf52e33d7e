"""Steps and evaluations → MLflow: one MLflow run per run id."""

import os
import re

from mlflow import MlflowClient
from mlflow.entities import Metric
from mlflow.exceptions import MlflowException

from rollbus.consumers.loggers.protocol import evaluation_points, step_points
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import hash_bytes
from rollbus.schemas.records.steps import Evaluation, StepCompleted

TAG = "rollbus.run"
_REFUSED_CHARACTERS = re.compile(r"[^\w\-. /]")
"""Characters that MLflow refuses in names, and the colon, which stands around their codes."""
_REFUSED_PARTS = ("", ".", "..")
"""Between the slashes of a name: MLflow takes names for paths."""
_LONGEST_NAME = 250
_CLIENT_DEFAULTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}
"""For what the environment does not set: a wrong address stops the start at once, and `follow_kafka` tries again later.
Without them the client tries eight times, for four minutes."""


class MlflowLogger:
    """Logs to one experiment of MLflow."""

    def __init__(self, tracking_uri: str, *, namespace: str, experiment: str = "rollbus") -> None:
        """Find or create the experiment; raises ConfigurationError if that fails."""
        self._namespace = namespace
        self._mlflow_runs: dict[str, str] = {}
        """MLflow's id of each run, by our id."""
        self._points_by_series: dict[tuple[str, str], set[tuple[int, int]]] = {}
        """Steps and times that MLflow has, by its run and the metric's name; asked for once."""
        for name, value in _CLIENT_DEFAULTS.items():
            os.environ.setdefault(name, value)
        try:
            self._client = MlflowClient(tracking_uri)
            stored_experiment = self._client.get_experiment_by_name(experiment)
            self._experiment = (
                stored_experiment.experiment_id if stored_experiment else self._client.create_experiment(experiment)
            )
        except (MlflowException, ImportError, OSError) as error:
            raise ConfigurationError(
                f"MLflow at {tracking_uri}: {error}; name a server with --tracking-uri "
                "(a database needs the full mlflow)"
            ) from error

    def log_step(self, record: StepCompleted) -> None:
        """Log a step under its number."""
        self._log(record.run_id, record.step, record.completed_at_ms, step_points(record))

    def log_evaluation(self, record: Evaluation) -> None:
        """Log a measurement under its version."""
        run_id = record.run_id or record.model
        self._log(run_id, record.policy_version, record.evaluated_at_ms, evaluation_points(record))

    def close(self) -> None:
        """Do nothing: everything is sent, and runs stay open, as training may go on."""

    def _log(self, run_id: str, step: int, at_ms: int, points: dict[str, float]) -> None:
        """Log the points that MLflow does not have yet: a record that is read again changes nothing."""
        mlflow_run = self._open_run(run_id)
        points = {name_of_point(name): value for name, value in points.items()}
        new_points = {
            name: value for name, value in points.items() if (step, at_ms) not in self._find_points(mlflow_run, name)
        }
        if new_points:
            metrics = [Metric(name, value, at_ms, step) for name, value in new_points.items()]
            self._client.log_batch(mlflow_run, metrics)
            for name in new_points:
                self._points_by_series[mlflow_run, name].add((step, at_ms))

    def _find_points(self, mlflow_run: str, name: str) -> set[tuple[int, int]]:
        series = mlflow_run, name
        if series not in self._points_by_series:
            history = self._client.get_metric_history(*series)
            self._points_by_series[series] = {(metric.step, metric.timestamp) for metric in history}
        return self._points_by_series[series]

    def _open_run(self, run_id: str) -> str:
        """Return MLflow's id of a run; find the run by its tag, or create it."""
        if run_id not in self._mlflow_runs:
            name = f"{self._namespace}{run_id}"
            runs = self._client.search_runs([self._experiment], f"tags.`{TAG}` = '{name}'")
            run = runs[0] if runs else self._client.create_run(self._experiment, tags={TAG: name}, run_name=name)
            self._mlflow_runs[run_id] = run.info.run_id
        return self._mlflow_runs[run_id]


def name_of_point(name: str) -> str:
    """Return a name that MLflow takes, another for each name: a point that it refuses would block all later ones."""
    text = _REFUSED_CHARACTERS.sub(lambda match: f":{ord(match[0]):x}:", name)
    text = "/".join(f":{part}" if part in _REFUSED_PARTS else part for part in text.split("/"))
    if len(text) <= _LONGEST_NAME:
        return text
    digest = f":{hash_bytes(name.encode())}"
    return text[: _LONGEST_NAME - len(digest)].rstrip("/.") + digest
