"""A training request as bytes: one line of JSON, then the bytes of every turn, in the order of the line's lengths.

Token ids and log-probs are most of a batch and are bytes already; as text they would be copied and checked several
times while the backend waits. The line holds the length of each instead.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError

from rollbus.schemas.errors import RejectedError
from rollbus.trainer.backends.protocol import TrainConfig, TrainRequest, TrainTrajectory, TurnTokens

MEDIA_TYPE = "application/vnd.rollbus.batch"


def request_to_bytes(request: TrainRequest) -> bytes:
    """Return the body of a request."""
    head = {
        "batch_hash": request.batch_hash,
        "run_id": request.run_id,
        "model": request.model,
        "base_version": request.base_version,
        "config": request.config.model_dump(),
        "serve": request.serve,
        "trajectories": [_trajectory_to_json(trajectory) for trajectory in request.trajectories],
    }
    turns = (turn for trajectory in request.trajectories for turn in trajectory.turns)
    return b"".join([json.dumps(head).encode(), b"\n", *(data for turn in turns for data in _bytes_of(turn))])


def request_from_bytes(body: bytes) -> TrainRequest:
    """RejectedError names the first field that is missing or wrong, or says what is wrong with the length."""
    line, _, data = body.partition(b"\n")
    pieces = _Pieces(data)
    try:
        head = json.loads(line)
        request = TrainRequest(
            batch_hash=_text(head, "batch_hash"),
            run_id=_text(head, "run_id"),
            model=_text(head, "model"),
            base_version=int(head["base_version"]),
            config=config_from_json(head.get("config") or {}),
            trajectories=tuple(_trajectory_from_json(item, pieces) for item in head["trajectories"]),
            serve=_flag(head, "serve"),
        )
        pieces.check_end()
    except KeyError as error:
        raise RejectedError(f"training request lacks the field {error}") from error
    except (TypeError, ValueError) as error:
        raise RejectedError(f"training request cannot be read: {error}") from error
    return request


def config_from_json(body: Mapping[str, Any]) -> TrainConfig:
    """Read a configuration; RejectedError names unknown fields, or the first value that is wrong."""
    known = TrainConfig.model_fields.keys()
    unknown = sorted(set(body) - known)
    if unknown:
        raise RejectedError(f"training config has unknown fields {unknown}; known are {sorted(known)}")
    try:
        return TrainConfig.model_validate(dict(body))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise RejectedError(f"training config: {name or 'all'}: {first['msg']}, not {first['input']!r}") from error


def _bytes_of(turn: TurnTokens) -> tuple[bytes, bytes, bytes]:
    return turn.prompt_token_ids, turn.completion_token_ids, turn.logprobs


def _trajectory_to_json(trajectory: TrainTrajectory) -> dict[str, Any]:
    return {
        "trajectory_id": trajectory.trajectory_id,
        "group_id": trajectory.group_id,
        "advantage": trajectory.advantage,
        "reward": trajectory.reward,
        "turns": [
            {
                "lengths": list(map(len, _bytes_of(turn))),
                "policy_version": turn.policy_version,
                "history": turn.history,
                "temperature": turn.temperature,
                "logprob_mode": turn.logprob_mode,
            }
            for turn in trajectory.turns
        ],
    }


def _trajectory_from_json(body: Mapping[str, Any], pieces: "_Pieces") -> TrainTrajectory:
    return TrainTrajectory(
        trajectory_id=_text(body, "trajectory_id"),
        group_id=_text(body, "group_id"),
        advantage=float(body["advantage"]),
        reward=float(body["reward"]),
        turns=tuple(_turn_from_json(turn, pieces) for turn in body["turns"]),
    )


def _turn_from_json(body: Mapping[str, Any], pieces: "_Pieces") -> TurnTokens:
    prompt, completion, logprobs = (pieces.take(length) for length in body["lengths"])
    return TurnTokens(
        prompt_token_ids=prompt,
        completion_token_ids=completion,
        logprobs=logprobs,
        policy_version=int(body["policy_version"]),
        history=int(body.get("history", 0)),
        temperature=float(body.get("temperature", 1.0)),
        logprob_mode=_mode(body.get("logprob_mode", "raw")),
    )


class _Pieces:
    """Cuts off the bytes of turns, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, length: int) -> bytes:
        end = self._at + length
        if not isinstance(length, int) or length < 0 or end > len(self._data):
            raise ValueError(f"a turn of {length} bytes at byte {self._at} of {len(self._data)}; the body is cut short")
        piece, self._at = self._data[self._at : end], end
        return piece

    def check_end(self) -> None:
        if self._at != len(self._data):
            raise ValueError(f"{len(self._data) - self._at} bytes at the end belong to no turn")


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body[name]
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a non-empty string, not {value!r}")
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, not {value!r}")
    return value


def _mode(value: Any) -> Literal["raw", "processed"]:
    if value not in ("raw", "processed"):
        raise ValueError(f"logprob_mode must be raw or processed, not {value!r}")
    mode: Literal["raw", "processed"] = value
    return mode
