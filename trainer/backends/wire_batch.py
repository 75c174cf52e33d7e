"""A training request as bytes: one line of JSON, then the bytes of every turn, in the order of the line's lengths.

Token ids and log-probs are most of a batch and are bytes already; as text they would be copied and checked several
times while the backend waits. The line holds the length of each instead.
"""

import json
from dataclasses import asdict
from io import BytesIO
from typing import Any

from pydantic import TypeAdapter, ValidationError

from rollbus.schemas.errors import RejectedError
from rollbus.schemas.ids import parse_json
from rollbus.trainer.backends.protocol import TrainRequest

MEDIA_TYPE = "application/vnd.rollbus.batch"
PACKED = ("prompt_token_ids", "completion_token_ids", "logprobs")
"""Fields of a turn whose bytes follow the line."""
_REQUEST = TypeAdapter(TrainRequest)


def request_to_bytes(request: TrainRequest) -> bytes:
    """Return the body of a request."""
    head = asdict(request) | {"config": request.config.model_dump()}
    pieces: list[bytes] = []
    for trajectory in head["trajectories"]:
        for turn in trajectory["turns"]:
            of_turn = [turn.pop(name) for name in PACKED]
            turn["lengths"] = list(map(len, of_turn))
            pieces += of_turn
    return b"".join([json.dumps(head).encode(), b"\n", *pieces])


def request_from_bytes(body: bytes) -> TrainRequest:
    """RejectedError names the first field that is missing or wrong, or says what is wrong with the length."""
    line, _, packed = body.partition(b"\n")
    data = BytesIO(packed)
    try:
        head = parse_json(line)
        for trajectory in head["trajectories"]:
            for turn in trajectory["turns"]:
                turn |= zip(PACKED, (_cut_piece(data, length) for length in turn["lengths"]), strict=True)
        if rest := data.read():
            raise ValueError(f"{len(rest)} bytes at the end belong to no turn")
        return _REQUEST.validate_python(head)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RejectedError(f"training request: {place}: {first['msg']}, not {first['input']!r:.80}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise RejectedError(f"training request cannot be read: {error!r}") from error


def _cut_piece(data: BytesIO, length: Any) -> bytes:
    piece = data.read(length) if isinstance(length, int) and length >= 0 else b""
    if len(piece) != length:
        raise ValueError(f"a turn of {length!r} bytes, of which {len(piece)} are there; the body is cut short")
    return piece
