"""Steps and evaluations → OpenPipe request logs, one reported call each, its numbers in the call's metadata.

OpenPipe stores calls to a model, not metrics: the call's messages describe the record in words, and every number is a
metadata value to filter and chart by. Its own client cannot be installed next to ART (it needs an older `openai`), so
this module makes the two requests itself: `GET /models` to try the key, `POST /report` for each record. Reports have
no id: a record that comes again after a restart is a second call with the same `rollbus.id`.
"""

import logging
from collections.abc import Mapping
from typing import Any

import httpx

from rollbus.consumers.loggers.protocol import evaluation_points, step_points
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import stable_id
from rollbus.schemas.records.steps import Evaluation, StepCompleted

logger = logging.getLogger(__name__)

BASE_URL = "https://api.openpipe.ai/api/v1"
TIMEOUT_S = 30.0
_PASSING_STATUSES = frozenset({401, 403, 404, 408, 429})
"""Statuses that may be different the next time, like every one from 500 on; any other refusal is final."""


class OpenPipeLogger:
    """Logs to the project of OpenPipe that the key belongs to."""

    def __init__(self, *, namespace: str, api_key: str, base_url: str = BASE_URL) -> None:
        """Ask OpenPipe whether it accepts the key; raises ConfigurationError if not."""
        self._namespace = namespace
        self._url = base_url.rstrip("/")
        self._client = httpx.Client(headers={"Authorization": f"Bearer {api_key}"}, timeout=TIMEOUT_S)
        try:
            answer = self._client.get(f"{self._url}/models")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._client.close()
            raise ConfigurationError(f"OpenPipe at {self._url}: {error}; check OPENPIPE_BASE_URL") from error
        if not answer.is_success:
            self._client.close()
            hint = "OPENPIPE_API_KEY" if answer.status_code in (401, 403) else "OPENPIPE_BASE_URL"
            raise ConfigurationError(f"OpenPipe at {self._url} answers {_short_answer(answer)}; check {hint}")

    def log_step(self, record: StepCompleted) -> None:
        """Log a step; raises OSError if OpenPipe does not take it now."""
        summary = f"step {record.step} of run {record.run_id}: version {record.base_version} to {record.policy_version}"
        fields = {"kind": "step", "step": record.step, "batch": record.batch_hash}
        times_ms = (record.started_at_ms, record.completed_at_ms)
        self._report(
            record.run_id, f"{record.model}@{record.policy_version}", summary, fields, step_points(record), times_ms
        )

    def log_evaluation(self, record: Evaluation) -> None:
        """Log an evaluation; raises OSError if OpenPipe does not take it now."""
        model = f"{record.model}@{record.policy_version}"
        summary = f"evaluation {record.name} of {model} over {record.episodes} episodes"
        fields = {"kind": "evaluation", "evaluation": record.name, "evaluation_id": record.evaluation_id}
        times_ms = (record.evaluated_at_ms, record.evaluated_at_ms)
        self._report(record.run_id or record.model, model, summary, fields, evaluation_points(record), times_ms)

    def close(self) -> None:
        """Close the client; everything is sent already."""
        self._client.close()

    def _report(
        self,
        run_id: str,
        model: str,
        summary: str,
        fields: Mapping[str, object],
        points: dict[str, float],
        times_ms: tuple[int, int],
    ) -> None:
        run = f"{self._namespace}{run_id}"
        named_fields = {"rollbus.run": run, **{f"rollbus.{name}": value for name, value in fields.items()}}
        report_id = stable_id("openpipe", *named_fields.values())
        metadata = {name: str(value) for name, value in {**named_fields, "rollbus.id": report_id, **points}.items()}
        numbers = "\n".join(f"{name}: {value:g}" for name, value in sorted(points.items()))
        answer = {"role": "assistant", "content": numbers}
        body = {
            "requestedAt": times_ms[0],
            "receivedAt": times_ms[1],
            "reqPayload": {"model": model, "messages": [{"role": "user", "content": summary}], "metadata": metadata},
            "respPayload": {
                "id": report_id,
                "object": "chat.completion",
                "created": times_ms[1] // 1000,
                "model": model,
                "choices": [{"index": 0, "finish_reason": "stop", "message": answer}],
            },
            "statusCode": 200,
        }
        self._send(body, summary)

    def _send(self, body: dict[str, Any], summary: str) -> None:
        """Send a report; raises OSError where trying again may help, and logs what OpenPipe refuses for good."""
        answer = self._client.post(f"{self._url}/report", json=body)
        if answer.is_success:
            return
        if answer.status_code in _PASSING_STATUSES or answer.status_code >= 500:
            raise OSError(f"OpenPipe did not take {summary}: {_short_answer(answer)}")
        logger.warning("skipped what OpenPipe refuses record=%r answer=%s", summary, _short_answer(answer))


def _short_answer(answer: httpx.Response) -> str:
    return f"{answer.status_code} {answer.text[:200]}".strip()
