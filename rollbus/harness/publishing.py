"""A TrajectoryCollection that a user's builder made → trajectory records for the log, one group per example.

Trained are the ids that the log-probs carry (`prompt_token_ids`, `token_ids`): never a re-tokenisation. An assistant
item without them is kept with its reason. The ids of run, epoch, example and position make publishing again harmless.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from nat.data_models.finetuning import DPOItem, EpisodeItem, EpisodeItemRole, Trajectory, TrajectoryCollection

from rollbus.harness.run_view import Attempt, group_id_of
from rollbus.harness.transcripts import STEP_REWARD
from rollbus.schemas.errors import InvalidRecordError
from rollbus.schemas.ids import event_id, group_hint, hash_bytes, messages_hash
from rollbus.schemas.records import trajectories as records
from rollbus.schemas.records.events import Message, TurnRecorded
from rollbus.schemas.records.tokens import encode_logprobs, encode_token_ids
from rollbus.schemas.topics import TRAJECTORIES
from rollbus.streams.stages.assembly.histories import merge, token_problem
from rollbus.trainer.ledger.log import Publication

PUBLISHED = "trajectory_id"
"""Metadata key that says which record a trajectory of the toolkit's form is."""


def publications(
    collection: TrajectoryCollection,
    *,
    run_id: str,
    epoch: int,
    task: str,
    reward_name: str,
    now_ms: int,
    model: str = "",
    policy_version: int | None = None,
) -> list[Publication]:
    """Return the records of what has none yet; each trajectory learns its record's id.

    `model` and `policy_version` are of the weights that this epoch sampled with, where the log-probs do not say.
    """
    found = []
    for example, group in zip(_examples(collection), collection.trajectories, strict=True):
        for position, trajectory in enumerate(group):
            metadata = trajectory.metadata = dict(trajectory.metadata or {})
            if PUBLISHED in metadata or any(isinstance(one, DPOItem) for one in trajectory.episode):
                continue
            attempt = Attempt(run_id, epoch, example, position)
            metadata |= {PUBLISHED: attempt.trajectory_id, "epoch": epoch}
            turns = list(_turns(attempt, trajectory, now_ms, model, policy_version))
            record = _record(attempt, trajectory, turns, len(group), task, reward_name, now_ms)
            found.append(Publication(TRAJECTORIES, record.group_hint, record))
    return found


def total(trajectory: Trajectory) -> float:
    """Return what a trajectory is worth: its reward and those of its steps."""
    return trajectory.reward + sum(trajectory.shaped_rewards or ())


def _examples(collection: TrajectoryCollection) -> Iterator[str]:
    """Yield each group's name: the first id in its trajectories, with a number if groups share it."""
    seen: Counter[str] = Counter()
    taken: set[str] = set()
    for index, group in enumerate(collection.trajectories):
        ids = (str(one.metadata["id"]) for one in group if one.metadata and "id" in one.metadata)
        name = next(ids, str(index))
        seen[name] += 1
        told = name if seen[name] == 1 else f"{name}#{seen[name]}"
        while told in taken:
            seen[name] += 1
            told = f"{name}#{seen[name]}"
        taken.add(told)
        yield told


def _record(
    attempt: Attempt,
    trajectory: Trajectory,
    turns: list[TurnRecorded],
    size: int,
    task: str,
    reward_name: str,
    now_ms: int,
) -> records.Trajectory:
    problems = [token_problem(turn) for turn in turns]
    histories = merge((index, turn) for index, turn in enumerate(turns) if problems[index] is None)
    reason = "no_turns" if not turns else next((one for one in problems if one), None) if not histories else None
    prompt = next((turn.prompt_token_ids for turn in turns if turn.prompt_token_ids), None)
    group = group_id_of(attempt.run_id, attempt.epoch, attempt.example_id)
    opening = (
        messages_hash([{"role": one.role, "content": one.content} for one in turns[0].added_messages]) if turns else ""
    )
    return records.Trajectory(
        trajectory_id=attempt.trajectory_id,
        episode_id=attempt.episode_id,
        root_episode_id=attempt.episode_id,
        task=task,
        example_id=attempt.example_id,
        group_id=group,
        group_size=size,
        group_hint=group_hint(group_id=group, task=task, example_id=attempt.example_id, opening_hash=opening),
        producer="finetune",
        environment="finetune",
        labels=labels_of(attempt),
        started_at_ms=now_ms,
        ended_at_ms=now_ms,
        assembled_at_ms=now_ms,
        closed_by="ended",
        stop_reason="completed",
        turns=tuple(_plain_turn(turn, problem) for turn, problem in zip(turns, problems, strict=True)),
        rewards=tuple(_rewards(attempt, trajectory, reward_name, turns)),
        histories=histories,
        opening_hash=opening,
        prompt_hash=hash_bytes(prompt) if prompt else "",
        trainable=reason is None,
        untrainable_reason=reason,
    )


