"""The backend protocol over HTTP: paths, JSON and the bytes of a batch, for the client and the server alike.

    GET  CAPABILITIES                  → Capabilities
    POST BATCHES          TrainRequest → {"batch_hash": …}, 202; the same hash again joins or finds the first;
                          the body is one line of JSON, then bytes
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

Token ids and log-probs are most of a batch and are bytes already; as text they would be copied and checked several
times while the backend waits. So they follow the line, in the order of the lengths that it holds in their place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from rollbus.schemas.errors import RejectedError, ServiceError, UnavailableError
from rollbus.schemas.ids import parse_json
from rollbus.trainer.backends.protocol import TrainRequest

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
BATCH_TYPE = "application/vnd.rollbus.batch"
"""Media type of a batch."""
PACKED = ("prompt_token_ids", "completion_token_ids", "logprobs")
"""Fields of a turn whose bytes follow the line."""


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


def request_to_bytes(request: TrainRequest) -> bytes:
    """Return a batch as the body of a request."""
    head = asdict(request) | {"config": request.config.model_dump()}
    pieces: list[bytes] = []
    for trajectory in head["trajectories"]:
        for turn in trajectory["turns"]:
            of_turn = [turn.pop(name) for name in PACKED]
            turn["lengths"] = list(map(len, of_turn))
            pieces += of_turn
    return b"".join([json.dumps(head).encode(), b"\n", *pieces])


def request_from_bytes(body: bytes) -> TrainRequest:
    """Read a batch; RejectedError names the first field that is wrong, or says what is wrong with the length."""
    line, _, packed = body.partition(b"\n")
    data = BytesIO(packed)
    try:
        head = parse_json(line)
        for trajectory in head["trajectories"]:
            for turn in trajectory["turns"]:
                turn |= zip(PACKED, (_cut_piece(data, length) for length in turn["lengths"]), strict=True)
        if rest := data.read():
            raise ValueError(f"{len(rest)} bytes at the end belong to no turn")
        return from_json(TrainRequest, head)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RejectedError(f"training request: {place}: {first['msg']}, not {first['input']!r:.80}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise RejectedError(f"training request cannot be read: {error!r}") from error


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _cut_piece(data: BytesIO, length: Any) -> bytes:
    piece = data.read(length) if isinstance(length, int) and length >= 0 else b""
    if len(piece) != length:
        raise ValueError(f"a turn of {length!r} bytes, of which {len(piece)} are there; the body is cut short")
    return piece
