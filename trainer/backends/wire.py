"""The backend protocol over HTTP: paths and JSON, for the client and the server alike.

    GET  CAPABILITIES                  → Capabilities
    POST BATCHES          TrainRequest → {"batch_hash": …}, 202; the same hash again joins or finds the first
    GET  BATCH            ?wait_s=     → JobStatus, as soon as it is final or after `wait_s` (at most 30);
                          &result=1      with {"result": TrainResult} in it once it is completed
    POST CANCEL                        → JobStatus
    GET  RESULT                        → {"result": TrainResult or null}
    GET  VERSIONS                      → Versions
    POST SERVING          {"version": 3, "rollback": false} → Versions
    GET  HEALTH                        → 200, or 503 while it takes no batches

Errors are {"error": {"message": …, "retriable": …}}: 4xx where asking again gives the same answer, 503 where it may
not. Bytes travel as base64, so token ids and log-probs arrive bit for bit.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any, Literal

from rollbus.schemas.errors import RejectedError, ServiceError, UnavailableError
from rollbus.trainer.backends.protocol import (
    Capabilities,
    JobStatus,
    TrainConfig,
    TrainRequest,
    TrainResult,
    TrainTrajectory,
    TurnTokens,
    Version,
    Versions,
)

Json = dict[str, Any]

PREFIX = "/rollbus/v1"
CAPABILITIES = f"{PREFIX}/capabilities"
BATCHES = f"{PREFIX}/batches"
BATCH = f"{BATCHES}/{{batch_hash}}"
CANCEL = f"{BATCH}/cancel"
RESULT = f"{BATCH}/result"
VERSIONS = f"{PREFIX}/versions"
SERVING = f"{PREFIX}/serving"
HEALTH = "/health"
LONGEST_WAIT_S = 30.0


def error_to_json(message: str, *, retriable: bool) -> Json:
    return {"error": {"message": message, "retriable": retriable}}


def error_from_json(body: Any, status: int) -> ServiceError:
    """The error that the server meant; any 5xx without a body of ours is retriable."""
    error = body.get("error", {}) if isinstance(body, Mapping) else {}
    message = error.get("message", f"the server answered {status}")
    retriable = error.get("retriable", status >= 500)
    return UnavailableError(message) if retriable else RejectedError(message)


def request_to_json(request: TrainRequest) -> Json:
    return {
        "batch_hash": request.batch_hash,
        "run_id": request.run_id,
        "model": request.model,
        "base_version": request.base_version,
        "config": asdict(request.config),
        "trajectories": [_trajectory_to_json(trajectory) for trajectory in request.trajectories],
    }


def request_from_json(body: Mapping[str, Any]) -> TrainRequest:
    """RejectedError names the first field that is missing or wrong."""
    try:
        return TrainRequest(
            batch_hash=_text(body, "batch_hash"),
            run_id=_text(body, "run_id"),
            model=_text(body, "model"),
            base_version=int(body["base_version"]),
            config=config_from_json(body.get("config") or {}),
            trajectories=tuple(_trajectory_from_json(item) for item in body["trajectories"]),
        )
    except KeyError as error:
        raise RejectedError(f"training request lacks the field {error}") from error
    except (TypeError, ValueError, binascii.Error) as error:
        raise RejectedError(f"training request cannot be read: {error}") from error


def config_from_json(body: Mapping[str, Any]) -> TrainConfig:
    known = {item.name for item in fields(TrainConfig)}
    unknown = sorted(set(body) - known)
    if unknown:
        raise RejectedError(f"training config has unknown fields {unknown}; known are {sorted(known)}")
    return TrainConfig(**body)


def result_to_json(result: TrainResult) -> Json:
    return {**asdict(result), "trained_ids": list(result.trained_ids)}


def result_from_json(body: Mapping[str, Any]) -> TrainResult:
    return TrainResult(**{**body, "trained_ids": tuple(body["trained_ids"])})


def status_to_json(status: JobStatus) -> Json:
    return asdict(status)


def status_from_json(body: Mapping[str, Any]) -> JobStatus:
    return JobStatus(**{name: value for name, value in body.items() if name != "result"})


def versions_to_json(versions: Versions) -> Json:
    return {**asdict(versions), "known": [asdict(version) for version in versions.known]}


def versions_from_json(body: Mapping[str, Any]) -> Versions:
    known = tuple(Version(**version) for version in body["known"])
    return Versions(head=body["head"], serving=body["serving"], known=known)


def capabilities_to_json(capabilities: Capabilities) -> Json:
    return asdict(capabilities)


def capabilities_from_json(body: Mapping[str, Any]) -> Capabilities:
    return Capabilities(**body)


def _trajectory_to_json(trajectory: TrainTrajectory) -> Json:
    return {
        "trajectory_id": trajectory.trajectory_id,
        "group_id": trajectory.group_id,
        "advantage": trajectory.advantage,
        "reward": trajectory.reward,
        "turns": [
            {
                "prompt_token_ids": _encode(turn.prompt_token_ids),
                "completion_token_ids": _encode(turn.completion_token_ids),
                "logprobs": _encode(turn.logprobs),
                "policy_version": turn.policy_version,
                "history": turn.history,
                "temperature": turn.temperature,
                "logprob_mode": turn.logprob_mode,
            }
            for turn in trajectory.turns
        ],
    }


def _trajectory_from_json(body: Mapping[str, Any]) -> TrainTrajectory:
    return TrainTrajectory(
        trajectory_id=_text(body, "trajectory_id"),
        group_id=_text(body, "group_id"),
        advantage=float(body["advantage"]),
        reward=float(body["reward"]),
        turns=tuple(
            TurnTokens(
                prompt_token_ids=_decode(turn["prompt_token_ids"]),
                completion_token_ids=_decode(turn["completion_token_ids"]),
                logprobs=_decode(turn["logprobs"]),
                policy_version=int(turn["policy_version"]),
                history=int(turn.get("history", 0)),
                temperature=float(turn.get("temperature", 1.0)),
                logprob_mode=_mode(turn.get("logprob_mode", "raw")),
            )
            for turn in body["turns"]
        ),
    )


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a non-empty string, not {value!r}")
    return value


def _mode(value: Any) -> Literal["raw", "processed"]:
    if value not in ("raw", "processed"):
        raise ValueError(f"logprob_mode must be raw or processed, not {value!r}")
    mode: Literal["raw", "processed"] = value
    return mode


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _decode(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