def labels_of(attempt: Attempt) -> dict[str, str]:
    """Return what every trajectory of a run carries."""
    return {"run": attempt.run_id, "epoch": str(attempt.epoch), "generation": str(attempt.generation)}


def _rewards(
    attempt: Attempt, trajectory: Trajectory, name: str, turns: list[TurnRecorded]
) -> Iterator[records.Reward]:
    yield records.Reward(
        event_id=event_id(attempt.episode_id, "reward", 0), name=name, value=total(trajectory), source="evaluator"
    )
    for number, value in enumerate(trajectory.shaped_rewards or ()):
        turn = turns[min(number, len(turns) - 1)] if turns else None
        yield records.Reward(
            event_id=event_id(attempt.episode_id, "reward", number + 1),
            name=f"{name}.{STEP_REWARD}",
            value=value,
            turn_event_id=turn.event_id if turn else None,
            source="evaluator",
        )


def _turns(
    attempt: Attempt, trajectory: Trajectory, now_ms: int, model: str, policy_version: int | None
) -> Iterator[TurnRecorded]:
    waiting: list[Message] = []
    number = 0
    for item in trajectory.episode:
        assert isinstance(item, EpisodeItem)
        if item.role is not EpisodeItemRole.ASSISTANT:
            waiting.append(_message(item))
            continue
        fields = _token_fields(item.logprobs, policy_version)
        yield TurnRecorded(
            event_id=event_id(attempt.episode_id, "turn", number),
            episode_id=attempt.episode_id,
            root_episode_id=attempt.episode_id,
            writer_id="turn",
            sequence=number,
            occurred_at_ms=now_ms,
            episode_started_at_ms=now_ms,
            model=str(_beside(item.logprobs, "model") or model),
            added_messages=tuple(waiting),
            completion=_message(item),
            finish_reason="stop",
            **fields,
        )
        waiting, number = [], number + 1


def _token_fields(logprobs: Any, policy_version: int | None) -> dict[str, Any]:
    """Return the fields of a turn that say what was sampled, or why that is not known."""
    content = _beside(logprobs, "content")
    if not content:
        return {"trainable": False, "untrainable_reason": "no_logprobs"}
    values = [_beside(one, "logprob") for one in content]
    prompt, sampled = _beside(logprobs, "prompt_token_ids"), _beside(logprobs, "token_ids")
    if not prompt or not sampled:
        return {"trainable": False, "untrainable_reason": "no_token_ids"}
    if len(values) != len(sampled):
        return {"trainable": False, "untrainable_reason": "length_mismatch"}
    try:
        packed = encode_logprobs(values)
    except (InvalidRecordError, TypeError):
        return {"trainable": False, "untrainable_reason": "invalid_logprobs"}
    version = _beside(logprobs, "policy_version")
    return {
        "trainable": True,
        "prompt_token_ids": encode_token_ids(prompt),
        "completion_token_ids": encode_token_ids(sampled),
        "logprobs": packed,
        "policy_version": policy_version if version is None else int(version),
        "logprob_mode": _beside(logprobs, "logprob_mode") or "raw",
        "temperature": _beside(logprobs, "temperature"),
    }


def _plain_turn(turn: TurnRecorded, problem: str | None) -> records.Turn:
    return records.Turn(
        event_id=turn.event_id,
        model=turn.model,
        policy_version=turn.policy_version,
        added_messages=turn.added_messages,
        completion=turn.completion,
        finish_reason=turn.finish_reason,
        temperature=turn.temperature,
        logprob_mode=turn.logprob_mode,
        occurred_at_ms=turn.occurred_at_ms,
        trainable=problem is None,
        untrainable_reason=problem,
    )


def _message(item: EpisodeItem) -> Message:
    metadata = item.metadata or {}
    known = {name: str(metadata[name]) for name in ("name", "tool_call_id") if metadata.get(name)}
    calls = metadata.get("tool_calls") or None
    told = calls if calls is None or isinstance(calls, str) else json.dumps(calls, default=str)
    return Message(role=item.role.value, content=item.content, tool_calls=told, **known)


def _beside(value: Any, name: str) -> Any:
    """Return a field of log-probs, which may be a mapping or an object of the OpenAI package."""
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
