"""Steps and evaluations → OpenPipe request logs, one reported call each, its numbers in the call's metadata.

OpenPipe knows calls to a model, not metrics: the call's messages say in words what was done, and every number is a
metadata value to filter and chart by. Its own client cannot stand beside ART (it asks for an older `openai`), so the
two requests that are needed are made here: `GET /models` to try the key, `POST /report` for each record. Reports have
no id of their own: a record that comes again after a restart is a second call with the same `rollbus.id`.
"""

import logging
from collections.abc import Mapping
from typing import Any

import httpx

from rollbus.consumers.loggers.protocol import evaluation_points, step_points
from rollbus.schemas.errors import ConfigurationError
from rollbus.schemas.ids import stable_id
from rollbus.schemas.steps import Evaluation, StepCompleted

logger = logging.getLogger(__name__)

BASE_URL = "https://api.openpipe.ai/api/v1"
TIMEOUT_S = 30.0
_PASSING = frozenset({401, 403, 404, 408, 429})
"""What may be otherwise the next time, as every answer from 500 on; another refusal of one record is final."""


class OpenPipeLogger:
    """One project, which the key names."""

    def __init__(self, *, namespace: str, api_key: str, base_url: str = BASE_URL) -> None:
        """Ask OpenPipe whether it takes the key; raises ConfigurationError where it does not."""
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
            raise ConfigurationError(f"OpenPipe at {self._url} answers {_said(answer)}; check {hint}")

    def log_step(self, record: StepCompleted) -> None:
        """Log a step."""
        did = f"step {record.step} of run {record.run_id}: version {record.base_version} to {record.policy_version}"
        fields = {"kind": "step", "step": record.step, "batch": record.batch_hash}
        times = (record.started_at_ms, record.completed_at_ms)
        self._report(record.run_id, f"{record.model}@{record.policy_version}", did, fields, step_points(record), times)

    def log_evaluation(self, record: Evaluation) -> None:
        """Log a measurement."""
        model = f"{record.model}@{record.policy_version}"
        did = f"evaluation {record.name} of {model} over {record.episodes} episodes"
        fields = {"kind": "evaluation", "evaluation": record.name, "evaluation_id": record.evaluation_id}
        times = (record.evaluated_at_ms, record.evaluated_at_ms)
        self._report(record.run_id or record.model, model, did, fields, evaluation_points(record), times)

    def close(self) -> None:
        """End the client; nothing waits to be sent."""
        self._client.close()

    def _report(
        self,
        run_id: str,
        model: str,
        did: str,
        fields: Mapping[str, object],
        points: dict[str, float],
        times_ms: tuple[int, int],
    ) -> None:
        run = f"{self._namespace}{run_id}"
        named = {"rollbus.run": run, **{f"rollbus.{name}": value for name, value in fields.items()}}
        known = stable_id("openpipe", *named.values())
        metadata = {name: str(value) for name, value in {**named, "rollbus.id": known, **points}.items()}
        told = "\n".join(f"{name}: {value:g}" for name, value in sorted(points.items()))
        body = {
            "requestedAt": times_ms[0],
            "receivedAt": times_ms[1],
            "reqPayload": {"model": model, "messages": [{"role": "user", "content": did}], "metadata": metadata},
            "respPayload": {
                "id": known,
                "object": "chat.completion",
                "created": times_ms[1] // 1000,
                "model": model,
                "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": told}}],
            },
            "statusCode": 200,
        }
        self._send(body, did)

    def _send(self, body: dict[str, Any], did: str) -> None:
        answer = self._client.post(f"{self._url}/report", json=body)
        if answer.is_success:
            return
        if answer.status_code in _PASSING or answer.status_code >= 500:
            raise OSError(f"OpenPipe did not take {did}: {_said(answer)}")
        logger.warning("passed over what OpenPipe refuses record=%r answer=%s", did, _said(answer))


def _said(answer: httpx.Response) -> str:
    return f"{answer.status_code} {answer.text[:200]}".strip()
