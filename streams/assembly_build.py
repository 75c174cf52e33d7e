"""The events of one closed episode to its trajectory.

Events of a writer keep their order; writers are merged by event time. Nothing here knows how the events arrived.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rollbus.schemas.config import AssemblyConfig
from rollbus.schemas.drops import DropReason
from rollbus.schemas.events import (
    EpisodeEnded,
    EpisodeStarted,
    Event,
    Message,
    RewardReported,
    ToolCalled,
    TurnRecorded,
)
from rollbus.schemas.ids import group_hint, hash_bytes, messages_hash, trajectory_id
from rollbus.schemas.trajectories import ToolResult, Trajectory, Turn
from rollbus.streams.assembly_rewards import standing
from rollbus.streams.histories import merge, token_problem

NOT_TARGETED = DropReason.NOT_TARGETED.value
_MESSAGE_FIELDS = tuple(field.name for field in fields(Message))


@dataclass(frozen=True, slots=True)
class Closing:
    """How an episode came to be closed."""

    now_ms: int
    """Stream time."""
    holes: Mapping[str, int]
    """Missing events by writer; empty where all are in."""


def build(events: Iterable[Event], config: AssemblyConfig, config_hash: str, closing: Closing) -> Trajectory | None:
    """Return the trajectory; None where the episode's start is missing, so that nobody knows its task."""
    ordered = in_order(events)
    start = next((event for event in ordered if isinstance(event, EpisodeStarted)), None)
    if start is None:
        return None
    end = next((event for event in ordered if isinstance(event, EpisodeEnded)), None)
    records = [event for event in ordered if isinstance(event, TurnRecorded)]
    problems = [_not_targeted(turn, config) or token_problem(turn) for turn in records]
    targeted = [turn for turn in records if not _not_targeted(turn, config)]
    histories = merge((index, turn) for index, turn in enumerate(records) if problems[index] is None)
    reason = _untrainable(records, targeted, problems, config, closing)
    first = next((turn for turn in targeted if turn.prompt_token_ids), None)
    opening = messages_hash(map(_plain, records[0].added_messages)) if records else ""
    times = [event.occurred_at_ms for event in ordered if not isinstance(event, RewardReported)]
    return Trajectory(
        trajectory_id=trajectory_id(start.episode_id),
        episode_id=start.episode_id,
        root_episode_id=start.root_episode_id,
        parent_episode_id=start.parent_episode_id,
        task=start.task,
        example_id=start.example_id,
        group_id=start.group_id,
        group_size=start.group_size,
        group_hint=group_hint(
            group_id=start.group_id, task=start.task, example_id=start.example_id, opening_hash=opening
        ),
        agent=start.agent,
        producer=start.producer,
        environment=start.environment,
        labels=start.labels,
        resampled=start.resampled,
        started_at_ms=min(times),
        ended_at_ms=max(times),
        assembled_at_ms=closing.now_ms,
        closed_by="ended" if end else "inactivity",
        stop_reason=end.stop_reason if end else None,
        turns=tuple(_turn(turn, problem) for turn, problem in zip(records, problems, strict=True)),
        tools=tuple(_tool(event) for event in ordered if isinstance(event, ToolCalled))
        if config.include_tool_calls
        else (),
        rewards=standing(event for event in ordered if isinstance(event, RewardReported)),
        histories=histories,
        opening_hash=opening,
        prompt_hash=hash_bytes(first.prompt_token_ids) if first and first.prompt_token_ids else "",
        tools_hash=targeted[0].tools_hash if targeted else "",
        trainable=reason is None,
        untrainable_reason=reason,
        config_hash=config_hash,
    )


def in_order(events: Iterable[Event]) -> list[Event]:
    """Return the events, each writer's in its sequence, merged by event time; those without sequence by time alone."""
    by_writer: dict[tuple[str, str], list[Event]] = {}
    for event in events:
        alone = "" if event.sequence >= 0 else event.event_id
        by_writer.setdefault((event.writer_id, alone), []).append(event)
    for sent in by_writer.values():
        sent.sort(key=lambda event: event.sequence)
    heads = [(sent[0].occurred_at_ms, writer, 0) for writer, sent in by_writer.items()]
    heapq.heapify(heads)
    ordered = []
    while heads:
        _, writer, index = heapq.heappop(heads)
        sent = by_writer[writer]
        ordered.append(sent[index])
        if index + 1 < len(sent):
            heapq.heappush(heads, (sent[index + 1].occurred_at_ms, writer, index + 1))
    return ordered


def _untrainable(
    turns: Sequence[TurnRecorded],
    targeted: Sequence[TurnRecorded],
    problems: Sequence[str | None],
    config: AssemblyConfig,
    closing: Closing,
) -> str | None:
    if closing.holes:
        return DropReason.MISSING_EVENTS.value
    if not turns:
        return DropReason.NO_TURNS.value
    if not targeted:
        return NOT_TARGETED
    if len(targeted) < config.min_episode_length:
        return DropReason.TOO_SHORT.value
    if None in problems:
        return None
    return next(problem for problem in problems if problem != NOT_TARGETED)


def _not_targeted(turn: TurnRecorded, config: AssemblyConfig) -> str | None:
    if config.target_functions and turn.function not in config.target_functions:
        return NOT_TARGETED
    if config.target_model is not None and turn.model.partition("@")[0] != config.target_model:
        return NOT_TARGETED
    return None


def _turn(turn: TurnRecorded, problem: str | None) -> Turn:
    return Turn(
        event_id=turn.event_id,
        function=turn.function,
        model=turn.model,
        policy_version=turn.policy_version,
        response_id=turn.response_id,
        added_messages=turn.added_messages,
        completion=turn.completion,
        finish_reason=turn.finish_reason,
        temperature=turn.temperature,
        top_p=turn.top_p,
        top_k=turn.top_k,
        min_p=turn.min_p,
        frequency_penalty=turn.frequency_penalty,
        presence_penalty=turn.presence_penalty,
        repetition_penalty=turn.repetition_penalty,
        logprob_mode=turn.logprob_mode,
        occurred_at_ms=turn.occurred_at_ms,
        latency_ms=turn.latency_ms,
        prompt_tokens=turn.prompt_tokens,
        completion_tokens=turn.completion_tokens,
        trainable=problem is None,
        untrainable_reason=problem,
    )


def _tool(event: ToolCalled) -> ToolResult:
    return ToolResult(
        event_id=event.event_id,
        name=event.name,
        tool_call_id=event.tool_call_id,
        arguments=event.arguments,
        result=event.result,
        error=event.error,
        occurred_at_ms=event.occurred_at_ms,
    )


def _plain(message: Message) -> dict[str, Any]:
    return {name: value for name in _MESSAGE_FIELDS if (value := getattr(message, name)) is not None}
