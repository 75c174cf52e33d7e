"""Events → `events` (every kind), and one typed table for each kind that carries more than the envelope."""

import dataclasses
import json
from array import array

from rollbus.consumers.clickhouse.origin import Origin, Row, Rows, time_ms
from rollbus.schemas.events import (
    AliasDeclared,
    EpisodeEnded,
    EpisodeStarted,
    Event,
    Excluded,
    Message,
    RewardReported,
    ToolCalled,
    TurnRecorded,
    WriterClosed,
)
from rollbus.schemas.ids import canonical_json
from rollbus.schemas.tokens import decode_logprobs, decode_token_ids

_MESSAGE_FIELDS = tuple(sorted(field.name for field in dataclasses.fields(Message)))
_quoted = json.encoder.encode_basestring


def episode_started(event: EpisodeStarted, origin: Origin) -> Rows:
    """Return the event and its episode."""
    row = origin.row(
        episode_id=event.episode_id,
        event_id=event.event_id,
        root_episode_id=event.root_episode_id,
        parent_episode_id=event.parent_episode_id,
        task=event.task,
        agent=event.agent,
        example_id=event.example_id,
        group_id=event.group_id,
        group_size=event.group_size,
        labels=dict(event.labels),
        resampled=event.resampled,
        producer=event.producer,
        environment=event.environment,
        started_at=time_ms(event.episode_started_at_ms),
    )
    return [_event(event, origin), ("episodes", row)]


def turn_recorded(event: TurnRecorded, origin: Origin) -> Rows:
    """Return the event, its turn, and its tokens where it has any."""
    rows = [_event(event, origin), ("turns", _turn(event, origin))]
    if event.prompt_token_ids or event.completion_token_ids or event.logprobs:
        rows.append(("turn_tokens", _turn_tokens(event, origin)))
    return rows


def _turn(event: TurnRecorded, origin: Origin) -> Row:
    return origin.row(
        episode_id=event.episode_id,
        event_id=event.event_id,
        writer_id=event.writer_id,
        sequence=event.sequence,
        function=event.function,
        model=event.model,
        policy_version=event.policy_version,
        response_id=event.response_id,
        choice=event.choice,
        prefix_count=event.prefix_count,
        prefix_hash=event.prefix_hash,
        added_messages=f"[{','.join(map(message_json, event.added_messages))}]",
        completion=message_json(event.completion),
        completion_text=event.completion.content,
        logprob_mode=event.logprob_mode,
        temperature=event.temperature,
        top_p=event.top_p,
        top_k=event.top_k,
        min_p=event.min_p,
        frequency_penalty=event.frequency_penalty,
        presence_penalty=event.presence_penalty,
        repetition_penalty=event.repetition_penalty,
        seed=event.seed,
        max_tokens=event.max_tokens,
        finish_reason=event.finish_reason,
        tools_hash=event.tools_hash,
        tools=event.tools,
        prompt_tokens=event.prompt_tokens,
        completion_tokens=event.completion_tokens,
        latency_ms=event.latency_ms,
        streamed=event.streamed,
        trainable=event.trainable,
        untrainable_reason=event.untrainable_reason,
        occurred_at=time_ms(event.occurred_at_ms),
        episode_started_at=time_ms(event.episode_started_at_ms),
    )


def _turn_tokens(event: TurnRecorded, origin: Origin) -> Row:
    return origin.row(
        episode_id=event.episode_id,
        event_id=event.event_id,
        prompt_token_ids=_token_ids(event.prompt_token_ids),
        completion_token_ids=_token_ids(event.completion_token_ids),
        logprobs=decode_logprobs(event.logprobs or b""),
        episode_started_at=time_ms(event.episode_started_at_ms),
    )


def tool_called(event: ToolCalled, origin: Origin) -> Rows:
    """Return the event and its tool call."""
    row = origin.row(
        episode_id=event.episode_id,
        event_id=event.event_id,
        writer_id=event.writer_id,
        sequence=event.sequence,
        name=event.name,
        tool_call_id=event.tool_call_id,
        arguments=event.arguments,
        result=event.result,
        error=event.error,
        latency_ms=event.latency_ms,
        occurred_at=time_ms(event.occurred_at_ms),
        episode_started_at=time_ms(event.episode_started_at_ms),
    )
    return [_event(event, origin), ("tool_calls", row)]


def reward_reported(event: RewardReported, origin: Origin) -> Rows:
    """Return the event and its reward; by alias, both have an empty episode."""
    row = origin.row(
        episode_id=event.episode_id,
        event_id=event.event_id,
        name=event.name,
        value=event.value,
        alias=event.alias,
        turn_event_id=event.turn_event_id,
        source=event.source,
        supersedes=event.supersedes,
        retracted=event.retracted,
        comment=event.comment,
        occurred_at=time_ms(event.occurred_at_ms),
        episode_started_at=time_ms(event.episode_started_at_ms),
    )
    return [_event(event, origin), ("rewards", row)]


def episode_ended(event: EpisodeEnded, origin: Origin) -> Rows:
    """Return the event and the end of its episode."""
    row = origin.row(
        episode_id=event.episode_id,
        event_id=event.event_id,
        stop_reason=event.stop_reason,
        error=event.error,
        writer_ids=list(event.writer_ids),
        episode_started_at=time_ms(event.episode_started_at_ms),
        ended_at=time_ms(event.occurred_at_ms),
    )
    return [_event(event, origin), ("episode_ends", row)]


def writer_closed(event: WriterClosed, origin: Origin) -> Rows:
    """Return the event with its count as detail."""
    return [_event(event, origin, canonical_json({"count": event.count}))]


def excluded(event: Excluded, origin: Origin) -> Rows:
    """Return the event with its reason as detail."""
    return [_event(event, origin, canonical_json({"reason": event.reason}))]


def alias_declared(event: AliasDeclared, origin: Origin) -> Rows:
    """Return the event with the alias as detail."""
    return [_event(event, origin, canonical_json({"alias": event.alias}))]


def _event(event: Event, origin: Origin, detail: str = "") -> tuple[str, Row]:
    row = origin.row(
        event_id=event.event_id,
        kind=type(event).__name__,
        episode_id=event.episode_id,
        root_episode_id=event.root_episode_id,
        writer_id=event.writer_id,
        sequence=event.sequence,
        producer=event.producer,
        environment=event.environment,
        detail=detail,
        occurred_at=time_ms(event.occurred_at_ms),
        episode_started_at=time_ms(event.episode_started_at_ms),
    )
    return "events", row


def message_json(message: Message) -> str:
    """Return a message's canonical JSON without what it lacks; every field of a message is text."""
    said = [f'"{name}":{_quoted(value)}' for name in _MESSAGE_FIELDS if (value := getattr(message, name)) is not None]
    return f"{{{','.join(said)}}}"


def _token_ids(data: bytes | None) -> "array[int]":
    return decode_token_ids(data or b"")
