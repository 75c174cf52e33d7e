"""The backend protocol over HTTP: paths and JSON, for the client and the server alike.

    GET  CAPABILITIES                  → Capabilities
    POST BATCHES          TrainRequest → {"batch_hash": …}, 202; the same hash again joins or finds the first;
                          a body that is not JSON: `wire_batch`
    PUT  PREPARED         TrainRequest → {"prepared": …}, as bytes too; kept until it begins or the next one comes
    POST PREPARED         {"prepared": …, "base_version": 3} → as BATCHES with the one that was sent before; 4xx if
                          the server no longer has it: send it whole
    GET  BATCH            ?wait_s=     → JobStatus, as soon as it is final or after `wait_s` (at most 30);
                          &result=1      with {"result": TrainResult} in it once it is completed
    POST CANCEL                        → JobStatus
    GET  RESULT                        → {"result": TrainResult or null}
    GET  VERSIONS                      → Versions
    POST SERVING          {"version": 3, "rollback": false} → Versions
    GET  HEALTH                        → 200, or 503 while it takes no batches

Errors are {"error": {"message": …, "retriable": …}}: 4xx if asking again gives the same answer, 503 if it may
not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter

from rollbus.schemas.errors import RejectedError, ServiceError, UnavailableError
from rollbus.schemas.ids import parse_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Json = dict[str, Any]
RecordT = TypeVar("RecordT")

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


def error_from_json(body: Any, status: int, *, request: str) -> ServiceError:
    """Return the error of an answer; any 5xx without a body of ours is retriable. `asked` names the request."""
    error_body = body.get("error") if isinstance(body, Mapping) else None
    error = error_body if isinstance(error_body, Mapping) else {}
    message = error.get("message", f"{request} answered {status}; see that `backend: url` is the art-server's own")
    retriable = error.get("retriable", status >= 500)
    return UnavailableError(message) if retriable else RejectedError(message)


def read_object(body: bytes) -> Json:
    """Return the JSON object in a request's body."""
    try:
        document = parse_json(body)
    except ValueError as error:
        raise RejectedError(f"the request body is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise RejectedError("the request body must be a JSON object")
    return document


def to_json(record: DataclassInstance) -> Json:
    """Return a record of the protocol as JSON."""
    return asdict(record)


def from_json(kind: type[RecordT], body: Any) -> RecordT:
    """Read a record of the protocol; ignore fields that only another release knows."""
    hashable: Any = kind
    record: RecordT = _adapter(hashable).validate_python(body)
    return record


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)
