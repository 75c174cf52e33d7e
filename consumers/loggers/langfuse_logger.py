"""Steps and evaluations → Langfuse scores of a session per run id; a score that comes again replaces itself."""

from datetime import UTC, datetime
from typing import Any

from langfuse import Langfuse

from rollbus.consumers.loggers.protocol import evaluation_points, step_points
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import stable_id
from rollbus.schemas.steps import Evaluation, StepCompleted


class LangfuseLogger:
    """One project; keys and address come from LANGFUSE_… variables unless given."""

    def __init__(self, *, namespace: str, **options: Any) -> None:
        """Ask Langfuse whether it takes the keys; raises ConfigurationError where it does not."""
        self._namespace = namespace
        self._client = Langfuse(**options)
        try:
            accepted = self._client.auth_check()
        except Exception as error:
            raise ConfigurationError(f"Langfuse does not answer: {error}; check LANGFUSE_BASE_URL") from error
        if not accepted:
            raise ConfigurationError(
                "Langfuse does not take the keys; check LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY"
            )

    def log_step(self, record: StepCompleted) -> None:
        """Log a step."""
        self._log(record.run_id, record.step, record.completed_at_ms, step_points(record), step=record.step)

    def log_evaluation(self, record: Evaluation) -> None:
        """Log a measurement."""
        version = record.policy_version
        run = record.run_id or record.model
        self._log(run, version, record.evaluated_at_ms, evaluation_points(record), policy_version=version)

    def close(self) -> None:
        """Send what waits."""
        self._client.flush()
        self._client.shutdown()

    def _log(self, run_id: str, position: int, at_ms: int, points: dict[str, float], **metadata: int) -> None:
        session = f"{self._namespace}{run_id}"
        for name, value in points.items():
            self._client.create_score(
                name=name,
                value=value,
                data_type="NUMERIC",
                session_id=session,
                score_id=stable_id("langfuse", session, name, position),
                timestamp=datetime.fromtimestamp(at_ms / 1000, UTC),
                metadata=metadata,
            )
