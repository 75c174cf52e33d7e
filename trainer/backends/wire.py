"""The backend protocol over HTTP: paths and JSON, for the client and the server alike.

    GET  CAPABILITIES                  → Capabilities
    POST BATCHES          TrainRequest → {"batch_hash": …}, 202; the same hash again joins or finds the first;
                          a body that is not JSON: `wire_batch`
    PUT  PREPARED         TrainRequest → {"prepared": …}, as bytes too; kept until it is begun or the next one comes
    POST PREPARED         {"prepared": …, "base_version": 3} → as BATCHES with the one that was sent before; 4xx where
                          it is not there any more: send it whole
    GET  BATCH            ?wait_s=     → JobStatus, as soon as it is final or after `wait_s` (at most 30);
                          &result=1      with {"result": TrainResult} in it once it is completed
    POST CANCEL                        → JobStatus
    GET  RESULT                        → {"result": TrainResult or null}
    GET  VERSIONS                      → Versions
    POST SERVING          {"version": 3, "rollback": false} → Versions
    GET  HEALTH                        → 200, or 503 while it takes no batches

Errors are {"error": {"message": …, "retriable": …}}: 4xx where asking again gives the same answer, 503 where it may
not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from rollbus.schemas.errors import RejectedError, ServiceError, UnavailableError
from rollbus.trainer.backends.protocol import (
    Capabilities,
    JobStatus,
    TrainResult,
    Version,
    Versions,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Json = dict[str, Any]

PREFIX = "/rollbus/v1"
CAPABILITIES = f"{PREFIX}/capabilities"
BATCHES = f"{PREFIX}/batches"
PREPARED = f"{PREFIX}/prepared"
BATCH = f"{BATCHES}/{{batch_hash}}"
CANCEL = f"{BATCH}/cancel"
RESULT = f"{BATCH}/result"
VERSIONS = f"{PREFIX}/versions"
SERVING = f"{PREFIX}/serving"
HEALTH = "/health"
LONGEST_WAIT_S = 30.0


def error_to_json(message: str, *, retriable: bool) -> Json:
    return {"error": {"message": message, "retriable": retriable}}


def error_from_json(body: Any, status: int, *, asked: str) -> ServiceError:
    """The error that the server meant; any 5xx without a body of ours is retriable. `asked` says what, and where."""
    said = body.get("error") if isinstance(body, Mapping) else None
    error = said if isinstance(said, Mapping) else {}
    message = error.get("message", f"{asked} answered {status}; see that `backend: url` is the art-server's own")
    retriable = error.get("retriable", status >= 500)
    return UnavailableError(message) if retriable else RejectedError(message)


def result_to_json(result: TrainResult) -> Json:
    return {**asdict(result), "trained_ids": list(result.trained_ids)}


def result_from_json(body: Mapping[str, Any]) -> TrainResult:
    return TrainResult(**{**_known(TrainResult, body), "trained_ids": tuple(body["trained_ids"])})


def status_to_json(status: JobStatus) -> Json:
    return asdict(status)


def status_from_json(body: Mapping[str, Any]) -> JobStatus:
    return JobStatus(**_known(JobStatus, body))


def versions_to_json(versions: Versions) -> Json:
    return {**asdict(versions), "known": [asdict(version) for version in versions.known]}


def versions_from_json(body: Mapping[str, Any]) -> Versions:
    known = tuple(Version(**_known(Version, version)) for version in body["known"])
    return Versions(head=body["head"], serving=body["serving"], known=known)


def capabilities_to_json(capabilities: Capabilities) -> Json:
    return asdict(capabilities)


def capabilities_from_json(body: Mapping[str, Any]) -> Capabilities:
    return Capabilities(**_known(Capabilities, body))


def _known(kind: type[DataclassInstance], body: Mapping[str, Any]) -> Json:
    """Leave out what another release of the server says besides."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in body.items() if name in names}
