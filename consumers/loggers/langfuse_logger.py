"""Steps and evaluations → Langfuse scores of a session per run id; a score that comes again replaces itself.

A record's scores go out in one request, and the next record waits for the answer. Langfuse's own queue would drop
what it cannot send without an error, and it would be lost.
"""

import logging
from datetime import UTC, datetime

from langfuse import Langfuse
from langfuse.api import IngestionEvent_ScoreCreate, ScoreBody, ScoreDataType

from rollbus.consumers.loggers.protocol import evaluation_points, step_points
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import stable_id
from rollbus.schemas.records.steps import Evaluation, StepCompleted

logger = logging.getLogger(__name__)

_PASSING = frozenset({401, 403, 408, 429})
"""Answers that may be different the next time, like every answer from 500 on; any other refusal is final."""


class LangfuseLogger:
    """One project; keys and address come from LANGFUSE_… variables unless given."""

    def __init__(
        self,
        *,
        namespace: str,
        public_key: str | None = None,
        secret_key: str | None = None,
        base_url: str | None = None,
    ) -> None:
        """Ask Langfuse whether it accepts the keys; raises ConfigurationError if not."""
        self._namespace = namespace
        self._client = Langfuse(public_key=public_key, secret_key=secret_key, base_url=base_url)
        try:
            accepted = self._client.auth_check()
        except Exception as error:
            raise ConfigurationError(f"Langfuse does not answer: {error}; check LANGFUSE_BASE_URL") from error
        if not accepted:
            raise ConfigurationError(
                "Langfuse does not accept the keys; check LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY"
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
        """Close the client; everything is sent already."""
        self._client.shutdown()

    def _log(self, run_id: str, position: int, at_ms: int, points: dict[str, float], **metadata: int) -> None:
        session = f"{self._namespace}{run_id}"
        at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat()
        scores = [
            ScoreBody(
                id=stable_id("langfuse", session, name, position),
                session_id=session,
                name=name,
                value=value,
                data_type=ScoreDataType("NUMERIC"),
                metadata=metadata,
            )
            for name, value in points.items()
        ]
        answer = self._client.api.ingestion.batch(
            batch=[
                IngestionEvent_ScoreCreate(id=stable_id("event", score.id or "", at_ms), timestamp=at, body=score)
                for score in scores
            ]
        )
        for error in answer.errors:
            if error.status in _PASSING or error.status >= 500:
                raise OSError(f"Langfuse did not take a score: {error.status} {error.message}")
            logger.warning("skipped a score that Langfuse refuses status=%d error=%s", error.status, error.message)
